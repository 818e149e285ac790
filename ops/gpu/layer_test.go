package gpu

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/ref"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/weights/format"
)

// toy is a small model of the shape of the real ones, run against any executor.
type toy struct {
	hidden, heads, kvHeads, headDim, inter, vocab int
	layers                                        []toyLayer
	norm                                          *ops.Vector
	head                                          *ops.Matrix
	rope                                          *ops.Rope
	perHead                                       bool
	clamp                                         float32
	embed                                         []float32 // [vocab, hidden]
}

type toyLayer struct {
	in, post, qNorm, kNorm *ops.Vector
	q, k, v, o, gate       *ops.Matrix
	experts                toyExperts
	ffn                    [3]*ops.Matrix // instead of experts
}

type toyExperts struct {
	layer int
	all   [][3]*ops.Matrix
}

func (x *toyExperts) Len() int   { return len(x.all) }
func (x *toyExperts) Layer() int { return x.layer }
func (x *toyExperts) Expert(e int) (gate, up, down *ops.Matrix) {
	return x.all[e][0], x.all[e][1], x.all[e][2]
}

type toyOptions struct {
	dense, experts format.Format
	perHead        bool
	clamp          float32
	mlp            bool // the last layer is dense
	layers         int  // 0: 3
}

func newToy(t testing.TB, o toyOptions) *toy {
	rng := rand.New(rand.NewPCG(3, 4))
	m := &toy{hidden: 64, heads: 4, kvHeads: 2, headDim: 32, inter: 32, vocab: 77, perHead: o.perHead, clamp: o.clamp}
	values := func(n int, scale float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64() * scale)
		}
		return x
	}
	vector := func(n int) *ops.Vector {
		v := values(n, 0.1)
		for i := range v {
			v[i]++
		}
		return &ops.Vector{Name: "norm", Data: v}
	}
	matrix := func(f format.Format, rows, cols int) *ops.Matrix {
		m := &ops.Matrix{Name: f.String(), Format: f, Rows: rows, Cols: cols}
		m.RowBytes, _ = f.RowBytes(cols)
		m.Data = make([]byte, rows*m.RowBytes)
		for r := range rows {
			if err := format.Encode(f, m.Data[r*m.RowBytes:(r+1)*m.RowBytes], values(cols, 1/math.Sqrt(float64(cols)))); err != nil {
				t.Fatal(err)
			}
		}
		return m
	}
	q, kv := m.heads*m.headDim, m.kvHeads*m.headDim
	m.rope = ops.NewRope(m.headDim, m.headDim, 10000)
	layers := cmp.Or(o.layers, 3)
	for il := range layers {
		l := toyLayer{
			in: vector(m.hidden), post: vector(m.hidden), qNorm: vector(q), kNorm: vector(kv), q: matrix(o.dense, q, m.hidden),
			k: matrix(o.dense, kv, m.hidden), v: matrix(o.dense, kv, m.hidden), o: matrix(o.dense, m.hidden, q),
			gate: matrix(format.F32, 6, m.hidden),
		}
		if o.perHead {
			l.qNorm, l.kNorm = vector(m.headDim), vector(m.headDim)
		}
		if o.mlp && il == layers-1 {
			l.ffn = [3]*ops.Matrix{matrix(o.dense, m.inter, m.hidden), matrix(o.dense, m.inter, m.hidden), matrix(o.dense, m.hidden, m.inter)}
		} else {
			l.experts.layer = il
			for range 6 {
				l.experts.all = append(l.experts.all,
					[3]*ops.Matrix{matrix(o.experts, m.inter, m.hidden), matrix(o.experts, m.inter, m.hidden), matrix(o.experts, m.hidden, m.inter)})
			}
		}
		m.layers = append(m.layers, l)
	}
	m.norm, m.head, m.embed = vector(m.hidden), matrix(o.dense, m.vocab, m.hidden), values(m.vocab*m.hidden, 1)
	return m
}

// state is that of conversations which take turns: row i of a step belongs to conversation i modulo their number.
type state struct {
	kv  [][]*ops.KV // [layer][conversation]
	pos int         // of the first
	at  []int       // of each
}

func (m *toy) state() *state { return m.states(1) }

func (m *toy) states(n int) *state {
	s := &state{at: make([]int, n)}
	w := m.kvHeads * m.headDim
	for il := range m.layers {
		s.kv = append(s.kv, nil)
		for range n {
			s.kv[il] = append(s.kv[il], ops.NewKV(ops.StateSpec{KWidth: w, VWidth: w}))
		}
	}
	return s
}

func (s *state) truncate(n int) {
	for _, l := range s.kv {
		l[0].Truncate(n)
	}
	s.pos, s.at[0] = n, n
}

// step runs tokens through the model and returns the logits tensor of the last; watch is called with intermediates, as a trace would.
func (m *toy) step(e ops.Executor, s *state, tokens []int, watch func(t *ops.Tensor)) *ops.Tensor {
	e.Reset()
	n := len(tokens)
	var places []ops.Place
	var rows []float32
	for i, id := range tokens {
		seq := i % len(s.at)
		places = append(places, ops.Place{Pos: s.at[seq], Seq: seq})
		s.at[seq]++
		rows = append(rows, m.embed[id*m.hidden:(id+1)*m.hidden]...)
	}
	emit := func(t *ops.Tensor) *ops.Tensor {
		if watch != nil {
			watch(t)
		}
		return t
	}
	x := e.Upload("embed", -1, n, m.hidden, rows)
	for il, l := range m.layers {
		qc, kc := m.heads*m.headDim, m.kvHeads*m.headDim
		norm := e.New("norm", il, n, m.hidden)
		e.RMSNorm(norm, x, ops.Norm{Weight: l.in, Eps: 1e-5})
		q, k, v := e.New("q", il, n, qc), e.New("k", il, n, kc), e.New("v", il, n, kc)
		e.MatMul(emit(norm), ops.Projection{Dst: q, W: l.q}, ops.Projection{Dst: k, W: l.k}, ops.Projection{Dst: v, W: l.v})
		seg := func(n int) int {
			if m.perHead {
				return m.headDim
			}
			return n
		}
		e.RMSNorm(q, q, ops.Norm{Weight: l.qNorm, Eps: 1e-5, Segment: seg(qc)})
		e.RMSNorm(k, k, ops.Norm{Weight: l.kNorm, Eps: 1e-5, Segment: seg(kc)})
		if m.clamp > 0 {
			for _, t := range []*ops.Tensor{q, k, v} {
				e.Clamp(t, m.clamp)
			}
		}
		e.RoPE(q, places, m.rope)
		e.RoPE(k, places, m.rope)
		emit(k)
		e.StoreKV(s.kv[il], k, v, places)
		mix := e.New("mix", il, n, qc)
		e.Attention(mix, q, s.kv[il], places, ops.Attention{
			Heads: m.heads, KVHeads: m.kvHeads, HeadDim: m.headDim, Scale: float32(1 / math.Sqrt(float64(m.headDim))),
		})
		o := e.New("o", il, n, m.hidden)
		e.MatMul(emit(mix), ops.Projection{Dst: o, W: l.o})
		e.Add(x, emit(o))
		e.RMSNorm(norm, x, ops.Norm{Weight: l.post, Eps: 1e-5})
		out := e.New("out", il, n, m.hidden)
		if l.ffn[0] != nil {
			g, u := e.New("gate", il, n, m.inter), e.New("up", il, n, m.inter)
			e.MatMul(norm, ops.Projection{Dst: g, W: l.ffn[0]}, ops.Projection{Dst: u, W: l.ffn[1]})
			e.GLU(g, g, u, ops.SiLU)
			e.MatMul(emit(g), ops.Projection{Dst: out, W: l.ffn[2]})
		} else {
			logits := e.New("router", il, n, 6)
			e.MatMul(norm, ops.Projection{Dst: logits, W: l.gate})
			routes := e.Route(logits, router.Params{Gating: router.SoftmaxTopK, TopK: 2, Normalize: m.perHead})
			e.Experts(out, norm, routes, &m.layers[il].experts, ops.SiLU)
		}
		e.Add(x, emit(out))
		emit(x)
	}
	last := x
	if n > 1 {
		last = e.Gather("last", x, []int{n - 1})
	}
	norm := e.New("final", -1, 1, m.hidden)
	e.RMSNorm(norm, last, ops.Norm{Weight: m.norm, Eps: 1e-5})
	logits := e.New("logits", -1, 1, m.vocab)
	e.MatMul(norm, ops.Projection{Dst: logits, W: m.head})
	s.pos = s.at[0]
	return logits
}

// logits runs a step to its end.
func (m *toy) logits(t *testing.T, e ops.Executor, s *state, tokens ...int) []float32 {
	t.Helper()
	out := slices.Clone(e.Download(m.step(e, s, tokens, nil)))
	if g, ok := e.(*Executor); ok {
		if err := g.Finish(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func reference() *ref.Executor {
	return &ref.Executor{Integer: func(f format.Format) bool { return kernels.For(f).Form == kernels.FormQ8 }}
}

// near fails if a differs from b by more than tol of b's largest magnitude.
func near(t *testing.T, what string, a, b []float32, tol float64) {
	t.Helper()
	top := 0.0
	for _, v := range b {
		top = max(top, math.Abs(float64(v)))
	}
	for i := range b {
		if d := math.Abs(float64(a[i]) - float64(b[i])); !(d <= tol*top) {
			t.Fatalf("%s: value %d is %g, want %g (%.2g of the largest)", what, i, a[i], b[i], d/top)
		}
	}
}

func prompt(n int) (tokens []int) {
	for i := range n {
		tokens = append(tokens, (i*i*7+3*i+5)%77)
	}
	return tokens
}

var toys = map[string]toyOptions{
	"olmoe":   {dense: format.Q8_0, experts: format.Q4_0, clamp: 0.8},
	"qwen3":   {dense: format.Q8_0, experts: format.Q8_0, perHead: true, mlp: true},
	"float32": {dense: format.F32, experts: format.F32, perHead: true},
	"bf16":    {dense: format.BF16, experts: format.BF16, mlp: true},
}

// TestLayers: whole layers give the reference's logits, with kernels shared and apart, for prompts short and long and for decode, and the
// host's caches get the rows.
func TestLayers(t *testing.T) {
	for name, o := range toys {
		t.Run(name, func(t *testing.T) {
			m := newToy(t, o)
			fused, apart, want := open(t, Options{}), open(t, Options{Separate: true}), reference()
			fs, as, ws := m.state(), m.state(), m.state()
			// Values are quantised between ops, where a last bit may move one by a step.
			const tol = 5e-3
			tokens := prompt(60)
			for _, n := range []int{5, 1, 1, 20, 16, 1, 15, 1} {
				step := tokens[fs.pos : fs.pos+n]
				w := m.logits(t, want, ws, step...)
				f := m.logits(t, fused, fs, step...)
				near(t, fmt.Sprintf("%d rows at %d", n, fs.pos-n), f, w, tol)
				near(t, fmt.Sprintf("%d rows at %d, kernels apart", n, fs.pos-n), m.logits(t, apart, as, step...), w, tol)
				for il := range m.layers {
					near(t, "host keys", fs.kv[il][0].K, ws.kv[il][0].K, tol)
					near(t, "host values", fs.kv[il][0].V, ws.kv[il][0].V, tol)
				}
			}
			s, a := fused.Stats(), apart.Stats()
			for f := fusion(0); f < fusions; f++ {
				integers := integer(o.dense)
				fires := map[fusion]bool{
					fuseNormQuantize: integers, fuseAttendQuantize: integers, fuseGLUQuantize: integers && o.mlp,
				}
				want, ok := fires[f]
				if got := s.Fused[f.String()] > 0; got != (want || !ok) {
					t.Errorf("%s fired %d times", f, s.Fused[f.String()])
				}
				if a.Fused[f.String()] != 0 {
					t.Errorf("%s fired with fusion off", f)
				}
			}
			if s.Dispatches >= a.Dispatches || s.Barriers >= a.Barriers {
				t.Errorf("fused: %d dispatches, %d barriers; apart: %d, %d", s.Dispatches, s.Barriers, a.Dispatches, a.Barriers)
			}
			if s.MatMuls != a.MatMuls || s.MatMuls == 0 || s.Pairs != a.Pairs || s.Pairs == 0 {
				t.Errorf("work: %d matmuls, %d pairs; apart %d, %d", s.MatMuls, s.Pairs, a.MatMuls, a.Pairs)
			}
		})
	}
}

// TestConversations: rows of several conversations share a step.
func TestConversations(t *testing.T) {
	for name, o := range toys {
		m := newToy(t, o)
		e, want := open(t, Options{}), reference()
		s, ws := m.states(3), m.states(3)
		for _, n := range []int{3, 7, 25, 2, 3} {
			near(t, fmt.Sprintf("%s, %d rows", name, n), m.logits(t, e, s, prompt(n)...), m.logits(t, want, ws, prompt(n)...), 1e-2)
		}
		for il := range m.layers {
			for c := range 3 {
				near(t, "host keys", s.kv[il][c].K, ws.kv[il][c].K, 1e-2)
				near(t, "host values", s.kv[il][c].V, ws.kv[il][c].V, 1e-2)
			}
		}
	}
}

// TestStages: a decode step of a model like OLMoE has at most seven dependent stages a layer.
func TestStages(t *testing.T) {
	m := newToy(t, toys["olmoe"])
	e, s := open(t, Options{}), m.state()
	m.logits(t, e, s, prompt(5)...)
	m.logits(t, e, s, 1)
	before := e.Stats()
	m.logits(t, e, s, 2)
	stages := e.Stats().Barriers - before.Barriers + 1
	const around = 4 // upload, first norm, final norm, head
	if most := int64(7*len(m.layers) + around); stages > most {
		t.Errorf("%d stages for %d layers, at most %d", stages, len(m.layers), most)
	}
}

// TestReplay: steady decode submits what is recorded, and does so again after a truncation and a prompt; a cache that grows changes
// nothing but addresses.
func TestReplay(t *testing.T) {
	m := newToy(t, toys["olmoe"])
	e, s, want, ws := open(t, Options{}), m.state(), reference(), m.state()
	both := func(what string, tokens ...int) {
		t.Helper()
		near(t, what, m.logits(t, e, s, tokens...), m.logits(t, want, ws, tokens...), 2e-2) // values are quantised again and again
	}
	both("prompt", prompt(30)...)
	for i := range 3 {
		both("decode", i)
	}
	recorded := e.Stats().Recorded
	steady := func(what string, n int) {
		t.Helper()
		for i := range n {
			both(what, i)
		}
		if got := e.Stats().Recorded; got != recorded {
			t.Errorf("%s recorded %d frames", what, got-recorded)
		}
	}
	steady("steady decode", 4)
	s.truncate(20)
	ws.truncate(20)
	steady("decode after a truncation", 2)
	both("another prompt", prompt(17)...)
	recorded = e.Stats().Recorded
	steady("decode after a prompt", 2)
	// The copies have room for 256 rows: let them grow.
	both("long prompt", prompt(256-s.pos-2)...)
	recorded = e.Stats().Recorded
	steady("decode over a growth", 6)
	// Host writes make the copies stale below what is there.
	for il, l := range s.kv {
		for c := range l[0].K[:64] {
			l[0].K[c] += 0.25
			ws.kv[il][0].K[c] = l[0].K[c]
		}
		l[0].Put(0, l[0].K[:64], l[0].V[:64])
	}
	steady("decode after a host write", 2)
	if err := e.Release(s.kv[0][0], s.kv[1][0], s.kv[2][0]); err != nil {
		t.Fatal(err)
	}
	steady("decode after a release", 2)
}

// TestTimes: with a profile the device's time is known by op.
func TestTimes(t *testing.T) {
	m := newToy(t, toys["olmoe"])
	e, err := New(devicetest.OpenWith(t, device.Options{Profile: true}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s := m.state()
	for i := range 3 {
		m.logits(t, e, s, i)
	}
	counts := map[string]int{}
	for _, x := range e.Times() {
		counts[x.Label] = x.Count
		if x.Time <= 0 {
			t.Errorf("%s took %v", x.Label, x.Time)
		}
	}
	if counts["matmul"] != 3*(3*4+1) || counts["router"] != 9 || counts["attention"] != 9 || counts["experts down"] != 9 {
		t.Errorf("counted %v", counts)
	}
}

// TestSlices: a long list is cut into several submissions, which changes nothing else.
func TestSlices(t *testing.T) {
	m := newToy(t, toys["qwen3"])
	whole, cut := open(t, Options{}), open(t, Options{})
	cut.core.speed = speed{1e6, 1e9}
	ws, cs := m.state(), m.state()
	for _, n := range []int{33, 1, 1, 1} {
		if got, want := m.logits(t, cut, cs, prompt(n)...), m.logits(t, whole, ws, prompt(n)...); !slices.Equal(got, want) {
			t.Errorf("%d rows: the logits differ", n)
		}
	}
	if s := cut.Stats(); s.Submissions < 2*s.Frames || s.Recorded == s.Frames || whole.Stats().Submissions != whole.Stats().Frames {
		t.Errorf("cut: %+v; whole: %+v", s, whole.Stats())
	}
}

// TestLoad: weights come to the device whole or not at all, and go again.
func TestLoad(t *testing.T) {
	m := newToy(t, toys["olmoe"])
	e, l := open(t, Options{}), &m.layers[0]
	ms, vs := []*ops.Matrix{l.q, l.k, l.v, l.o, l.gate}, []*ops.Vector{l.in, l.post, l.qNorm, l.kNorm, nil}
	want := int64(0)
	for _, w := range ms {
		want += e.Bytes(w)
	}
	for x := range l.experts.all {
		for _, w := range l.experts.all[x] {
			want += e.Bytes(w)
		}
	}
	told := int64(0)
	first, err := e.Load(t.Context(), "layer 0", ms, vs, &l.experts, func(n int64) { told += n })
	if err != nil {
		t.Fatal(err)
	}
	held := func() (n int64) {
		for _, u := range e.dev.Usage() {
			if u.Name == "layer 0" {
				n = u.Bytes
			}
		}
		return n
	}
	const little = 6 * align // vectors and the table
	if got := held(); got < want || got > want+little || told < want*9/10 || told > want {
		t.Errorf("%d bytes are held and %d were told, the matrices have %d", got, told, want)
	}
	again, err := e.Load(t.Context(), "layer 0", ms, vs, &l.experts, nil)
	if err != nil || held() > want+little {
		t.Errorf("loaded twice: %d bytes, %v", held(), err)
	}
	again.Free()
	if held() < want {
		t.Error("what was loaded before is gone")
	}
	first.Free()
	if held() != 0 {
		t.Errorf("%d bytes are left", held())
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Load(cancelled, "layer 0", ms, vs, &l.experts, nil); !errors.Is(err, context.Canceled) || held() != 0 {
		t.Errorf("cancelled: %v, %d bytes are left", err, held())
	}
	odd := &ops.Matrix{Name: "odd", Format: format.IQ4_NL, Rows: 1, Cols: 32}
	if _, err := e.Load(t.Context(), "layer 0", append(ms, odd), vs, &l.experts, nil); err == nil || held() != 0 {
		t.Errorf("a format without a form on the device: %v, %d bytes are left", err, held())
	}
	// Memory runs out on the way.
	for n := 1; n < 14; n += 3 {
		e.dev.Inject(device.Faults{Alloc: n})
		var de *DeviceError
		_, err := e.Load(t.Context(), "layer 0", ms, vs, &l.experts, nil)
		if !errors.As(err, &de) || !errors.Is(err, device.ErrNoMemory) || held() != 0 {
			t.Errorf("allocation %d: %v, %d bytes are left", n, err, held())
		}
	}
	e.dev.Inject(device.Faults{})
	s, w := m.state(), m.state()
	near(t, "afterwards", m.logits(t, e, s, 1, 2, 3), m.logits(t, reference(), w, 1, 2, 3), 5e-3)
}

// TestReload: what is recorded with weights that went is not run with those that came in their place.
func TestReload(t *testing.T) {
	m := newToy(t, toys["float32"])
	e, l := open(t, Options{}), &m.layers[0]
	for turn := range 3 {
		loaded, err := e.Load(t.Context(), "layer 0", []*ops.Matrix{l.q, l.k, l.v, l.o, l.gate}, []*ops.Vector{l.in, l.post}, &l.experts, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, ws := m.state(), m.state()
		for i := range 3 {
			near(t, fmt.Sprintf("step %d of turn %d", i, turn), m.logits(t, e, s, i), m.logits(t, reference(), ws, i), 5e-3)
		}
		loaded.Free()
		l.o = &ops.Matrix{Name: l.o.Name, Format: l.o.Format, Rows: l.o.Rows, Cols: l.o.Cols, RowBytes: l.o.RowBytes, Data: slices.Clone(l.o.Data)}
		for i := range l.o.Data[:len(l.o.Data)/2] {
			l.o.Data[i] = 0
		}
		l.post.Data[turn] += 2 // the same vector, with other values
	}
}

// TestFixed: a run takes no more memory than was told beforehand, whatever its steps.
func TestFixed(t *testing.T) {
	for name, o := range toys {
		m := newToy(t, o)
		sizes := Sizes{
			Rows: 40, Logits: 1, Hidden: m.hidden, Q: m.heads * m.headDim, KV: m.kvHeads * m.headDim, Heads: m.heads, HeadDim: m.headDim,
			Experts: 6, TopK: 2, ExInter: m.inter, Vocab: m.vocab, Layers: len(m.layers),
		}
		if o.mlp {
			sizes.Inter = m.inter
		}
		e, s := open(t, Options{Sizes: sizes}), m.state()
		for _, n := range []int{40, 1, 15, 16, 17, 1, 39, 40, 31} {
			m.logits(t, e, s, prompt(n)...)
		}
		onDevice, onHost := Fixed(sizes, 256)
		used := map[bool]int64{}
		for _, u := range e.dev.Usage() {
			switch u.Name {
			case "activations", "inputs", "parameters", "tables":
				used[true] += u.Bytes
			case "results", "KV rows", "choices":
				used[false] += u.Bytes
			}
		}
		if used[true] > onDevice || used[false] > onHost || used[true] < onDevice/4 {
			t.Errorf("%s: %d bytes on the device, %d were told; %d on the host, %d were told", name, used[true], onDevice, used[false], onHost)
		}
	}
}

// TestObserve: every intermediate can be looked at, at the cost of fusion.
func TestObserve(t *testing.T) {
	m := newToy(t, toys["olmoe"])
	e, s, want, ws := open(t, Options{}), m.state(), reference(), m.state()
	tokens := prompt(7)
	var seen [][]float32
	m.step(want, ws, tokens, func(x *ops.Tensor) { seen = append(seen, slices.Clone(want.Download(x))) })
	i := 0
	m.step(e, s, tokens, func(x *ops.Tensor) {
		near(t, fmt.Sprintf("%s of layer %d", x.Name, x.Layer), e.Download(x), seen[i], 5e-3)
		i++
	})
	if i != len(seen) || e.Stats().Fused[fuseMatMulAdd.String()] > 0 {
		t.Errorf("%d of %d intermediates; fused: %v", i, len(seen), e.Stats().Fused)
	}
}

// TestSwallowed: reading what only existed inside a kernel is a mistake that shows.
func TestSwallowed(t *testing.T) {
	m := newToy(t, toys["olmoe"])
	e, s := open(t, Options{}), m.state()
	var o *ops.Tensor
	e.Download(m.step(e, s, []int{1}, func(x *ops.Tensor) {
		if x.Name == "out" && x.Layer == 2 {
			o = x
		}
	}))
	defer func() {
		if recover() == nil {
			t.Error("an intermediate without values was read")
		}
	}()
	e.Download(o)
}

// TestArgMax: greedy choices leave the logits on the device.
func TestArgMax(t *testing.T) {
	e := open(t, Options{})
	for _, c := range []struct {
		rows [][]float32
		want []int32
	}{
		{[][]float32{{1, 3, 2}}, []int32{1}},
		{[][]float32{{1, 3, 3}, {-1, -2, -1}}, []int32{1, 0}},
		{[][]float32{{1, float32(math.NaN()), 3}, {1, float32(math.Inf(1)), 3}, {5, 1, 1}}, []int32{-1, -1, 0}},
	} {
		e.Reset()
		x := e.Upload("x", -1, len(c.rows), 3, slices.Concat(c.rows...))
		if got := e.ArgMax(x); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.rows, got, c.want)
		}
	}
}

// TestRouted: the usage history hears of every choice.
func TestRouted(t *testing.T) {
	m := newToy(t, toys["olmoe"])
	counts := map[int]int{}
	e := open(t, Options{Routed: func(layer int, ids []int32, _ bool) {
		for _, id := range ids {
			if id < 0 || id >= 6 {
				t.Errorf("layer %d: expert %d", layer, id)
			}
			counts[layer]++
		}
	}})
	s := m.state()
	m.logits(t, e, s, prompt(20)...)
	m.logits(t, e, s, 4)
	e.Account()
	if fmt.Sprint(counts) != "map[0:42 1:42 2:42]" {
		t.Errorf("counted %v, want 42 choices of each layer", counts)
	}
}

// TestOwed: what a step chose and wrote is there though the next one fails, whatever of.
func TestOwed(t *testing.T) {
	m := newToy(t, toys["olmoe"])
	whole, ws := open(t, Options{}), m.state()
	tokens := prompt(21)
	m.logits(t, whole, ws, tokens[:20]...)
	m.logits(t, whole, ws, tokens[20])
	for name, c := range map[string]struct {
		faults device.Faults
		rows   int // of the step that fails: one is recorded already
	}{
		"submit":       {device.Faults{Submit: 1}, 1},
		"first submit": {device.Faults{Submit: 1}, 3},
		"frame":        {device.Faults{Frame: 1}, 3},
		"lost":         {device.Faults{Lost: 1}, 1},
		"wait":         {device.Faults{Wait: 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			counts := map[bool]int{}
			e := open(t, Options{Routed: func(_ int, ids []int32, earlier bool) { counts[earlier] += len(ids) }})
			s := m.state()
			e.Download(m.step(e, s, tokens[:20], nil))
			e.Download(m.step(e, s, tokens[20:], nil))
			width := m.kvHeads * m.headDim
			if last := s.kv[0][0].K[20*width : 21*width]; slices.Max(last) != 0 || slices.Min(last) != 0 || e.owed == nil {
				t.Fatal("the second step's rows and choices are not owed")
			}
			e.dev.Inject(c.faults)
			func() {
				defer func() {
					if f, ok := recover().(*ops.Failure); !ok || !errors.Is(f, device.ErrFault) {
						t.Errorf("the third step: %v", f)
					}
				}()
				e.Download(m.step(e, s, prompt(c.rows), nil))
			}()
			if want := 3 * 2 * 21; counts[true] != want || counts[false] != 0 {
				t.Errorf("%d choices of steps before and %d of the one that failed were told, want %d and none", counts[true], counts[false], want)
			}
			if got := e.Stats().Pairs; got != 3*2*21 {
				t.Errorf("%d pairs were counted, want %d", got, 3*2*21)
			}
			for il := range m.layers {
				got, want := s.kv[il][0], ws.kv[il][0]
				if !slices.Equal(got.K[:21*width], want.K) || !slices.Equal(got.V[:21*width], want.V) {
					t.Errorf("layer %d: the host lacks rows of the steps before", il)
				}
			}
		})
	}
}

// TestNumbers: lists that are recorded outlive a list of more rows than any before.
func TestNumbers(t *testing.T) {
	e := open(t, Options{})
	run := func(rows int) {
		t.Helper()
		e.Reset()
		data := make([]float32, rows)
		for i := range data {
			data[i] = float32(i + 1)
		}
		if got := e.Download(e.Upload("x", -1, rows, 1, data)); !slices.Equal(got, data) {
			t.Errorf("%d rows came back changed", rows)
		}
	}
	run(3)
	run(1500)
	// What was freed is somebody else's now.
	for range 4 {
		buf, err := e.dev.Alloc(device.DeviceOnly, 4096, "another's")
		if err != nil {
			t.Fatal(err)
		}
		defer buf.Free()
		if err := e.dev.Write(buf, 0, bytes.Repeat([]byte{1, 0, 0, 0}, 1024)); err != nil {
			t.Fatal(err)
		}
	}
	run(3)
}

// TestSteadyAllocations: a decode step allocates nothing here.
func TestSteadyAllocations(t *testing.T) {
	dev := devicetest.Open(t)
	e, err := New(dev, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	m := newToy(t, toys["olmoe"])
	s := m.state()
	for range 4 {
		e.Download(m.step(e, s, []int{1}, nil))
	}
	nodes := slices.Clone(e.frames[0].nodes)
	if got := testing.AllocsPerRun(10, func() {
		e.list()
		for i := range nodes {
			e.add(&nodes[i])
		}
		if e.find() == nil {
			t.Fatal("the list is not recorded")
		}
	}); got > 0 {
		t.Errorf("a list that is known allocates %v times", got)
	}
}

// TestFaults: whatever fails, and whenever, the op says so with the device's error, every later one too, and nothing is left behind.
func TestFaults(t *testing.T) {
	m := newToy(t, toys["olmoe"])
	run := func(e *Executor) (err error) {
		defer func() {
			if f, ok := recover().(*ops.Failure); ok {
				err = f
			}
		}()
		s := m.state()
		e.Download(m.step(e, s, prompt(20), nil))
		for i := range 4 {
			e.Download(m.step(e, s, []int{i}, nil))
		}
		return e.Finish()
	}
	// Uploads submit and wait too. A failed one while memory is allocated has the device try another kind, so not every fault shows.
	for _, c := range []struct {
		name   string
		faults func(n int) device.Faults
		want   error
		most   int
	}{
		{"alloc", func(n int) device.Faults { return device.Faults{Alloc: n} }, device.ErrNoMemory, 100},
		{"submit", func(n int) device.Faults { return device.Faults{Submit: n} }, device.ErrNoMemory, 70},
		{"frame", func(n int) device.Faults { return device.Faults{Frame: n} }, device.ErrNoMemory, 70},
		{"wait", func(n int) device.Faults { return device.Faults{Wait: n} }, device.ErrLost, 70},
		{"lost", func(n int) device.Faults { return device.Faults{Lost: n} }, device.ErrLost, 70},
	} {
		t.Run(c.name, func(t *testing.T) {
			failed := map[bool]int{}
			for n := 1; n <= c.most; n += 1 + n/2 {
				dev := devicetest.Open(t)
				e, err := New(dev, Options{})
				if err != nil {
					t.Fatal(err)
				}
				dev.Inject(c.faults(n))
				err = run(e)
				failed[err != nil]++
				if err != nil {
					var de *DeviceError
					if !errors.As(err, &de) || !errors.Is(err, c.want) {
						t.Errorf("%s %d: %v, want a DeviceError that wraps %v", c.name, n, err, c.want)
					}
					if again := run(e); !errors.Is(again, c.want) {
						t.Errorf("%s %d: afterwards: %v, want the same", c.name, n, again)
					}
				}
				if err := e.Close(); err != nil && !errors.Is(err, c.want) {
					t.Errorf("%s %d: close: %v", c.name, n, err)
				}
				if u := dev.Usage(); len(u) > 0 {
					t.Errorf("%s %d leaves %v", c.name, n, u)
				}
			}
			if failed[true] < 3 {
				t.Errorf("%d of %d failed", failed[true], failed[true]+failed[false])
			}
		})
	}
}
