package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/cpuexperts"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
	"github.com/coli-moe/coli/tier"
	"github.com/coli-moe/coli/weights"
)

// SystemConfig says what the pipeline works with.
type SystemConfig struct {
	Layers, Experts int              // of the model; experts of a layer
	Records         *weights.Records // how experts are read; nil: all of them are in memory for good
	Slots           int              // experts that may be in memory at once
	Balance         balancer.Config  // how experts are read
	Probe           *probe.Probe     // of the drive, the caller's to close; nil: none
	Direct          prefetcher.Mode
	Threads         int                                                     // CPU threads, the engine's included
	History         []uint64                                                // pairs routed in earlier runs, by layer and expert; the hottest are read at the start
	Trace, Measure  bool                                                    // see Options; those of Runtime, if it is given, count
	Runtime         *Runtime                                                // where the actors live, with others' perhaps; nil: their own
	Note            func(string)                                            // a line for the user; called by any goroutine
	Open            func(path string, direct bool) (prefetcher.File, error) // tests: files that fail
}

// System is the pipeline of a model: the actors and the engine's side of a step. Step, Predict and Tokens are called by the engine's
// goroutine, one at a time; Figures by anyone.
type System struct {
	cfg     SystemConfig
	rt      *Runtime
	tier    *Ref
	disk    *Ref // nil if all experts are in memory
	cpu     *Ref // likewise
	policy  atomic.Pointer[messages.Policy]
	chosen  balancer.Log
	balance *Ref // nil if all experts are in memory, or there is nothing to balance
	pool    *cpuexperts.Pool
	reads   *prefetcher.Prefetcher
	memory  *prefetcher.Memory

	stop   context.CancelFunc // of the slots' paging in
	paging sync.WaitGroup

	gone     chan struct{} // closed when an actor is given up: no step is tried any more
	goneOnce sync.Once
	restarts atomic.Int32 // of the tier

	ctx    context.Context // of the steps
	steps  uint64
	hits   []int32
	usual  []int32  // scratch of PredictUsual
	counts []uint64 // pairs routed, by layer and expert
	waited atomic.Int64

	track     []*Track
	readTrack [prefetcher.MaxReaders]*Track // made by the reader of that number

	decisionTrack *Track
	decided       int64 // when the last decision was made
}

var _ interface {
	Describe(layer, expert int) (cpuexperts.Matrices, bool)
	Step(*cpuexperts.Work, cpuexperts.Splitter) error
} = (*System)(nil)

// NewSystem starts the actors. Close ends them.
func NewSystem(cfg SystemConfig) (_ *System, err error) {
	s := &System{cfg: cfg, gone: make(chan struct{}), ctx: context.Background(), counts: make([]uint64, cfg.Layers*cfg.Experts)}
	if s.rt = cfg.Runtime; s.rt == nil {
		s.rt = Start(Options{Trace: cfg.Trace, Measure: cfg.Measure})
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(context.Background()))
		}
	}()
	s.track = []*Track{s.rt.Track("engine: MoE steps", "layer", "rows", "experts", "missing")}
	config := tier.ActorConfig{Config: tier.Config{Layers: cfg.Layers, Experts: cfg.Experts}}
	if cfg.Records == nil {
		config.Data = func(messages.Key) []byte { return nil } // the engine has them: expert sets know where
	} else if err := s.stream(&config); err != nil {
		return nil, err
	}
	var actor *tier.Actor
	s.tier, err = s.rt.Spawn(Spec{
		Name: "tier", Resource: "expert RAM", OnEvent: s.event,
		New: func() (_ Receiver, err error) {
			if actor != nil { // after a panic: what is in memory stays
				s.restarts.Add(1) // before steps are told of it
				actor.Restart()
				return actor, nil
			}
			actor, err = tier.NewActor(config)
			return actor, err
		},
	})
	if err != nil {
		return nil, err
	}
	if cfg.Records != nil && len(cfg.History) > 0 {
		s.tier.Send(&tier.Warm{History: cfg.History})
	}
	return s, nil
}

// stream starts what a model larger than its memory needs: slots, the disk and the pool of CPU experts. Neither of these two actors is
// restarted: what they had in hand is not known any more, and the engine can do without them.
func (s *System) stream(config *tier.ActorConfig) (err error) {
	if s.memory, err = prefetcher.Arena(s.cfg.Slots, s.cfg.Records.SlotBytes()); err != nil {
		return err
	}
	for i := range s.cfg.Slots {
		config.Memory = append(config.Memory, s.memory.Slot(i))
	}
	// First touches are slow, and slower still inside a read; reads may go on meanwhile.
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.paging.Go(func() {
		_ = s.memory.Populate(ctx, 1) // what is not paged in is when it is touched
	})
	toTier, err := s.rt.Declare("tier")
	if err != nil {
		return err
	}
	s.disk, err = s.rt.Spawn(Spec{
		Name: "prefetcher", Resource: "disk", Policy: GiveUp, OnEvent: s.event,
		New: func() (Receiver, error) {
			cfg := prefetcher.Config{
				Source: s.cfg.Records, Readers: s.cfg.Balance.Start.Readers, Direct: s.cfg.Direct, Tier: toTier, Note: s.cfg.Note, Open: s.cfg.Open,
				Trace: s.tracer(),
			}
			if s.cfg.Probe != nil {
				cfg.Begin, cfg.Observe = s.cfg.Probe.Begin, s.cfg.Probe.Observe
			}
			p, err := prefetcher.New(cfg)
			s.reads = p
			return p, err
		},
	})
	if err != nil {
		return err
	}
	s.cpu, err = s.rt.Spawn(Spec{
		Name: "cpu experts", Resource: "CPU experts", Policy: GiveUp, OnEvent: s.event,
		New: func() (_ Receiver, err error) {
			s.pool, err = cpuexperts.NewPool(s.cfg.Threads)
			return s.pool, err
		},
	})
	if err != nil {
		return err
	}
	config.Prefetcher, config.CPU = s.disk, s.cpu
	return s.startBalancer()
}

// startBalancer puts the first policy in force, and starts the balancer if there is more to decide. It and the probe may fail: then the
// last decision stands.
func (s *System) startBalancer() error {
	s.decisionTrack = s.rt.Track("balancer: decisions", "readers", "depth", "horizon")
	config := balancer.ActorConfig{Config: s.cfg.Balance, Apply: s.SetPolicy, Log: &s.chosen, Decide: s.decide}
	if s.cfg.Balance.Fixed() {
		balancer.NewActor(config)
		return nil
	}
	self, err := s.rt.Declare("balancer")
	if err != nil {
		return err
	}
	config.Self = self
	if s.cfg.Probe != nil {
		asked, err := s.rt.Spawn(Spec{
			Name: "probe", Resource: "figures of the drive", Policy: GiveUp,
			OnEvent: func(e Event) {
				s.say(e.String() + ", and how experts are read is decided from the times of steps alone")
			},
			New: func() (Receiver, error) { return probe.NewActor(s.cfg.Probe), nil },
		})
		if err != nil {
			return err
		}
		config.Probe = asked
	}
	s.balance, err = s.rt.Spawn(Spec{
		Name: "balancer", Resource: "how experts are read", Policy: GiveUp,
		New: func() (Receiver, error) { return balancer.NewActor(config), nil },
		OnEvent: func(e Event) {
			s.SetPolicy(s.chosen.Last().Policy) // not what it was trying
			s.say(e.String() + ", and experts are read as was decided last")
		},
	})
	return err
}

func (s *System) say(line string) {
	if s.cfg.Note != nil {
		s.cfg.Note(line)
	}
}

// decide records a decision: the span is the time that led to it.
func (s *System) decide(d balancer.Decision) {
	now := s.decisionTrack.Now()
	s.decisionTrack.Span(d.Reason, s.decided, now, 0, [4]int64{int64(d.Policy.Readers), int64(d.Policy.Depth), int64(d.Policy.Horizon)})
	s.decided = now
}

// SetPolicy has experts read in this way, until the balancer decides otherwise. Any goroutine may call it.
func (s *System) SetPolicy(p messages.Policy) {
	s.policy.Store(&p)
	if s.disk != nil {
		s.disk.Send(&messages.Policy{ID: p.ID, Readers: p.Readers, Depth: p.Depth, Horizon: p.Horizon})
	}
}

// Policy is how experts are read now; zero if all are in memory. Any goroutine may call it.
func (s *System) Policy() messages.Policy {
	if p := s.policy.Load(); p != nil {
		return *p
	}
	return messages.Policy{}
}

// Decisions are the balancer's newest ones with their reasons, oldest first; the first is what it began with. Any goroutine may call it.
func (s *System) Decisions() []balancer.Decision { return s.chosen.Decisions() }

// LastDecision is the newest of Decisions.
func (s *System) LastDecision() balancer.Decision { return s.chosen.Last() }

// Beginning is what the end of a step is compared with.
type Beginning struct {
	at     time.Time
	waited int64
	reads  prefetcher.Stats
	policy uint64
}

// Begin is called before a step of a model that streams, with the policy that it is made under.
func (s *System) Begin(p messages.Policy) Beginning {
	return Beginning{time.Now(), s.waited.Load(), s.reads.Stats(), p.ID}
}

// Decoded tells the balancer what a decode step took.
func (s *System) Decoded(b Beginning) {
	if s.balance == nil {
		return
	}
	m := messages.TookPool.Get()
	now := s.reads.Stats()
	m.Nanos, m.Waited, m.Policy = int64(time.Since(b.at)), s.waited.Load()-b.waited, b.policy
	m.Reading, m.ReadNanos = int64(now.Busy-b.reads.Busy), int64(now.Took-b.reads.Took)
	m.Reads, m.Bytes = now.Reads-b.reads.Reads, now.Bytes-b.reads.Bytes
	s.balance.Send(m)
}

// tracer records reads on the tracks of their readers.
func (s *System) tracer() func(int, *messages.Landed, prefetcher.Times) {
	if !s.cfg.Trace {
		return nil
	}
	names := [...]string{messages.Demand: "read on demand", messages.Predicted: "predicted read", messages.Warm: "read from history"}
	return func(reader int, l *messages.Landed, t prefetcher.Times) {
		if s.readTrack[reader] == nil {
			s.readTrack[reader] = s.rt.Track(fmt.Sprintf("reader %d", reader), "layer", "expert", "bytes")
		}
		k := s.readTrack[reader]
		end := k.Now()
		k.Span(names[l.Priority], end-int64(t.End.Sub(t.Begin)), end, l.Flow, [4]int64{int64(l.Key.Layer), int64(l.Key.Expert), l.Bytes})
	}
}

// event says what happened, and with it what becomes of the steps under way and to come: their errors need not be said again.
func (s *System) event(e Event) {
	line := e.String()
	if e.Kind == GaveUp {
		line += ": experts are computed from the mapped file from now on"
		defer s.goneOnce.Do(func() { close(s.gone) })
	}
	s.say(line)
}

// Streams says whether experts are read from disk; otherwise all are in memory.
func (s *System) Streams() bool { return s.cfg.Records != nil }

// Describe returns the matrices of an expert as they lie in its record; ok is false if all experts are in memory.
func (s *System) Describe(layer, expert int) (m cpuexperts.Matrices, ok bool) {
	if s.cfg.Records == nil {
		return m, false
	}
	r, err := s.cfg.Records.Record(layer, expert)
	if err != nil {
		panic(err) // the model's own tables: every routed expert has a record
	}
	for i, x := range [3]*weights.Matrix{&r.Gate, &r.Up, &r.Down} {
		*[3]*ops.Matrix{&m.Gate, &m.Up, &m.Down}[i] = ops.Matrix{Format: x.Format, Rows: x.Rows, Cols: x.Cols, RowBytes: x.RowBytes}
		m.At[i] = x.Offset
	}
	return m, true
}

// The errors of steps that an actor's panic has ended; SystemConfig.Note was told of it, or is about to be.
var (
	ErrGone      = errors.New("the expert pipeline has stopped") // for good, now or before the step
	ErrRestarted = errors.New("an actor was started again")      // the next step may go well
)

// Within makes the steps that follow end early, with ctx's error, when ctx is done before their experts have been read.
func (s *System) Within(ctx context.Context) { s.ctx = ctx }

// Step computes every run of w: it issues the step to the tier, computes with team the experts that are in memory, and then, beside the
// pool, those that land. After an error nothing touches w's memory any more, and w must not be used again.
func (s *System) Step(w *cpuexperts.Work, team cpuexperts.Splitter) error {
	select {
	case <-s.gone:
		return ErrGone
	default:
	}
	s.steps++
	step := &w.Step
	step.ID = s.steps
	step.Split.Reset()
	restarts := s.restarts.Load()
	for _, u := range step.Uses {
		s.counts[int(step.Layer)*s.cfg.Experts+int(u.Expert)] += uint64(u.Rows)
	}
	if s.pool != nil {
		s.pool.Open(w, s.tier)
	}
	aborted := true // also if computing panics, which a weight file that is mapped and cannot be read any more makes it do
	defer func() {
		if s.pool != nil {
			s.pool.End(w) // before Finish, which frees the slots that are read until now
		}
		finish := messages.Finishes.Get()
		finish.Flow, finish.Step, finish.Aborted = s.steps, step.ID, aborted
		s.tier.Send(finish)
	}()
	start := s.track[0].Now()
	issue := messages.Issues.Get()
	issue.Flow, issue.Step = s.steps, step
	s.tier.Send(issue)
	err := step.Split.Wait(s.tier.Dead())
	missing := 0
	if err == nil {
		missing, err = s.compute(w, team)
	}
	aborted = err != nil
	if s.cfg.Trace {
		s.track[0].Span("step", start, s.track[0].Now(), s.steps, [4]int64{int64(step.Layer), int64(step.Rows), int64(len(step.Uses)), int64(missing)})
	}
	if err != nil {
		return s.blame(err, restarts)
	}
	return nil
}

// blame returns the error of a step that began after so many restarts of the tier.
func (s *System) blame(err error, restarts int32) error {
	select {
	case <-s.gone:
		return fmt.Errorf("%w: %w", ErrGone, err)
	default:
	}
	if errors.Is(err, messages.ErrStopped) { // an actor is gone, and the system about to hear of it
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	if failure := (*Failure)(nil); errors.As(err, &failure) || s.restarts.Load() != restarts {
		return fmt.Errorf("%w: %w", ErrRestarted, err)
	}
	return err
}

// compute is Step after the split.
func (s *System) compute(w *cpuexperts.Work, team cpuexperts.Splitter) (missing int, err error) {
	s.hits = s.hits[:0]
	for i, u := range w.Step.Uses {
		switch {
		case s.cfg.Records == nil:
		case u.Where == messages.InMemory:
			w.Attach(i, u.Data)
		default:
			missing++
			continue
		}
		s.hits = append(s.hits, int32(i))
	}
	if s.cfg.Records == nil {
		w.Tiled(team, s.hits)
		return 0, nil
	}
	w.Hits(team, s.hits)
	waited, err := w.Land(s.ctx, s.gone)
	s.waited.Add(int64(waited))
	return missing, err
}

// Predict tells the tier which experts a layer will probably use, most probable first.
func (s *System) Predict(layer int, experts []int32) {
	if s.cfg.Records == nil {
		return
	}
	m := messages.Predicts.Get()
	m.Set(int32(layer), experts)
	s.tier.Send(m)
}

// PredictUsual predicts the n experts that a layer used most, in this run and those of the history: for the layer that no other comes
// before.
func (s *System) PredictUsual(layer, n int) {
	from := layer * s.cfg.Experts
	counts := s.counts[from : from+s.cfg.Experts]
	var history []uint64
	if len(s.cfg.History) > from {
		history = s.cfg.History[from : from+s.cfg.Experts]
	}
	s.usual = s.usual[:0]
	for range min(n, len(counts)) {
		best, most := -1, uint64(0)
		for e, c := range counts {
			if history != nil {
				c += history[e]
			}
			if c > most && !slices.Contains(s.usual, int32(e)) {
				best, most = e, c
			}
		}
		if best < 0 {
			break
		}
		s.usual = append(s.usual, int32(best))
	}
	s.Predict(layer, s.usual)
}

// Tokens tells the tier that n tokens have been computed.
func (s *System) Tokens(n int) {
	m := messages.TokensPool.Get()
	m.N = int32(n)
	s.tier.Send(m)
}

// Figures are what the pipeline has done since it was started.
type Figures struct {
	messages.TierFigures
	Waited  time.Duration // the engine's, for the disk, with nothing to compute
	Reading time.Duration // while at least one read was in flight
	Read    int64         // bytes
}

// Since returns what was done after begin. Slots, residents and warm reads are f's: the last belong to the load, however long they take.
func (f Figures) Since(begin Figures) Figures {
	t, b := &f.TierFigures, &begin.TierFigures
	for _, x := range [...]struct {
		now  *int64
		then int64
	}{
		{&t.PairsInMemory, b.PairsInMemory},
		{&t.PairsInFlight, b.PairsInFlight},
		{&t.PairsOnDisk, b.PairsOnDisk},
		{&t.Promotions, b.Promotions},
		{&t.Evictions, b.Evictions},
		{&t.DemandReads, b.DemandReads},
		{&t.PredictedReads, b.PredictedReads},
		{&t.PredictedUsed, b.PredictedUsed},
		{&t.Needed, b.Needed},
		{&t.NeededPredicted, b.NeededPredicted},
		{&t.BytesRead, b.BytesRead},
		{&t.ReadNanos, b.ReadNanos},
		{&t.Canceled, b.Canceled},
		{&t.FailedReads, b.FailedReads},
		{&f.Read, begin.Read},
	} {
		*x.now -= x.then
	}
	f.Waited -= begin.Waited
	f.Reading -= begin.Reading
	return f
}

// Figures asks the actors for their counters.
func (s *System) Figures() (Figures, error) { return s.Ask(context.Background()) }

// Ask returns Figures, unless ctx ends before the actors have answered.
func (s *System) Ask(ctx context.Context) (Figures, error) {
	if ctx.Err() != nil {
		return Figures{}, context.Cause(ctx)
	}
	m := new(messages.Figures)
	m.Reset()
	s.tier.Send(m)
	var err error
	select {
	case err = <-m.C():
	case <-s.tier.Dead():
		err = m.Wait(s.tier.Dead())
	case <-ctx.Done():
		return Figures{}, context.Cause(ctx)
	}
	f := Figures{TierFigures: m.Tier, Waited: time.Duration(s.waited.Load())}
	st := s.Reads()
	f.Read, f.Reading = st.Bytes, st.Busy
	return f, err
}

// Reads counts the reads of experts, also of those that are under way. Any goroutine may call it.
func (s *System) Reads() prefetcher.Stats {
	if s.reads == nil {
		return prefetcher.Stats{}
	}
	return s.reads.Stats()
}

// Repeated counts the reads that failed and went well when they were repeated, or are being repeated.
func (s *System) Repeated() int64 {
	st := s.Reads()
	return max(0, st.Retried-st.Failed)
}

// Count adds pairs that were computed elsewhere, the experts routed to in a layer: heat knows no place. For the engine's goroutine.
func (s *System) Count(layer int, experts []int32) {
	for _, e := range experts {
		s.counts[layer*s.cfg.Experts+int(e)]++
	}
}

// Counts are the pairs routed since the start, by layer and expert. For the engine's goroutine.
func (s *System) Counts() []uint64 { return s.counts }

// Recount sets the counts back to earlier ones, before a step is done again. For the engine's goroutine.
func (s *System) Recount(counts []uint64) { copy(s.counts, counts) }

// Close stops the actors in the order of the data flow, then what else lives in their runtime, and frees the slots. No step may be under
// way.
func (s *System) Close(ctx context.Context) error {
	var order []*Ref
	for _, r := range []*Ref{s.tier, s.disk, s.cpu} {
		if r != nil {
			order = append(order, r)
		}
	}
	err := s.rt.Stop(ctx, order...)
	if s.stop != nil {
		s.stop()
		s.paging.Wait()
	}
	if s.memory != nil && err == nil { // a reader that hangs may still write
		err = s.memory.Close()
	}
	return err
}
