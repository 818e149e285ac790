package tier

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/coli-moe/coli/messages"
)

// world is what surrounds a machine: a disk, whose reads land in any order, and somebody who computes. It holds the machine to what it
// promises: a slot being read into or in use is never given to another expert, an expert is read once at a time, everyone gets
// the bytes they asked for, every step completes, and the figures add up.
type world struct {
	t      testing.TB
	m      *Machine
	choose func(n int) int // in [0, n)

	memory                   [][]byte // a slot's bytes name the expert they belong to
	reads                    map[int32]*flight
	steps                    []*job
	lastID                   uint64
	rows, landed             int64
	begun, withdrawn, failed int64
}

type flight struct {
	key      messages.Key
	canceled bool
}

// job is a step under way.
type job struct {
	step  *messages.Step
	split bool
	uses  []stage
}

type stage struct {
	data []byte // being computed
	done bool
}

func newWorld(t testing.TB, cfg Config, choose func(int) int) *world {
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, m: m, choose: choose, reads: map[int32]*flight{}}
	for range cfg.Slots {
		w.memory = append(w.memory, make([]byte, 8))
	}
	return w
}

func write(b []byte, k messages.Key) {
	binary.LittleEndian.PutUint32(b, uint32(k.Layer))
	binary.LittleEndian.PutUint32(b[4:], uint32(k.Expert))
}

func holds(b []byte, k messages.Key) bool {
	return len(b) == 8 && binary.LittleEndian.Uint32(b) == uint32(k.Layer) && binary.LittleEndian.Uint32(b[4:]) == uint32(k.Expert)
}

func (w *world) job(s *messages.Step) *job {
	for _, j := range w.steps {
		if j.step == s {
			return j
		}
	}
	w.t.Fatalf("an effect for step %d, which is not open", s.ID)
	return nil
}

func (w *world) do(effects []Effect) {
	defer clear(effects) // done
	if err := w.m.check(); err != nil {
		w.t.Fatal(err)
	}
	for _, e := range effects {
		switch e.Kind {
		case Read:
			for slot, f := range w.reads {
				if slot == e.Slot || f.key == e.Key {
					w.t.Fatalf("read of %v into %d while %v is read into %d", e.Key, e.Slot, f.key, slot)
				}
			}
			w.reads[e.Slot] = &flight{key: e.Key}
			write(w.memory[e.Slot], messages.Key{Layer: -1, Expert: -1}) // whoever reads the slot now reads nonsense
			w.begun++
		case Raise, Cancel:
			f := w.reads[e.Slot]
			if f == nil || f.key != e.Key {
				w.t.Fatalf("%v concerns slot %d, which is not reading it", e.Key, e.Slot)
			}
			f.canceled = f.canceled || e.Kind == Cancel
		case Compute:
			j := w.job(e.Step)
			u := &j.uses[e.Use]
			switch {
			case !j.split || u.done || u.data != nil || j.step.Uses[e.Use].Where == messages.InMemory:
				w.t.Fatalf("step %d did not wait for use %d", e.Step.ID, e.Use)
			case e.Err != nil:
				u.done = true
			case !holds(e.Data, messages.Key{Layer: e.Step.Layer, Expert: e.Step.Uses[e.Use].Expert}):
				w.t.Fatalf("step %d got other bytes for use %d", e.Step.ID, e.Use)
			default:
				u.data = e.Data
			}
		case SplitDone:
			if e.Err != nil {
				w.t.Fatal(e.Err)
			}
			j := w.job(e.Step)
			j.split = true
			for i, u := range e.Step.Uses {
				if u.Where != messages.InMemory {
					continue
				}
				if !holds(u.Data, messages.Key{Layer: e.Step.Layer, Expert: u.Expert}) {
					w.t.Fatalf("step %d got other bytes for expert %d", e.Step.ID, u.Expert)
				}
				j.uses[i].data = u.Data
			}
		}
	}
}

func (w *world) issue() {
	w.lastID++
	s := &messages.Step{ID: w.lastID, Layer: int32(w.choose(w.m.cfg.Layers))}
	density := 1 + w.choose(w.m.cfg.Experts)
	for e := range w.m.cfg.Experts {
		if w.choose(density) == 0 {
			s.Uses = append(s.Uses, messages.Use{Expert: int32(e), Rows: int32(1 + w.choose(4))})
			w.rows += int64(s.Uses[len(s.Uses)-1].Rows)
		}
	}
	w.steps = append(w.steps, &job{step: s, uses: make([]stage, len(s.Uses))})
	w.do(w.m.Issue(s))
	if !w.steps[len(w.steps)-1].split {
		w.t.Fatalf("step %d was not split", s.ID)
	}
}

// land lets one of the reads under way end: well, in failure, or, if it was withdrawn, without having begun.
func (w *world) land() bool {
	if len(w.reads) == 0 {
		return false
	}
	n := w.choose(len(w.reads))
	for slot := range int32(len(w.memory)) {
		f := w.reads[slot]
		if f == nil {
			continue
		}
		if n--; n >= 0 {
			continue
		}
		delete(w.reads, slot)
		l := &messages.Landed{Key: f.key, Slot: slot, Bytes: 8, Nanos: 1}
		switch {
		case f.canceled && w.choose(2) == 0:
			l.Err, l.Bytes, l.Nanos = messages.ErrCanceled, 0, 0
			w.withdrawn++
		case w.choose(32) == 0:
			l.Err = errors.New("bad sector")
			w.failed++
			w.landed++
		default:
			write(w.memory[slot], f.key)
			l.Data = w.memory[slot]
			w.landed++
		}
		w.do(w.m.Landed(l))
		return true
	}
	return false
}

// compute ends one of the computations under way.
func (w *world) compute() bool {
	type at struct{ job, use int }
	var under []at
	for i, j := range w.steps {
		for k, u := range j.uses {
			if u.data != nil && !u.done {
				under = append(under, at{i, k})
			}
		}
	}
	if len(under) == 0 {
		return false
	}
	a := under[w.choose(len(under))]
	j := w.steps[a.job]
	key := messages.Key{Layer: j.step.Layer, Expert: j.step.Uses[a.use].Expert}
	if !holds(j.uses[a.use].data, key) {
		w.t.Fatalf("the bytes of %v were overwritten while step %d used them", key, j.step.ID)
	}
	j.uses[a.use].done = true
	w.do(w.m.Computed(j.step.ID, key))
	return true
}

// finish closes the oldest step, if it is complete or to be aborted.
func (w *world) finish(abort bool) bool {
	if len(w.steps) == 0 {
		return false
	}
	j := w.steps[0]
	complete := true
	for _, u := range j.uses {
		complete = complete && u.done
	}
	if !complete && !abort {
		return false
	}
	w.steps = w.steps[1:]
	w.do(w.m.Finish(j.step.ID, !complete))
	if len(j.uses) > 0 && !complete { // what comes late is ignored
		w.do(w.m.Computed(j.step.ID, messages.Key{Layer: j.step.Layer, Expert: j.step.Uses[w.choose(len(j.uses))].Expert}))
	}
	return true
}

func (w *world) predict() {
	layer, experts := w.choose(w.m.cfg.Layers), make([]int32, w.choose(6))
	for i := range experts {
		experts[i] = int32(w.choose(w.m.cfg.Experts + 1)) // one more than there are
	}
	w.do(w.m.Predict(int32(layer), experts))
}

func (w *world) restart() {
	inFlight := make([]bool, len(w.memory))
	for slot := range w.reads {
		inFlight[slot] = true
	}
	w.do(w.m.Recover(inFlight))
}

// play does rounds of what may happen and then lets everything end.
func (w *world) play(rounds int) {
	if w.choose(2) == 0 {
		history := make([]uint64, w.m.cfg.Layers*w.m.cfg.Experts)
		for i := range history {
			history[i] = uint64(w.choose(5))
		}
		w.do(w.m.Warm(history))
	}
	for range rounds {
		switch w.choose(16) {
		case 0, 1:
			if len(w.steps) < 3 {
				w.issue()
			}
		case 2:
			w.predict()
		case 3:
			if w.choose(16) == 0 {
				w.do(w.m.Tokens(int32(w.choose(3000))))
			}
		case 4:
			if w.choose(64) == 0 {
				w.restart()
			}
		case 5:
			w.finish(w.choose(16) == 0)
		case 6, 7, 8, 9:
			w.finish(false)
			w.compute()
		default:
			w.land()
		}
	}
	for len(w.steps) > 0 || len(w.reads) > 0 {
		if computed, landed, finished := w.compute(), w.land(), w.finish(false); !computed && !landed && !finished {
			w.t.Fatalf("%d steps are stuck: the first is %+v", len(w.steps), w.steps[0])
		}
	}
	if len(w.m.steps) > 0 {
		w.t.Errorf("the machine still has step %+v", w.m.steps[0])
	}
	f := w.m.Figures()
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"pairs", f.PairsInMemory + f.PairsInFlight + f.PairsOnDisk, w.rows},
		{"reads that were not withdrawn", f.DemandReads + f.PredictedReads + f.WarmReads, w.landed},
		{"reads", w.begun, w.landed + w.withdrawn},
		{"bytes read", f.BytesRead, 8 * w.landed},
		{"time", f.ReadNanos, w.landed},
		{"failed reads", f.FailedReads, w.failed},
	} {
		if c.got != c.want {
			w.t.Errorf("%s: %d, want %d", c.what, c.got, c.want)
		}
	}
	if f.PredictedUsed < 0 || f.PredictedUsed > f.PredictedReads || f.NeededPredicted > f.Needed || f.Canceled != w.withdrawn || f.Resident > f.Slots {
		w.t.Errorf("figures %+v", f)
	}
}

func TestModel(t *testing.T) {
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 0))
		cfg := Config{Layers: 1 + r.IntN(3), Experts: 1 + r.IntN(12), Slots: 1 + r.IntN(16), Transient: r.IntN(5)}
		t.Run(fmt.Sprintf("%d,%+v", seed, cfg.Slots), func(t *testing.T) {
			newWorld(t, cfg, r.IntN).play(300)
		})
		if t.Failed() {
			return
		}
	}
}

func FuzzModel(f *testing.F) {
	f.Add(uint8(2), uint8(8), uint8(2), uint8(0), []byte("issue, land, compute, finish, predict, abort, restart"))
	f.Add(uint8(1), uint8(3), uint8(9), uint8(3), []byte{0, 0, 1, 0, 5, 9, 15, 15, 2, 4, 4, 4, 6, 5})
	f.Fuzz(func(t *testing.T, layers, experts, slots, transient uint8, choices []byte) {
		cfg := Config{Layers: 1 + int(layers)%4, Experts: 1 + int(experts)%16, Slots: 1 + int(slots)%20, Transient: int(transient) % 8}
		i := 0
		// After the last of the choices the machine goes on with a fixed sequence, so that play ends.
		w := newWorld(t, cfg, func(n int) int {
			i++
			if i <= len(choices) {
				return int(choices[i-1]) % n
			}
			return i % n
		})
		w.play(min(len(choices), 400))
	})
}
