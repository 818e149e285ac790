package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/model"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/cpu"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/weights"
)

// MailboxTests are what NewMailbox can measure.
var MailboxTests = []string{"latency", "throughput", "step"}

// MailboxConfig says what NewMailbox compares.
type MailboxConfig struct {
	Tests          []string // of MailboxTests
	Model          string   // whose MoE steps are made; its experts must fit in memory
	Threads        []int    // of the steps
	Memory         int64    // for the experts of a model; 0: not known
	Measure, Trace []bool   // actors.Options
	Time           time.Duration
	Seed           uint64
}

// NewMailbox is the experiment "mailbox": what the actors of this program cost, on the runtime and the pipeline that decoding uses. The
// latency of a message is measured with one at a time, to an actor that parks when it has nothing to do and to one that spins, from a
// sender that waits for the answer and from one that goes on computing; throughput with many on their way; and a MoE step with all experts
// in memory, mapped and in slots, against the same work without actors.
func NewMailbox(cfg MailboxConfig) (Experiment, error) {
	for _, test := range cfg.Tests {
		if !slices.Contains(MailboxTests, test) {
			return nil, badSetting("no test is called %q", test)
		}
	}
	if slices.Contains(cfg.Tests, "step") { // before the other tests' time is spent
		c, err := weights.Open(cfg.Model)
		if err != nil {
			return nil, err
		}
		if err := c.Close(); err != nil {
			return nil, err
		}
	}
	return &mailboxExperiment{cfg}, nil
}

type mailboxExperiment struct{ cfg MailboxConfig }

func (*mailboxExperiment) Name() string { return "mailbox" }

func (*mailboxExperiment) Metrics() []Metric {
	return []Metric{
		{Name: "wait p50", Unit: "ns", Help: "from Send until the receiver has the message: half of them took no longer", Better: -1, Table: true},
		{Name: "wait p99", Unit: "ns", Help: "99 % of them took no longer", Better: -1, Table: true},
		{Name: "round p50", Unit: "ns", Help: "from Send until the sender has been answered", Better: -1, Table: true},
		{Name: "round p99", Unit: "ns", Help: "99 % of them took no longer", Better: -1},
		{Name: "ns/op", Unit: "ns/op", Help: "mean time by message, or by step of a layer", Better: -1, Table: true},
		{Name: "ops/s", Unit: "1/s", Help: "messages, or steps of a layer", Better: 1},
		{Name: "step p50", Unit: "ns", Help: "a layer's step: router, prediction, experts; the mean over the layers of a token, half of the tokens took no longer", Better: -1},
		{Name: "step p99", Unit: "ns", Help: "99 % of the tokens took no longer", Better: -1},
		{Name: "over direct", Unit: "ns", Help: "how much longer the median step takes than the same work without actors", Better: -1, Table: true},
		{Name: "allocs/op", Unit: "allocs/op", Help: "allocations by message, or by step of a layer", Better: -1, Table: true, Digits: 2},
	}
}

func (e *mailboxExperiment) Arms() (arms []Arm) {
	add := func(test, actor string, threads int, o actors.Options, open func() (Run, error)) {
		params := []Param{{"actor", actor}, {"threads", ""}, {"measure", onOff(o.Measure)}, {"trace", onOff(o.Trace)}}
		if threads > 0 {
			params[1].Value = strconv.Itoa(threads)
		}
		arms = append(arms, Arm{Test: test, Params: params, Open: func(context.Context) (Run, error) { return open() }})
	}
	for _, test := range e.cfg.Tests {
		for _, measured := range e.cfg.Measure {
			for _, traced := range e.cfg.Trace {
				o := actors.Options{Measure: measured, Trace: traced}
				switch test {
				case "latency":
					for _, s := range []struct {
						actor string
						spin  time.Duration
					}{{"parks", 0}, {"spins", time.Second}} { // as long as the runtime allows
						add("message, sender waits", s.actor, 0, o, func() (Run, error) { return startMessages(e.cfg.Time, o, s.spin, oneByOne(0)) })
						add("message, sender computes", s.actor, 0, o, func() (Run, error) { return startMessages(e.cfg.Time, o, s.spin, oneByOne(computing)) })
					}
				case "throughput":
					add("messages in a row", "parks", 0, o, func() (Run, error) { return startMessages(e.cfg.Time, o, 0, manyAtOnce) })
				case "step":
					for _, threads := range e.cfg.Threads {
						add("MoE step, experts mapped", "", threads, o, func() (Run, error) { return e.startSteps(threads, o, false) })
						add("MoE step, experts in slots", "", threads, o, func() (Run, error) { return e.startSteps(threads, o, true) })
					}
				}
			}
		}
	}
	return arms
}

// ping is a message that is answered by its join.
type ping struct {
	messages.Header
	messages.Join
	arrived time.Time
}

// notice is a message that nobody waits for.
type notice struct{ messages.Header }

// pong answers pings.
type pong struct{}

func (pong) Receive(m messages.Message) {
	if p, ok := m.(*ping); ok {
		p.arrived = time.Now()
		p.Done()
	}
}

// messagesRun is an open arm that sends messages to one actor.
type messagesRun struct {
	rt    *actors.Runtime
	to    *actors.Ref
	time  time.Duration
	drive driver
}

// driver sends messages to an actor for some time.
type driver func(ctx context.Context, to *actors.Ref, d time.Duration) (Sample, error)

func startMessages(d time.Duration, o actors.Options, spin time.Duration, drive driver) (Run, error) {
	r := &messagesRun{rt: actors.Start(o), time: d, drive: drive}
	var err error
	if r.to, err = r.rt.Spawn(actors.Spec{Name: "pong", Spin: spin, New: func() (actors.Receiver, error) { return pong{}, nil }}); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *messagesRun) Warm(ctx context.Context) error {
	_, err := r.drive(ctx, r.to, r.time/10)
	return err
}

func (r *messagesRun) Measure(ctx context.Context, _ int) (Sample, error) {
	return r.drive(ctx, r.to, r.time)
}

func (r *messagesRun) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopping)
	defer cancel()
	return r.rt.Stop(ctx)
}

// stopping is how long actors get to end.
const stopping = 10 * time.Second

// computing is how long a sender that does not wait computes after it has sent: longer than a parked actor takes to begin.
const computing = 60 * time.Microsecond

// oneByOne sends one message at a time, and computes for so long before it waits for the answer.
func oneByOne(compute time.Duration) driver {
	return func(ctx context.Context, to *actors.Ref, d time.Duration) (Sample, error) {
		wait, round := newTimes(), newTimes()
		m := new(ping)
		before := mallocs()
		start := time.Now()
		sent := start
		for ; sent.Sub(start) < d; sent = time.Now() {
			if err := ctx.Err(); err != nil {
				return Sample{}, err
			}
			m.Reset()
			to.Send(m)
			for compute > 0 && time.Since(sent) < compute { // compute
			}
			if err := m.Wait(to.Dead()); err != nil {
				return Sample{}, err
			}
			round.add(time.Since(sent))
			wait.add(m.arrived.Sub(sent))
		}
		took, n := sent.Sub(start), float64(wait.TotalCount())
		s := Sample{Values: map[string]float64{
			"wait p50": wait.at(50), "wait p99": wait.at(99), "allocs/op": float64(mallocs()-before) / n,
		}}
		if compute == 0 { // the sender's computing is no cost of messages
			s.Values["round p50"], s.Values["round p99"] = round.at(50), round.at(99)
			s.rate(took, n)
		}
		return s, nil
	}
}

// inARow is how many messages are sent before one is waited for.
const inARow = 1000

// manyAtOnce sends messages in a row, and waits for the last of them.
func manyAtOnce(ctx context.Context, to *actors.Ref, d time.Duration) (Sample, error) {
	row, last := make([]notice, inARow-1), new(ping)
	before := mallocs()
	start := time.Now()
	n, took := 0, time.Duration(0)
	for ; took < d; took = time.Since(start) {
		if err := ctx.Err(); err != nil {
			return Sample{}, err
		}
		for i := range row {
			to.Send(&row[i])
		}
		last.Reset()
		to.Send(last)
		if err := last.Wait(to.Dead()); err != nil { // and with it all before
			return Sample{}, err
		}
		n += inARow
	}
	s := Sample{Values: map[string]float64{"allocs/op": float64(mallocs()-before) / float64(n)}}
	s.rate(took, float64(n))
	return s, nil
}

func (s *Sample) rate(took time.Duration, n float64) {
	s.Values["ns/op"], s.Values["ops/s"] = float64(took.Nanoseconds())/n, n/took.Seconds()
}

// mallocs counts the allocations of this process.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// times are durations up to a second, to three digits.
type times struct{ *hdrhistogram.Histogram }

func newTimes() times { return times{hdrhistogram.New(1, int64(time.Second), 3)} }

func (t times) add(d time.Duration) {
	_ = t.RecordValue(min(max(int64(d), 1), int64(time.Second))) // in its range
}

// at is the time, in nanoseconds, that so many percent did not exceed.
func (t times) at(percent float64) float64 { return float64(t.ValueAtQuantile(percent)) }

// stepsRun is an open arm that makes MoE steps of a model.
type stepsRun struct {
	e       *mailboxExperiment
	c       *weights.Checkpoint
	exec    *cpu.Executor
	sys     *actors.System
	sets    []ops.ExpertSet // of the layers that have routed experts
	experts int             // of a layer
	hidden  int
	params  router.Params
	rng     *rand.Rand
	x       []float32
	logits  []float32
	failed  error
}

// startSteps loads a model's experts, and has them in memory.
func (e *mailboxExperiment) startSteps(threads int, o actors.Options, slots bool) (_ Run, err error) {
	r := &stepsRun{e: e, rng: rand.New(rand.NewPCG(e.cfg.Seed, 0))}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if r.c, err = weights.Open(e.cfg.Model); err != nil {
		return nil, err
	}
	net, err := model.Load(r.c)
	if err != nil {
		return nil, err
	}
	cfg, err := r.c.Config()
	if err != nil {
		return nil, err
	}
	var layers []int
	for il := range net.Layers() {
		if set := net.Experts(il); set != nil {
			layers, r.sets = append(layers, il), append(r.sets, set)
			r.experts = max(r.experts, set.Len())
		}
	}
	if len(layers) == 0 {
		return nil, fmt.Errorf("%s has no routed experts; try another model, or --test latency,throughput", e.cfg.Model)
	}
	gate, _, _ := r.sets[0].Expert(0)
	r.hidden = gate.Cols
	r.params = router.Params{Gating: router.SoftmaxTopK, TopK: cfg.NumExpertsPerTok}
	r.x, r.logits = make([]float32, r.hidden), make([]float32, r.experts)
	for i := range r.x {
		r.x[i] = float32(i%7) - 3
	}
	system := actors.SystemConfig{
		Layers: net.Layers(), Experts: r.experts, Threads: threads, Trace: o.Trace, Measure: o.Measure,
		Balance: balancer.Fixed(prefetcher.DefaultReaders, r.params.TopK, 1),
	}
	if slots {
		if system.Records, err = r.c.Records(layers, r.experts); err != nil {
			return nil, err
		}
		system.Slots = len(layers) * r.experts
		if need := int64(system.Slots) * system.Records.SlotBytes(); e.cfg.Memory > 0 && need > e.cfg.Memory {
			return nil, fmt.Errorf("%w: all experts of %s need %s of memory, and %s may be used", ErrSkip, filepath.Base(e.cfg.Model),
				ledger.FormatSize(need), ledger.FormatSize(e.cfg.Memory))
		}
	}
	if r.sys, err = actors.NewSystem(system); err != nil {
		return nil, err
	}
	r.exec = cpu.New(threads)
	if slots {
		return r, r.fill()
	}
	return r, nil
}

// fill uses each expert, until all are in memory.
func (r *stepsRun) fill() error {
	all := int64(len(r.sets) * r.experts)
	r.use(true)
	for range 8 {
		for first := 0; first < r.experts; first += r.params.TopK {
			r.token(func(layer int) {
				for i := range r.logits {
					r.logits[i] = 0
					if i >= first && i < first+r.params.TopK {
						r.logits[i] = 1
					}
				}
			})
		}
		f, err := r.sys.Figures()
		if err = errors.Join(err, r.failed); err != nil || f.Resident == all {
			return err
		}
	}
	return fmt.Errorf("the experts of %s do not stay in memory", r.e.cfg.Model)
}

// use has the steps that follow made through the pipeline, or without.
func (r *stepsRun) use(pipeline bool) {
	if pipeline {
		r.exec.Use(r.sys, func(err error) { r.failed = errors.Join(r.failed, err) })
	} else {
		r.exec.Use(nil, nil)
	}
}

// token makes the MoE steps of one token, layer by layer, as decoding does. route sets a layer's logits.
func (r *stepsRun) token(route func(layer int)) {
	r.exec.Reset()
	for i, set := range r.sets {
		route(i)
		in := r.exec.Upload("x", set.Layer(), 1, r.hidden, r.x)
		routes := r.exec.Route(r.exec.Upload("logits", set.Layer(), 1, set.Len(), r.logits[:set.Len()]), r.params)
		if i+1 < len(r.sets) {
			r.sys.Predict(r.sets[i+1].Layer(), routes.IDs)
		}
		r.exec.Experts(r.exec.New("out", set.Layer(), 1, r.hidden), in, routes, set, ops.SiLU)
	}
	r.sys.Tokens(1)
}

// anyExperts routes to experts by chance.
func (r *stepsRun) anyExperts(int) {
	for i := range r.logits {
		r.logits[i] = r.rng.Float32()
	}
}

func (r *stepsRun) Warm(ctx context.Context) error {
	_, err := r.steps(ctx, r.e.cfg.Time/10)
	return err
}

func (r *stepsRun) Measure(ctx context.Context, rep int) (Sample, error) {
	r.rng = rand.New(rand.NewPCG(r.e.cfg.Seed, uint64(rep)))
	return r.steps(ctx, r.e.cfg.Time)
}

// turn is how many tokens are made with actors, and then without.
const turn = 50

// steps makes steps for some time, through the pipeline and without it in turns.
func (r *stepsRun) steps(ctx context.Context, d time.Duration) (Sample, error) {
	begin, err := r.sys.Figures()
	if err != nil {
		return Sample{}, err
	}
	with, without := newTimes(), newTimes()
	var sum time.Duration
	var allocated uint64
	for start := time.Now(); time.Since(start) < d || with.TotalCount() == 0; {
		for _, pipeline := range []bool{true, false} {
			if err := errors.Join(ctx.Err(), r.failed); err != nil {
				return Sample{}, err
			}
			r.use(pipeline)
			before := mallocs()
			for range turn {
				began := time.Now()
				r.token(r.anyExperts)
				took := time.Since(began) / time.Duration(len(r.sets))
				if pipeline {
					with.add(took)
					sum += took
				} else {
					without.add(took)
				}
			}
			if pipeline {
				allocated += mallocs() - before
			}
		}
	}
	now, err := r.sys.Figures()
	if err != nil {
		return Sample{}, err
	}
	n := float64(with.TotalCount())
	s := Sample{Values: map[string]float64{
		"step p50": with.at(50), "step p99": with.at(99), "over direct": with.at(50) - without.at(50),
		"allocs/op": float64(allocated) / n / float64(len(r.sets)),
	}}
	s.rate(sum, n)
	if now.Since(begin).Read > 0 {
		s.Notes = append(s.Notes, "not all experts stayed in memory: some were read meanwhile")
	}
	return s, nil
}

func (r *stepsRun) Close() (err error) {
	if r.sys != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopping)
		defer cancel()
		err = r.sys.Close(ctx)
	}
	if r.exec != nil {
		r.exec.Close()
	}
	if r.c != nil {
		err = errors.Join(err, r.c.Close())
	}
	return err
}
