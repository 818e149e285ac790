package cpuexperts

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/weights/format"
)

const (
	hidden  = 16
	inter   = 24
	experts = 8
	topK    = 3
	rows    = 5
)

// layer has the records of a layer's experts, float32, gate, up and down one after the other, and a step's input.
type layer struct {
	records [experts][]byte
	x       kernels.Input
	ids     []int32
	weights []float32
}

func newLayer(seed uint64) *layer {
	rng := rand.New(rand.NewPCG(seed, 1))
	l := new(layer)
	for e := range l.records {
		for range 3 * hidden * inter {
			l.records[e] = binary.LittleEndian.AppendUint32(l.records[e], math.Float32bits(rng.Float32()-0.5))
		}
	}
	values := make([]float32, rows*hidden)
	for i := range values {
		values[i] = rng.Float32() - 0.5
	}
	l.x.Set(values, rows, hidden)
	for range rows {
		for _, e := range rng.Perm(experts)[:topK] {
			l.ids, l.weights = append(l.ids, int32(e)), append(l.weights, rng.Float32())
		}
	}
	return l
}

// value is an element of the m-th matrix of an expert.
func (l *layer) value(expert, m, row, col, cols int) float64 {
	at := 4 * (m*hidden*inter + row*cols + col)
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(l.records[expert][at:])))
}

// reference computes the layer pair by pair in float64.
func (l *layer) reference() []float64 {
	out := make([]float64, rows*hidden)
	for pair, id := range l.ids {
		e, x := int(id), l.x.F32[pair/topK*hidden:][:hidden]
		var h [inter]float64
		for i := range h {
			var gate, up float64
			for c, v := range x {
				gate += float64(v) * l.value(e, 0, i, c, hidden)
				up += float64(v) * l.value(e, 1, i, c, hidden)
			}
			h[i] = gate / (1 + math.Exp(-gate)) * up
		}
		for r := range hidden {
			var y float64
			for i, v := range h {
				y += v * l.value(e, 2, r, i, inter)
			}
			out[pair/topK*hidden+r] += float64(l.weights[pair]) * y
		}
	}
	return out
}

// bind groups the step in w, whose runs have no bytes.
func (l *layer) bind(w *Work, act func(dst, gate, up []float32)) {
	w.Group(3, l.ids, topK, experts)
	in := ops.Matrix{Format: format.F32, Rows: inter, Cols: hidden, RowBytes: 4 * hidden}
	out := ops.Matrix{Format: format.F32, Rows: hidden, Cols: inter, RowBytes: 4 * inter}
	for i := range w.Runs() {
		w.Bind(i, Matrices{Gate: in, Up: in, Down: out, At: [3]int64{0, 4 * hidden * inter, 8 * hidden * inter}})
	}
	w.Input(&l.x, hidden, act)
}

// alone is a team of one.
type alone struct{}

func (alone) Run(n, _ int, fn func(worker, from, to int)) { fn(0, 0, n) }
func (alone) Size() int                                   { return 1 }

// tier counts what it is told.
type tier struct {
	mu       sync.Mutex
	computed map[messages.Key]int
}

func (t *tier) Send(m messages.Message) {
	c := m.(*messages.Computed)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.computed[c.Key]++
	messages.Computeds.Put(c)
}

func compute(w *Work, use int, data []byte, err error) *messages.Compute {
	c := messages.Computes.Get()
	c.Step, c.Use, c.Data, c.Err = &w.Step, int32(use), data, err
	return c
}

func newPool(t testing.TB, threads int) *Pool {
	t.Helper()
	before := runtime.NumGoroutine()
	p, err := NewPool(threads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d goroutines are left of %d", runtime.NumGoroutine(), before)
			}
		}
	})
	return p
}

// TestWork: Tiled and Sum compute what a float64 reference does.
func TestWork(t *testing.T) {
	for seed := range uint64(20) {
		l := newLayer(seed)
		var w Work
		l.bind(&w, kernels.SiLUMul)
		for i := range w.Runs() {
			w.Attach(i, l.records[w.Expert(i)])
		}
		got := make([]float32, rows*hidden)
		var all []int32
		for i := range int32(w.Runs()) {
			all = append(all, i)
		}
		w.Tiled(alone{}, all)
		w.Sum(alone{}, got, l.weights)
		for i, want := range l.reference() {
			if math.Abs(float64(got[i])-want) > 1e-5 {
				t.Fatalf("seed %d, output %d: %v, want %v", seed, i, got[i], want)
			}
		}
		if w.Pairs() != rows*topK || !slices.IsSortedFunc(w.Step.Uses, func(a, b messages.Use) int { return int(a.Expert - b.Expert) }) {
			t.Errorf("%d pairs, uses %v", w.Pairs(), w.Step.Uses)
		}
	}
}

// TestPool computes steps of which some experts are in memory and the others land in any order, while the engine computes too: the bits
// are always the same, and the tier is told once of every expert.
func TestPool(t *testing.T) {
	for _, threads := range []int{1, 2, 4} {
		p := newPool(t, threads)
		works := [2]Work{}
		rng := rand.New(rand.NewPCG(5, uint64(threads)))
		for step := range uint64(200) {
			l, w := newLayer(step%10), &works[step%2]
			var direct Work
			l.bind(&direct, kernels.SiLUMul)
			var all []int32
			for i := range direct.Runs() {
				direct.Attach(i, l.records[direct.Expert(i)])
				all = append(all, int32(i))
			}
			want := make([]float32, rows*hidden)
			direct.Tiled(alone{}, all)
			direct.Sum(alone{}, want, l.weights)

			told := &tier{computed: map[messages.Key]int{}}
			l.bind(w, kernels.SiLUMul)
			p.Open(w, told)
			var hits []int32
			order := rng.Perm(w.Runs())
			n := rng.IntN(len(order) + 1)
			for _, i := range order[:n] {
				w.Attach(i, l.records[w.Expert(i)])
				hits = append(hits, int32(i))
			}
			landed := make(chan struct{})
			go func() {
				defer close(landed)
				for _, i := range order[n:] {
					p.Receive(compute(w, i, l.records[w.Expert(i)], nil))
				}
			}()
			w.Hits(alone{}, hits)
			if _, err := w.Land(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			<-landed
			p.End(w)
			got := make([]float32, rows*hidden)
			w.Sum(alone{}, got, l.weights)
			if !slices.Equal(got, want) {
				t.Fatalf("%d threads, step %d: the outputs differ", threads, step)
			}
			for _, u := range w.Step.Uses {
				if n := told.computed[messages.Key{Layer: 3, Expert: u.Expert}]; n != 1 {
					t.Fatalf("the tier was told %d times that expert %d was computed", n, u.Expert)
				}
			}
		}
	}
}

// TestStepFails: whatever ends a step, Land says so, and End returns when nobody touches the step's memory any more. The pool goes on
// with the next step.
func TestStepFails(t *testing.T) {
	errRead := errors.New("the drive is gone")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	dead := make(chan struct{})
	close(dead)
	boom := func(_, _, _ []float32) { panic("boom") }
	for _, tt := range []struct {
		name string
		ctx  context.Context
		dead chan struct{}
		act  func(dst, gate, up []float32)
		send func(p *Pool, w *Work, l *layer)
		is   error
		want string
	}{
		{name: "a read", ctx: t.Context(), act: kernels.SiLUMul, is: errRead, send: func(p *Pool, w *Work, l *layer) {
			p.Receive(compute(w, 1, l.records[w.Expert(1)], nil))
			p.Receive(compute(w, 0, nil, errRead))
			p.Receive(compute(w, 2, l.records[w.Expert(2)], nil))
		}},
		{name: "computing", ctx: t.Context(), act: boom, want: "of layer 3 panicked: boom", send: func(p *Pool, w *Work, l *layer) {
			for i := range w.Runs() {
				p.Receive(compute(w, i, l.records[w.Expert(i)], nil))
			}
		}},
		{name: "cancelled", ctx: canceled, act: kernels.SiLUMul, is: context.Canceled, send: func(p *Pool, w *Work, l *layer) {
			p.Receive(compute(w, 1, l.records[w.Expert(1)], nil))
		}},
		{name: "the pipeline has stopped", ctx: t.Context(), dead: dead, act: kernels.SiLUMul, is: messages.ErrStopped, send: func(*Pool, *Work, *layer) {}},
	} {
		for _, threads := range []int{1, 3} {
			p := newPool(t, threads)
			l := newLayer(1)
			w := new(Work)
			told := &tier{computed: map[messages.Key]int{}}
			l.bind(w, tt.act)
			p.Open(w, told)
			tt.send(p, w, l)
			_, err := w.Land(tt.ctx, tt.dead)
			if tt.is != nil && !errors.Is(err, tt.is) || tt.is == nil && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%s, %d threads: error %v", tt.name, threads, err)
			}
			p.End(w)
			clear(w.y) // nobody else writes it: the race detector says so
			clear(w.h)
			left := len(w.ready)
			p.Receive(compute(w, 0, l.records[w.Expert(0)], nil)) // late
			if len(w.ready) != left || p.active.Load() > 0 {
				t.Errorf("%s, %d threads: an expert of a step that is over was taken on", tt.name, threads)
			}

			next := new(Work)
			l.bind(next, kernels.SiLUMul)
			p.Open(next, told)
			p.Receive(compute(w, 0, nil, errRead)) // late too: not this step's
			for i := range next.Runs() {
				p.Receive(compute(next, i, l.records[next.Expert(i)], nil))
			}
			if _, err := next.Land(t.Context(), nil); err != nil {
				t.Errorf("%s, %d threads: the next step: %v", tt.name, threads, err)
			}
			p.End(next)
		}
	}
}

func TestPoolRefusesOtherMessages(t *testing.T) {
	defer func() {
		if v := recover(); v == nil {
			t.Error("a message that is not the pool's was taken")
		}
	}()
	newPool(t, 2).Receive(&messages.Tokens{})
}

// forgetful is a tier that keeps nothing.
type forgetful struct{}

func (forgetful) Send(m messages.Message) { messages.Computeds.Put(m.(*messages.Computed)) }

func TestStepAllocatesNothing(t *testing.T) {
	p := newPool(t, 2)
	l := newLayer(1)
	works := [2]Work{}
	told := forgetful{}
	out := make([]float32, rows*hidden)
	turn := 0
	n := testing.AllocsPerRun(500, func() {
		turn = 1 - turn
		w := &works[turn]
		l.bind(w, kernels.SiLUMul)
		p.Open(w, told)
		for i := range w.Runs() {
			p.Receive(compute(w, i, l.records[w.Expert(i)], nil))
		}
		if _, err := w.Land(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
		p.End(w)
		w.Sum(alone{}, out, l.weights)
	})
	if n != 0 && !sharedtest.Race {
		t.Errorf("%v allocations a step", n)
	}
}
