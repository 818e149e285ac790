// Package tier is the tier queue: the actor that owns which expert is in which slot of RAM. It splits each MoE step into the experts whose
// bytes are in memory and those that must be read, has these read, hands them on as they land, and decides what stays.
//
// state.go is the decision, a pure state machine: no goroutine, clock or I/O. actor.go is the shell that turns its effects into messages.
// What does not live here: reading (package prefetcher), computing (package cpuexperts), and the guess which experts come next, which
// arrives as messages.Predict.
//
// # Residency
//
// The slots are one pool for all layers. An expert's heat is the number of (row, expert) pairs routed to it, halved every 1024 tokens
// (LFRU). All slots but a few belong to stayers, the experts that have earned their place. The few others are transient: bytes that
// were read because a step needed them, or may need them, and that are overwritten oldest first. Free slots are filled before anything is
// given up; after that a newcomer takes the coldest stayer's place only if its heat is above that one's by more than a quarter plus 4.
// Taking a place moves no bytes: the two slots swap roles, so the loser's bytes stay usable until their slot is overwritten.
//
// An expert used by a step is pinned from the split or its landing until Computed, or until the step is aborted. Misses for which no
// slot can be given wait in the tier; every Computed may free one. A step therefore completes with any number of slots, one included.
package tier

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/coli-moe/coli/messages"
)

const (
	agingTokens   = 1024 // heats are halved every so many tokens
	historyHeat   = 32   // where the hottest expert of a layer's history starts
	warmReads     = 8    // reads from the history in flight: enough for every reader, few enough to give way to steps
	maxTransients = 16   // derived: two steps of top_k 8, one being computed and one being read
)

// Config sizes a Machine.
type Config struct {
	Layers, Experts int // of the model; experts of a layer
	Slots           int // experts that fit in memory
	// Transient is how many of the slots are for experts that have not earned a place, predicted ones included. 2 top_k lets the next
	// layer's experts be read while this layer's are computed. 0: a quarter of the slots, at least 2 and at most 16.
	Transient int
	// Data returns an expert's record where all of them are in memory for good. Slots and Transient are then ignored. It is called by
	// Issue and must not block.
	Data func(messages.Key) []byte
}

// Kind says what an Effect asks for.
type Kind uint8

// The kinds of effects.
const (
	Read      Kind = iota // read Key into Slot with Priority
	Raise                 // Key's queued read is on demand now
	Cancel                // Key's read is no longer wanted
	Compute               // Use of Step: its record is Data; or it cannot be had, Err
	SplitDone             // Step's Uses are filled in; or Err
)

// Effect is something the shell has to do. Effects are done in the order given.
type Effect struct {
	Kind     Kind
	Priority messages.Priority
	Use      int32
	Slot     int32
	Key      messages.Key
	Step     *messages.Step
	Data     []byte
	Err      error
}

// errRestarted is what steps under way get for the experts they still wait for.
var errRestarted = errors.New("the tier queue was restarted")

// Machine is the state of the tier queue. Its methods return effects that are valid until the next call; none of them allocates once the
// buffers have grown to the steps' sizes. It is not safe for concurrent use.
type Machine struct {
	cfg        Config
	stayMax    int
	heat       []uint32 // by expert, as are slotOf and mark
	slotOf     []int32  // none: neither in memory nor being read
	mark       []uint32 // generation of the layer's prediction that named the expert
	generation []uint32 // by layer: of its prediction that stands

	slots      []slot
	free       []int32 // empty slots
	stay       coldHeap
	transients int      // occupied slots that are not stayers'
	lists      [3]chain // of transient slots, by listID
	canceling  int      // reads withdrawn and not yet landed
	steps      []*step  // open, oldest first
	idleSteps  []*step  // records to use again
	waiting    queue    // experts that steps need and that have no slot yet
	pending    []int32  // predicted experts that have no slot yet, most probable first
	warm       []int32  // experts of the history to read, hottest first
	warming    int      // of these, in flight
	tokens     int32    // since the last aging
	clock      uint64   // counts steps: recency
	order      []uint64 // scratch
	effects    []Effect
	figures    messages.TierFigures
}

const none = -1

type slotState uint8

const (
	empty slotState = iota
	reading
	ready
)

// slot is one expert's place in memory.
type slot struct {
	data     []byte // ready: the record
	used     uint64 // clock of the last step that used it
	key      int32  // dense number of the expert
	pins     int32  // uses that still read it
	pos      int32  // stayers: index in the heap
	prev     int32
	next     int32
	list     listID
	state    slotState
	priority messages.Priority // what its read was begun as
	stays    bool
	raised   bool // its read has become one on demand
	canceled bool // its read was withdrawn and has not landed
	fresh    bool // read because predicted, and not used so far
}

// listID names the list a transient slot is in.
type listID uint8

const (
	spare    listID = iota // ready, unpinned, and not predicted: overwritten first, oldest first
	expected               // ready and unpinned, named by a prediction that stands: overwritten only for a step
	flying                 // being read, named by a prediction that stands, and not asked for
	inNone
)

// step is an open step. Its Step's Uses belong to the engine once it is split, hence the copy.
type step struct {
	msg      *messages.Step
	id       uint64
	layer    int32
	split    bool
	finished bool
	open     int // uses waiting or handed out
	uses     []use
}

type useState uint8

const (
	useDone    useState = iota
	useWaiting          // for its bytes
	useHanded           // somebody reads slot
)

type use struct {
	expert int32
	slot   int32
	state  useState
}

// New returns a machine with nothing in memory.
func New(cfg Config) (*Machine, error) {
	if cfg.Layers < 1 || cfg.Experts < 1 || cfg.Layers > math.MaxInt32/cfg.Experts {
		return nil, fmt.Errorf("tier: %d layers of %d experts", cfg.Layers, cfg.Experts)
	}
	total := cfg.Layers * cfg.Experts
	m := &Machine{cfg: cfg, heat: make([]uint32, total)}
	if cfg.Data != nil {
		m.figures.Slots, m.figures.Resident = int64(total), int64(total)
		return m, nil
	}
	if cfg.Slots < 1 || cfg.Slots > math.MaxInt32 || cfg.Transient < 0 {
		return nil, fmt.Errorf("tier: %d slots, %d of them transient: at least one expert must fit in memory", cfg.Slots, cfg.Transient)
	}
	if m.cfg.Transient == 0 {
		m.cfg.Transient = min(max(cfg.Slots/4, 2), maxTransients)
	}
	m.cfg.Transient = min(m.cfg.Transient, cfg.Slots)
	m.stayMax = cfg.Slots - m.cfg.Transient
	m.figures.Slots = int64(cfg.Slots)
	m.slotOf, m.mark, m.generation = make([]int32, total), make([]uint32, total), make([]uint32, cfg.Layers)
	m.slots = make([]slot, cfg.Slots)
	m.rebuild(nil)
	for l := range m.generation {
		m.generation[l] = 1 // no expert is marked yet
	}
	return m, nil
}

// Issue opens a step: each Use gets its Where, and its Data if that is InMemory. Needs Uses in rising order of distinct experts. Uses
// that must be read are asked for with the most rows first, since the longest computation should not be the last to begin.
func (m *Machine) Issue(s *messages.Step) []Effect {
	m.begin()
	if err := m.checkStep(s); err != nil {
		m.emit(Effect{Kind: SplitDone, Step: s, Err: err})
		return m.end()
	}
	m.clock++
	base := s.Layer * int32(m.cfg.Experts)
	for i := range s.Uses {
		h := &m.heat[base+s.Uses[i].Expert]
		*h += uint32(min(int64(s.Uses[i].Rows), int64(math.MaxUint32-*h)))
	}
	if m.cfg.Data != nil {
		for i := range s.Uses {
			u := &s.Uses[i]
			u.Where, u.Data = messages.InMemory, m.cfg.Data(messages.Key{Layer: s.Layer, Expert: u.Expert})
			m.figures.PairsInMemory += int64(u.Rows)
		}
		m.emit(Effect{Kind: SplitDone, Step: s})
		return m.end()
	}
	st := m.openStep(s)
	m.order = m.order[:0]
	for i := range s.Uses {
		u := &s.Uses[i]
		key := base + u.Expert
		m.count(key, s.Layer)
		switch at := m.slotOf[key]; {
		case at == none:
			u.Where, u.Data = messages.OnDisk, nil
			m.figures.PairsOnDisk += int64(u.Rows)
			m.order = append(m.order, uint64(math.MaxUint32-uint32(u.Rows))<<32|uint64(u.Expert))
		case m.slots[at].state == reading:
			u.Where, u.Data = messages.InFlight, nil
			m.figures.PairsInFlight += int64(u.Rows)
			m.want(at)
		default:
			u.Where, u.Data = messages.InMemory, m.slots[at].data
			m.figures.PairsInMemory += int64(u.Rows)
			m.pin(at, &st.uses[i])
			m.earn(at)
		}
	}
	m.generation[s.Layer]++ // the step has answered the layer's prediction
	m.withdraw(s.Layer)
	slices.Sort(m.order)
	for _, o := range m.order {
		m.waiting.push(base + int32(uint32(o)))
	}
	m.pump()
	st.split = true
	m.emit(Effect{Kind: SplitDone, Step: s})
	return m.end()
}

// checkStep refuses a step whose fields would lead outside the tables.
func (m *Machine) checkStep(s *messages.Step) error {
	if s.Layer < 0 || int(s.Layer) >= m.cfg.Layers {
		return fmt.Errorf("tier: a step of layer %d of %d", s.Layer, m.cfg.Layers)
	}
	last := int32(-1)
	for _, u := range s.Uses {
		if u.Expert <= last || int(u.Expert) >= m.cfg.Experts || u.Rows < 1 {
			return fmt.Errorf("tier: a step of layer %d uses expert %d for %d rows, after expert %d, of %d experts",
				s.Layer, u.Expert, u.Rows, last, m.cfg.Experts)
		}
		last = u.Expert
	}
	return nil
}

// Landed takes the answer to a Read: bytes for everyone who waits for them, or one error for each.
func (m *Machine) Landed(l *messages.Landed) []Effect {
	m.begin()
	if l.Slot < 0 || int(l.Slot) >= len(m.slots) || m.slots[l.Slot].state != reading {
		return m.end() // of an earlier life
	}
	at := l.Slot
	s := &m.slots[at]
	key := s.key
	m.figures.BytesRead += l.Bytes
	m.figures.ReadNanos += l.Nanos
	if s.canceled {
		m.canceling--
	}
	if s.priority == messages.Warm {
		m.warming--
	}
	switch {
	case l.Err == nil:
		s.state, s.data, s.canceled = ready, l.Data, false
		m.figures.Resident++
		wasFlying := s.list == flying
		m.unlist(at)
		if m.deliver(key, at, nil) && s.fresh { // it had been withdrawn, too late
			s.fresh = false
			m.figures.PredictedUsed++
		}
		if s.pins == 0 && !s.stays {
			if wasFlying {
				m.list(expected, at)
			} else {
				m.rest(at)
			}
		}
	case errors.Is(l.Err, messages.ErrCanceled) && m.wanted(key): // asked for again since it was withdrawn
		m.unread(s)
		m.read(at, messages.Demand)
		return m.end()
	case errors.Is(l.Err, messages.ErrCanceled):
		m.unread(s)
		m.vacate(at)
	default:
		m.figures.FailedReads++
		m.vacate(at)
		m.deliver(key, none, l.Err)
	}
	m.pump()
	return m.end()
}

// deliver hands the bytes in slot at, or err, to every use that waits for the expert, and says whether there was one.
func (m *Machine) deliver(key, at int32, err error) (any bool) {
	layer, expert := m.split(key)
	for _, st := range m.steps {
		i, u := st.find(layer, expert)
		if u == nil || u.state != useWaiting {
			continue
		}
		any = true
		e := Effect{Kind: Compute, Step: st.msg, Use: i, Slot: at, Key: messages.Key{Layer: layer, Expert: expert}, Err: err}
		if err == nil {
			e.Data = m.slots[at].data
			m.pin(at, u)
		} else {
			u.state = useDone
			st.open--
		}
		m.emit(e)
	}
	return any
}

// Computed unpins an expert that a step no longer reads.
func (m *Machine) Computed(id uint64, key messages.Key) []Effect {
	m.begin()
	i := m.stepIndex(id)
	if i < 0 {
		return m.end()
	}
	st := m.steps[i]
	_, u := st.find(key.Layer, key.Expert)
	if u == nil || u.state != useHanded {
		return m.end()
	}
	m.unpin(u.slot)
	u.state = useDone
	st.open--
	m.closeIfDone(i)
	m.pump()
	return m.end()
}

// Finish closes a step. Computed may come after it, unless the step is aborted: then whoever sends Finish knows that nobody reads what
// the step was given any more, and all of it is released. Reads that only an aborted step waited for are withdrawn.
func (m *Machine) Finish(id uint64, aborted bool) []Effect {
	m.begin()
	i := m.stepIndex(id)
	if i < 0 {
		return m.end()
	}
	st := m.steps[i]
	st.finished = true
	for j := 0; aborted && j < len(st.uses); j++ {
		u := &st.uses[j]
		state := u.state
		u.state = useDone
		switch state {
		case useHanded:
			m.unpin(u.slot)
			st.open--
		case useWaiting:
			st.open--
			key := m.key(st.layer, u.expert)
			if at := m.slotOf[key]; at != none && !m.wanted(key) {
				m.cancel(at)
			}
		}
	}
	m.closeIfDone(i)
	m.pump()
	return m.end()
}

// Predict replaces a layer's prediction: the experts its next step will probably use, most probable first. Those that are neither in
// memory nor being read are read as long as slots are to be had that no step needs. At most Transient slots serve predictions at a time.
func (m *Machine) Predict(layer int32, experts []int32) []Effect {
	m.begin()
	if m.slots == nil || layer < 0 || int(layer) >= m.cfg.Layers {
		return m.end()
	}
	m.generation[layer]++
	for _, e := range experts {
		if e >= 0 && int(e) < m.cfg.Experts {
			m.mark[m.key(layer, e)] = m.generation[layer]
		}
	}
	m.withdraw(layer)
	for _, e := range experts {
		if e < 0 || int(e) >= m.cfg.Experts {
			continue
		}
		key := m.key(layer, e)
		switch at := m.slotOf[key]; {
		case at == none:
			m.pending = append(m.pending, key)
		case m.slots[at].list == spare && m.lists[expected].n+m.lists[flying].n < m.cfg.Transient:
			m.unlist(at)
			m.list(expected, at)
		}
	}
	m.pump()
	return m.end()
}

// withdraw takes from a layer's experts that are no longer marked what they had as predicted ones.
func (m *Machine) withdraw(layer int32) {
	for _, id := range [...]listID{flying, expected} {
		for at := m.lists[id].head; at != none; {
			next := m.slots[at].next
			if m.stale(m.slots[at].key, layer) {
				m.unlist(at)
				if id == flying {
					m.cancel(at)
				} else {
					m.rest(at)
				}
			}
			at = next
		}
	}
	kept := m.pending[:0]
	for _, key := range m.pending {
		if l, _ := m.split(key); l != layer {
			kept = append(kept, key)
		}
	}
	m.pending = kept
}

// stale says whether an expert is of the layer and no longer predicted.
func (m *Machine) stale(key, layer int32) bool {
	return key/int32(m.cfg.Experts) == layer && m.mark[key] != m.generation[layer]
}

// Tokens ages the heats by n computed tokens.
func (m *Machine) Tokens(n int32) []Effect {
	m.begin()
	m.tokens += n
	if halvings := m.tokens / agingTokens; halvings > 0 {
		m.tokens %= agingTokens
		for i := range m.heat {
			m.heat[i] >>= halvings
		}
		m.stay.rebuild(m) // heats that have become equal are in order of recency now
	}
	return m.end()
}

// Warm takes the usage history, counts by layer and expert with layers outermost, as the experts' first heat, and has the hottest
// experts read into free slots. Experts with a count of zero are not read.
func (m *Machine) Warm(history []uint64) []Effect {
	m.begin()
	if len(history) != len(m.heat) {
		return m.end()
	}
	for first := 0; first < len(history); first += m.cfg.Experts {
		layer := history[first : first+m.cfg.Experts]
		top := slices.Max(layer)
		for e, n := range layer {
			if n > 0 {
				h := &m.heat[first+e]
				*h = max(*h, uint32(math.Round(historyHeat*float64(n)/float64(top))))
			}
		}
	}
	if m.slots == nil {
		return m.end()
	}
	m.warm = m.warm[:0]
	for key, n := range history {
		if n > 0 {
			m.warm = append(m.warm, int32(key))
		}
	}
	slices.SortStableFunc(m.warm, func(a, b int32) int { return int(m.heat[b]) - int(m.heat[a]) })
	m.pump()
	return m.end()
}

// Figures fills in what the machine counts.
func (m *Machine) Figures() messages.TierFigures { return m.figures }

// Recover rebuilds the state after a panic from what cannot have been lost: the slots' contents, the heats, and what the open steps
// hold. inFlight says for each slot whether a Read has been sent for it and not been answered; such a slot is left alone until Landed.
// Steps get an error for each expert they still wait for, and for those in effects of the interrupted call, which the shell sets to their
// zero value when they are done. A step that was not split is forgotten, since whoever issued it was told by the mailbox.
func (m *Machine) Recover(inFlight []bool) []Effect {
	for _, e := range m.effects {
		i := slices.IndexFunc(m.steps, func(st *step) bool { return st.msg == e.Step })
		switch {
		case i < 0:
		case e.Kind == Compute:
			m.steps[i].uses[e.Use].state = useWaiting
		case e.Kind == SplitDone:
			m.steps[i].split = false
		}
	}
	m.begin()
	if m.slots != nil {
		m.rebuild(inFlight)
	}
	return m.end()
}

func (m *Machine) rebuild(inFlight []bool) {
	m.waiting, m.pending = queue{}, m.pending[:0]
	m.stay.entries = m.stay.entries[:0]
	m.free, m.transients, m.canceling, m.warming, m.figures.Resident = m.free[:0], 0, 0, 0, 0
	m.lists = [...]chain{{head: none, tail: none}, {head: none, tail: none}, {head: none, tail: none}}
	for i := range m.slotOf {
		m.slotOf[i] = none
	}
	for at := range m.slots {
		m.slots[at].pins = 0
	}
	open := m.steps[:0]
	for _, st := range m.steps {
		if !st.split {
			continue
		}
		st.open = 0
		for i := range st.uses {
			switch u := &st.uses[i]; u.state {
			case useWaiting:
				u.state = useDone
				key := messages.Key{Layer: st.layer, Expert: u.expert}
				m.emit(Effect{Kind: Compute, Step: st.msg, Use: int32(i), Slot: none, Key: key, Err: errRestarted})
			case useHanded:
				st.open++
				m.slots[u.slot].pins++
			}
		}
		if st.open > 0 || !st.finished {
			open = append(open, st)
		}
	}
	m.steps = open
	for at := range m.slots {
		s := &m.slots[at]
		known := s.state == ready || s.state == reading && at < len(inFlight) && inFlight[at]
		known = known && m.slotOf[s.key] == none
		stays := s.stays && len(m.stay.entries) < m.stayMax
		*s = slot{
			data: s.data, used: s.used, key: s.key, pins: s.pins, state: s.state, priority: s.priority, fresh: s.fresh,
			list: inNone, prev: none, next: none,
		}
		if !known {
			*s = slot{list: inNone, prev: none, next: none}
			m.free = append(m.free, int32(at))
			continue
		}
		m.slotOf[s.key] = int32(at)
		m.transients++
		if s.state == ready {
			m.figures.Resident++
		} else if s.priority == messages.Warm {
			m.warming++
		}
		if stays || m.transients > m.cfg.Transient {
			m.settle(int32(at))
		} else if s.state == ready && s.pins == 0 {
			m.list(spare, int32(at))
		}
	}
	slices.Reverse(m.free) // lowest slot first
}

// begin and end frame every step of the machine.
func (m *Machine) begin() { m.effects = m.effects[:0] }

func (m *Machine) end() []Effect {
	if invariants {
		if err := m.check(); err != nil {
			panic(err)
		}
	}
	return m.effects
}

func (m *Machine) emit(e Effect) { m.effects = append(m.effects, e) }

func (m *Machine) key(layer, expert int32) int32 { return layer*int32(m.cfg.Experts) + expert }

func (m *Machine) split(key int32) (layer, expert int32) {
	return key / int32(m.cfg.Experts), key % int32(m.cfg.Experts)
}

func (m *Machine) name(key int32) messages.Key {
	layer, expert := m.split(key)
	return messages.Key{Layer: layer, Expert: expert}
}

// openStep records a step; all its uses wait for now.
func (m *Machine) openStep(s *messages.Step) *step {
	var st *step
	if n := len(m.idleSteps); n > 0 {
		st, m.idleSteps = m.idleSteps[n-1], m.idleSteps[:n-1]
	} else {
		st = new(step)
	}
	*st = step{msg: s, id: s.ID, layer: s.Layer, open: len(s.Uses), uses: st.uses[:0]}
	for i := range s.Uses {
		st.uses = append(st.uses, use{expert: s.Uses[i].Expert, slot: none, state: useWaiting})
	}
	m.steps = append(m.steps, st)
	return st
}

// find returns the step's use of an expert and its index; nil if it has none.
func (st *step) find(layer, expert int32) (int32, *use) {
	if st.layer != layer {
		return 0, nil
	}
	i, ok := slices.BinarySearchFunc(st.uses, expert, func(u use, e int32) int { return int(u.expert) - int(e) })
	if !ok {
		return 0, nil
	}
	return int32(i), &st.uses[i]
}

func (m *Machine) stepIndex(id uint64) int {
	return slices.IndexFunc(m.steps, func(st *step) bool { return st.id == id })
}

func (m *Machine) closeIfDone(i int) {
	if st := m.steps[i]; st.finished && st.open == 0 {
		m.steps = slices.Delete(m.steps, i, i+1)
		st.msg = nil
		m.idleSteps = append(m.idleSteps, st)
	}
}

// wanted says whether a step waits for an expert's bytes.
func (m *Machine) wanted(key int32) bool {
	layer, expert := m.split(key)
	for _, st := range m.steps {
		if _, u := st.find(layer, expert); u != nil && u.state == useWaiting {
			return true
		}
	}
	return false
}

// count keeps the figures of predictions, for an expert that a step needs now.
func (m *Machine) count(key, layer int32) {
	fresh := false
	if at := m.slotOf[key]; at != none {
		s := &m.slots[at]
		fresh = s.fresh && !s.canceled
		if s.state == ready && !fresh {
			return
		}
		if fresh {
			s.fresh = false
			m.figures.PredictedUsed++
		}
	}
	m.figures.Needed++
	if fresh || m.mark[key] == m.generation[layer] {
		m.figures.NeededPredicted++
	}
}

// want makes the read under way in a slot one on demand.
func (m *Machine) want(at int32) {
	m.unlist(at)
	s := &m.slots[at]
	s.used = m.clock
	if s.priority != messages.Demand && !s.raised && !s.canceled {
		s.raised = true
		m.emit(Effect{Kind: Raise, Slot: at, Key: m.name(s.key)})
	}
	m.earn(at)
}

func (m *Machine) pin(at int32, u *use) {
	m.unlist(at)
	s := &m.slots[at]
	s.used = m.clock
	s.pins++
	u.slot, u.state = at, useHanded
}

func (m *Machine) unpin(at int32) {
	s := &m.slots[at]
	s.pins--
	if s.pins == 0 && !s.stays {
		m.rest(at)
	}
}

// rest makes a transient slot one to be overwritten: as the last, but if its expert was predicted and not needed, as the first.
func (m *Machine) rest(at int32) {
	if m.slots[at].fresh {
		m.listFront(spare, at)
	} else {
		m.list(spare, at)
	}
}

// earn gives a transient slot's expert a place to stay, if one is free or it is hotter than the coldest stayer by the margin.
func (m *Machine) earn(at int32) {
	if m.slots[at].stays || m.stayMax == 0 {
		return
	}
	if len(m.stay.entries) == m.stayMax {
		coldest := m.stay.coldest(m)
		bar := uint64(m.heat[m.slots[coldest].key])
		if uint64(m.heat[m.slots[at].key]) <= bar+bar/4+4 {
			return
		}
		m.demote(coldest)
	}
	m.figures.Promotions++
	m.settle(at)
}

func (m *Machine) settle(at int32) {
	m.unlist(at)
	m.transients--
	m.slots[at].stays = true
	m.stay.push(m, at)
}

func (m *Machine) demote(at int32) {
	s := &m.slots[at]
	m.stay.remove(m, s.pos)
	m.transients++
	s.stays = false
	m.figures.Evictions++
	if s.state == ready && s.pins == 0 {
		m.rest(at)
	}
}

// cancel withdraws the read under way in a slot, which stays the reader's until it lands all the same.
func (m *Machine) cancel(at int32) {
	s := &m.slots[at]
	if s.state != reading || s.canceled {
		return
	}
	s.canceled = true
	m.canceling++
	m.emit(Effect{Kind: Cancel, Slot: at, Key: m.name(s.key)})
}

// take gives an expert a slot: a free one, or the transient one whose bytes are oldest. A prediction gets none that another one holds,
// nor a free one that a stayer is going to have.
func (m *Machine) take(key int32, forStep bool) (at int32, ok bool) {
	switch n := len(m.free); {
	case n > 0 && (forStep || m.transients < m.cfg.Transient):
		at, m.free = m.free[n-1], m.free[:n-1]
	case m.lists[spare].n > 0:
		at = m.lists[spare].head
		m.clear(at)
	case forStep && m.lists[expected].n > 0:
		at = m.lists[expected].head
		m.clear(at)
	default:
		return none, false
	}
	m.slots[at].key, m.slots[at].used = key, m.clock
	m.slotOf[key] = at
	m.transients++
	return at, true
}

// clear empties a slot.
func (m *Machine) clear(at int32) {
	m.unlist(at)
	s := &m.slots[at]
	if s.stays {
		m.stay.remove(m, s.pos)
	} else {
		m.transients--
	}
	if s.state == ready {
		m.figures.Resident--
	}
	m.slotOf[s.key] = none
	*s = slot{list: inNone, prev: none, next: none}
}

func (m *Machine) vacate(at int32) {
	m.clear(at)
	m.free = append(m.free, at)
}

// read begins the read of a slot's expert.
func (m *Machine) read(at int32, p messages.Priority) {
	s := &m.slots[at]
	s.state, s.priority, s.raised, s.canceled, s.fresh = reading, p, false, false, p == messages.Predicted
	*m.reads(p)++
	m.emit(Effect{Kind: Read, Priority: p, Slot: at, Key: m.name(s.key)})
}

// unread takes a read that was withdrawn before it began out of the figures.
func (m *Machine) unread(s *slot) {
	*m.reads(s.priority)--
	m.figures.Canceled++
	if s.priority == messages.Predicted && !s.fresh { // by a step that was aborted
		m.figures.PredictedUsed--
	}
}

func (m *Machine) reads(p messages.Priority) *int64 {
	switch p {
	case messages.Predicted:
		return &m.figures.PredictedReads
	case messages.Warm:
		return &m.figures.WarmReads
	default:
		return &m.figures.DemandReads
	}
}

// pump begins the reads for which there are slots: those of steps, then predicted ones, then the history's.
func (m *Machine) pump() {
	for m.waiting.len() > 0 {
		key := m.waiting.first()
		if m.slotOf[key] == none && m.wanted(key) {
			at, ok := m.take(key, true)
			if !ok {
				m.makeRoom()
				return
			}
			m.read(at, messages.Demand)
			m.earn(at)
		}
		m.waiting.pop()
	}
	begun := 0
	for _, key := range m.pending {
		if m.slotOf[key] == none {
			if m.lists[expected].n+m.lists[flying].n >= m.cfg.Transient {
				break
			}
			at, ok := m.take(key, false)
			if !ok {
				break
			}
			m.read(at, messages.Predicted)
			m.list(flying, at)
		}
		begun++
	}
	m.pending = slices.Delete(m.pending, 0, begun)
	for len(m.warm) > 0 && m.warming < warmReads && len(m.stay.entries) < m.stayMax {
		key := m.warm[0]
		m.warm = m.warm[1:]
		if m.slotOf[key] != none {
			continue
		}
		at, _ := m.take(key, true) // there is a free one: not all places are taken
		m.figures.Promotions++
		m.settle(at)
		m.warming++
		m.read(at, messages.Warm)
	}
}

// makeRoom withdraws predicted reads, the least probable first, so that every expert that waits for a slot gets one at the latest when
// a read lands.
func (m *Machine) makeRoom() {
	for m.canceling < m.waiting.len() && m.lists[flying].n > 0 {
		at := m.lists[flying].tail
		m.unlist(at)
		m.cancel(at)
	}
}
