package actors

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/cpuexperts"
	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/model"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/cpu"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/weights"
)

// rig is a small model whose experts come through a system, computed from the mapped file when that fails, as the engine does it.
type rig struct {
	t       testing.TB
	c       *weights.Checkpoint
	net     model.Model
	exec    *cpu.Executor
	sys     *System
	layers  int
	experts int
	records *weights.Records
	notes   log
	failed  []error
	before  func() // each layer
	predict bool
}

const (
	allInMemory = -1 // slots: the experts are the checkpoint's
	tightSlots  = 6
)

func newRig(t testing.TB, threads, slots int, change func(*SystemConfig)) *rig {
	t.Helper()
	sharedtest.Leaks(t)
	r := &rig{t: t, before: func() {}, predict: true}
	var err error
	if r.c, err = weights.Open(sharedtest.Testdata("oracles", "olmoe")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.c.Close() })
	if r.net, err = model.Load(r.c); err != nil {
		t.Fatal(err)
	}
	r.exec = cpu.New(threads)
	t.Cleanup(r.exec.Close)
	r.layers, r.experts = r.net.Layers(), r.net.Experts(0).Len()
	layers := make([]int, r.layers)
	for il := range layers {
		layers[il] = il
	}
	if r.records, err = r.c.Records(layers, r.experts); err != nil {
		t.Fatal(err)
	}
	cfg := SystemConfig{
		Layers: r.layers, Experts: r.experts, Records: r.records, Slots: slots, Balance: balancer.Fixed(2, 8, 1), Threads: threads, Direct: prefetcher.Off,
		Note: func(line string) { r.notes.add("%s", line) },
	}
	if slots == allInMemory {
		cfg.Records = nil
	}
	if change != nil {
		change(&cfg)
	}
	if r.sys, err = NewSystem(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	r.use(r.sys)
	r.notes = log{} // how the files are read
	return r
}

func (r *rig) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.sys.Close(ctx); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) use(p cpu.Pipeline) {
	r.exec.Use(p, func(err error) {
		r.failed = append(r.failed, err)
		if errors.Is(err, ErrGone) {
			r.exec.Use(nil, nil)
		}
	})
}

// run computes a prompt and some tokens after it, and returns all logits on the way.
func (r *rig) run() (out []float32) {
	st := model.Step{State: make([][]*ops.KV, r.layers)}
	if r.predict {
		st.Predict, st.Depth, st.Horizon = r.sys.Predict, 8, 1
	}
	for il := range st.State {
		st.State[il] = []*ops.KV{ops.NewKV(r.net.State(il))}
	}
	pos := 0
	for _, n := range []int{9, 1, 1, 1, 5, 1, 1, 1, 1, 1} {
		r.exec.Reset()
		st.Tokens, st.Places = st.Tokens[:0], st.Places[:0]
		rows := make([]int, n)
		for i := range n {
			st.Tokens, st.Places = append(st.Tokens, int32(3+pos*37%300)), append(st.Places, ops.Place{Pos: pos})
			rows[i] = i
			pos++
		}
		x := r.net.Embed(r.exec, &st)
		for il := range r.layers {
			r.before()
			x = r.net.Layer(r.exec, &st, il, x)
		}
		out = append(out, r.net.Head(r.exec, &st, x, rows).Data...)
		r.sys.Tokens(n)
	}
	return out
}

// want are the logits of a run without a system.
func want(t testing.TB) []float32 {
	r := newRig(t, 1, allInMemory, nil)
	r.exec.Use(nil, nil)
	return r.run()
}

// openCached is prefetcher.Config.Open with a hook: read is called before each read through the returned files.
func openCached(read func()) func(string, bool) (prefetcher.File, error) {
	return func(path string, _ bool) (prefetcher.File, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		return &hooked{f, read}, nil
	}
}

type hooked struct {
	*os.File
	read func()
}

func (f *hooked) ReadAt(p []byte, off int64) (int, error) {
	f.read()
	return f.File.ReadAt(p, off)
}

func (f *hooked) Stat() (prefetcher.Stamp, error) {
	i, err := f.File.Stat()
	if err != nil {
		return prefetcher.Stamp{}, err
	}
	return prefetcher.Stamp{Size: i.Size(), ModifiedNanos: i.ModTime().UnixNano()}, nil
}

func (f *hooked) Drop(int64, int64) {}

// TestSystem: wherever the experts are, the logits have the bits of a run without the pipeline.
func TestSystem(t *testing.T) {
	want := want(t)
	for _, slots := range []int{allInMemory, 1, tightSlots, 48} {
		for _, threads := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d slots, %d threads", slots, threads), func(t *testing.T) {
				r := newRig(t, threads, slots, nil)
				if !slices.Equal(r.run(), want) {
					t.Error("the logits differ")
				}
				if len(r.failed) > 0 || r.notes.String() != "" {
					t.Errorf("errors %v, lines %q", r.failed, &r.notes)
				}
				f, err := r.sys.Figures()
				if pairs := f.PairsInMemory + f.PairsInFlight + f.PairsOnDisk; err != nil || pairs != r.exec.Stats().Pairs {
					t.Errorf("%v; %d pairs, of %d computed", err, pairs, r.exec.Stats().Pairs)
				}
			})
		}
	}
}

// TestActorsPanic has each actor panic, between steps and while a step waits for its reads: the logits stay the same, and each panic is
// one line. The tier is started again and the pipeline goes on; without one of the others experts come from the mapped file.
func TestActorsPanic(t *testing.T) {
	want := want(t)
	const (
		onTier = "actor tier (expert RAM) panicked on Issue: runtime error: invalid memory address or nil pointer dereference; started again"
		onDisk = "actor prefetcher (disk) stopped: panicked on notice: prefetcher: message *actors.notice; " +
			"coli goes on without it: experts are computed from the mapped file from now on"
		onCPU = "actor cpu experts (CPU experts) stopped: panicked on notice: cpuexperts: unexpected message *actors.notice; " +
			"coli goes on without it: experts are computed from the mapped file from now on"
		tierGone = "actor tier (expert RAM) stopped: panicked on Issue: runtime error: invalid memory address or nil pointer dereference, " +
			"after 5 restarts within 1m0s; coli goes on without it: experts are computed from the mapped file from now on"
	)
	lines := func(n int, line string, more ...string) []string {
		return append(slices.Repeat([]string{line}, n), more...)
	}
	tier := func(s *System) { s.tier.Send(&messages.Issue{}) }
	disk := func(s *System) { s.disk.Send(&notice{}) }
	pool := func(s *System) { s.cpu.Send(&notice{}) }
	for _, tt := range []struct {
		name  string
		panic func(*System)
		times int
		lines []string
		gone  func(*System) *Ref
	}{
		{"tier", tier, 1, lines(1, onTier), nil},
		{"tier, several times", tier, 4, lines(4, onTier), nil},
		{"tier, too often", tier, 8, lines(5, onTier, tierGone), func(s *System) *Ref { return s.tier }},
		{"prefetcher", disk, 1, lines(1, onDisk), func(s *System) *Ref { return s.disk }},
		{"prefetcher, several times", disk, 3, lines(1, onDisk), func(s *System) *Ref { return s.disk }},
		{"cpu experts", pool, 1, lines(1, onCPU), func(s *System) *Ref { return s.cpu }},
		{"cpu experts, several times", pool, 3, lines(1, onCPU), func(s *System) *Ref { return s.cpu }},
	} {
		for _, first := range []int64{1, 7, 30} { // layers, or reads, of which the run has more
			for _, inStep := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, from %d, in mid-step %v", tt.name, first, inStep), func(t *testing.T) {
					var sys atomic.Pointer[System]
					var n atomic.Int64
					hook := func() {
						if s := sys.Load(); s != nil {
							if i := n.Add(1); i >= first && i < first+int64(tt.times) {
								tt.panic(s)
							}
						}
					}
					r := newRig(t, 2, tightSlots, func(cfg *SystemConfig) {
						if inStep {
							cfg.Open = openCached(hook)
						}
					})
					if !inStep {
						r.before = hook
					}
					sys.Store(r.sys)
					if !slices.Equal(r.run(), want) {
						t.Error("the logits differ")
					}
					last := first + int64(tt.times)
					if tt.gone != nil { // after the first one there may be no more layers, or reads, that the pipeline has a part in
						last = first
					}
					if n.Load() < last {
						t.Fatalf("%d panics, of %d from %d", n.Load(), tt.times, first)
					}
					if tt.gone == nil {
						if _, err := r.sys.Figures(); err != nil { // the tier has handled all that was sent to it
							t.Error(err)
						}
					} else {
						<-tt.gone(r.sys).Dead()
					}
					if got := r.notes.all(); !slices.Equal(got, tt.lines) {
						t.Errorf("lines\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.lines, "\n\t"))
					}
					for _, err := range r.failed {
						if !errors.Is(err, ErrGone) && !errors.Is(err, ErrRestarted) {
							t.Errorf("a step failed of %v, which says nothing of the panic", err)
						}
					}
					if len(r.failed) > tt.times {
						t.Errorf("%d steps were computed without the pipeline for %d panics", len(r.failed), tt.times)
					}
				})
			}
		}
	}
}

// TestTierPanicsInMemory: also where all experts are in memory, a panic of the tier costs the step it is asked in, and in the end the tier.
func TestTierPanicsInMemory(t *testing.T) {
	want := want(t)
	for _, tt := range []struct {
		times, lines int
		dead         bool
	}{{1, 1, false}, {8, 6, true}} {
		r := newRig(t, 2, allInMemory, nil)
		left := tt.times
		r.before = func() {
			if left > 0 {
				left--
				r.sys.tier.Send(&messages.Issue{})
			}
		}
		if !slices.Equal(r.run(), want) {
			t.Errorf("%d panics: the logits differ", tt.times)
		}
		if _, err := r.sys.Figures(); (err != nil) != tt.dead {
			t.Errorf("%d panics: figures: %v", tt.times, err)
		}
		if got := r.notes.all(); len(got) != tt.lines {
			t.Errorf("%d panics: lines %q", tt.times, got)
		}
	}
}

func (l *log) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// misdescribed is a pipeline that says of the experts of n steps that they lie beyond their records: computing one panics.
type misdescribed struct {
	*System
	n int
}

func (p *misdescribed) Describe(layer, expert int) (cpuexperts.Matrices, bool) {
	m, ok := p.System.Describe(layer, expert)
	if p.n > 0 {
		m.At[2] = 1 << 40
	}
	return m, ok
}

func (p *misdescribed) Step(w *cpuexperts.Work, team cpuexperts.Splitter) error {
	p.n--
	return p.System.Step(w, team)
}

// TestComputingPanics: a panic while an expert is computed, in the pool or in the engine's goroutine, costs its step and nothing else.
func TestComputingPanics(t *testing.T) {
	want := want(t)
	for _, threads := range []int{1, 2, 4} {
		r := newRig(t, threads, tightSlots, nil)
		r.predict = false
		r.use(&misdescribed{r.sys, 3}) // the first steps of their layers: nothing is in memory
		if !slices.Equal(r.run(), want) {
			t.Errorf("%d threads: the logits differ", threads)
		}
		if len(r.failed) != 3 {
			t.Errorf("%d threads: errors %v, want 3", threads, r.failed)
		}
		for layer, err := range r.failed {
			if !strings.HasPrefix(err.Error(), "computing expert ") || !strings.Contains(err.Error(), fmt.Sprintf("of layer %d panicked: ", layer)) {
				t.Errorf("%d threads, layer %d: %v", threads, layer, err)
			}
		}
		if got := r.notes.String(); got != "" {
			t.Errorf("lines %q", got)
		}
	}
}

// TestClose closes a system while its reads go on, twice, and uses it afterwards.
func TestClose(t *testing.T) {
	want := want(t)
	reading := make(chan struct{}, 1000)
	history := make([]uint64, 48)
	for i := range history {
		history[i] = uint64(i + 1)
	}
	r := newRig(t, 2, 40, func(cfg *SystemConfig) {
		cfg.History = history
		cfg.Open = openCached(func() { reading <- struct{}{}; time.Sleep(5 * time.Millisecond) })
	})
	<-reading
	r.close()
	if n := len(reading); n > 10 {
		t.Errorf("%d reads began although the system was closed", n)
	}
	r.close()
	if !slices.Equal(r.run(), want) {
		t.Error("the logits differ")
	}
	for _, err := range r.failed {
		if !errors.Is(err, messages.ErrStopped) {
			t.Errorf("%v, want %v", err, messages.ErrStopped)
		}
	}
	if _, err := r.sys.Figures(); !errors.Is(err, messages.ErrStopped) {
		t.Errorf("figures: %v", err)
	}
}

// TestNewSystemFails leaves nothing behind.
func TestNewSystemFails(t *testing.T) {
	r := newRig(t, 1, allInMemory, nil)
	valid := SystemConfig{Layers: r.layers, Experts: r.experts, Records: r.records, Slots: 4, Threads: 2}
	for _, tt := range []struct {
		name   string
		change func(*SystemConfig)
		want   string
	}{
		{"the file has vanished", func(c *SystemConfig) {
			c.Open = func(path string, _ bool) (prefetcher.File, error) {
				return nil, &os.PathError{Op: "open", Path: filepath.Base(path), Err: os.ErrNotExist}
			}
		}, "actor prefetcher (disk): open model.safetensors: file does not exist; check that the file is still there and may be read"},
		{"no slots", func(c *SystemConfig) { c.Slots = 0 }, "prefetcher: an arena of 0 slots of 28672 bytes"},
		{"no layers", func(c *SystemConfig) { c.Layers = 0 }, "actor tier (expert RAM): tier: 0 layers of 12 experts"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sharedtest.Leaks(t)
			cfg := valid
			tt.change(&cfg)
			if _, err := NewSystem(cfg); err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

// moeStep returns a function that computes the experts of one token, layer after layer, as a decode step does: router, prediction,
// experts, from logits that differ from token to token.
func (r *rig) moeStep() func() {
	const rows = 1
	sets := make([]ops.ExpertSet, r.layers)
	var hidden int
	for il := range sets {
		sets[il] = r.net.Experts(il)
		gate, _, _ := sets[il].Expert(0)
		hidden = gate.Cols
	}
	x, logits := make([]float32, rows*hidden), make([]float32, rows*r.experts)
	for i := range x {
		x[i] = float32(i%7) - 3
	}
	params := router.Params{Gating: router.SoftmaxTopK, TopK: 3}
	token := 0
	return func() {
		token++
		r.exec.Reset()
		for il := range sets {
			for e := range logits {
				logits[e] = float32((e*7 + token*(il+3)) % 11)
			}
			in := r.exec.Upload("x", il, rows, hidden, x)
			routes := r.exec.Route(r.exec.Upload("logits", il, rows, r.experts, logits), params)
			if il+1 < r.layers {
				r.sys.Predict(il+1, routes.IDs)
			}
			r.exec.Experts(r.exec.New("out", il, rows, hidden), in, routes, sets[il], ops.SiLU)
		}
		r.sys.Tokens(rows)
	}
}

// TestStepAllocatesNothing, wherever the experts are and whether or not their reads are predicted.
func TestStepAllocatesNothing(t *testing.T) {
	for _, slots := range []int{allInMemory, 48, tightSlots} {
		for _, threads := range []int{1, 2} {
			t.Run(fmt.Sprintf("%d slots, %d threads", slots, threads), func(t *testing.T) {
				r := newRig(t, threads, slots, nil)
				step := r.moeStep()
				for range 200 {
					step()
				}
				if n := testing.AllocsPerRun(100, step); n != 0 && !checked {
					t.Errorf("%v allocations a token", n)
				}
				if len(r.failed) > 0 {
					t.Error(r.failed)
				}
				f, err := r.sys.Figures()
				if err != nil || (f.Read > 0) != (slots != allInMemory) || (slots == tightSlots) != (f.Evictions+f.PredictedReads > 48) {
					t.Errorf("%v, %+v", err, f)
				}
			})
		}
	}
}

// BenchmarkStep measures what the mailboxes cost the engine: a MoE step through the pipeline of a model whose experts are all in memory,
// for good or in slots, and, as mailbox-ns/step, how much more it takes than computing the same without the pipeline.
func BenchmarkStep(b *testing.B) {
	for _, bb := range []struct {
		name  string
		slots int
	}{{"all resident", allInMemory}, {"all in slots", 48}} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s, %d threads", bb.name, threads), func(b *testing.B) {
				r := newRig(b, threads, bb.slots, nil)
				step := r.moeStep()
				measure := func(p cpu.Pipeline, n int) time.Duration {
					r.use(p)
					for range 200 {
						step()
					}
					start := time.Now()
					for range n {
						step()
					}
					return time.Since(start) / time.Duration(n*r.layers)
				}
				b.ReportAllocs()
				for b.Loop() {
					step()
				}
				n := max(b.N, 1000)
				with := measure(r.sys, n)
				without := measure(nil, n)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(with), "ns/step")
				b.ReportMetric(float64(with-without), "mailbox-ns/step")
			})
		}
	}
}

// TestSharedRuntime: what happens to actors of others is no matter of the pipeline's, and they stop with it, after it.
func TestSharedRuntime(t *testing.T) {
	others := &log{}
	rt := Start(Options{OnEvent: func(e Event) { others.add("%s", e.Failure.Actor) }})
	stays := &log{}
	if _, err := rt.Spawn(Spec{Name: "stays", New: func() (Receiver, error) { return &worker{stays, 1}, nil }}); err != nil {
		t.Fatal(err)
	}
	fails, err := rt.Spawn(Spec{Name: "fails", Policy: GiveUp, New: func() (Receiver, error) { return &worker{&log{}, 1}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	want := newRig(t, 1, allInMemory, nil).run()
	r := newRig(t, 2, 8, func(c *SystemConfig) { c.Runtime = rt })
	fails.Send(newJob(1, "panic"))
	<-fails.Dead()
	if !slices.Equal(r.run(), want) || len(r.failed) > 0 || r.notes.String() != "" {
		t.Errorf("errors %v, lines %q, or other logits", r.failed, r.notes.String())
	}
	before := slices.Clone(r.sys.Counts())
	r.sys.Count(1, []int32{3, 3, 5})
	before[r.experts+3] += 2
	before[r.experts+5]++
	if !slices.Equal(r.sys.Counts(), before) {
		t.Error("pairs computed elsewhere are not counted")
	}
	if stays.String() != "" {
		t.Errorf("an actor of others did %q", stays)
	}
	r.close()
	if stays.String() != "close1" || others.String() != "fails" {
		t.Errorf("an actor of others did %q; the runtime heard of %q", stays, others)
	}
}

// stuck is a message that the tier does not get past until it is let go.
type stuck struct {
	messages.Header
	held, letGo chan struct{}
}

func (m *stuck) Head() *messages.Header {
	close(m.held)
	<-m.letGo
	return &m.Header
}

// TestAskABusyTier: whoever asks for figures waits no longer than they like.
func TestAskABusyTier(t *testing.T) {
	r := newRig(t, 1, allInMemory, nil)
	r.run()
	m := &stuck{held: make(chan struct{}), letGo: make(chan struct{})}
	r.sys.tier.Send(m)
	<-m.held
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if f, err := r.sys.Ask(ctx); !errors.Is(err, context.DeadlineExceeded) || f != (Figures{}) {
		t.Errorf("%+v, %v", f, err)
	}
	close(m.letGo)
	if f, err := r.sys.Ask(t.Context()); err != nil || f.PairsInMemory == 0 {
		t.Errorf("afterwards: %+v, %v", f, err)
	}
}
