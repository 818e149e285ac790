// Package parity is the table of cases that every executor of the op set must pass: each op, each weight format, odd shapes and tails,
// compared with the float64 reference. A new op without rows here is not done.
//
// It is imported by the tests of the executors only.
package parity

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/ref"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/weights/format"
)

// Config describes the executor under test.
type Config struct {
	New     func(t *testing.T) ops.Executor
	Integer func(format.Format) bool // formats whose kernels quantise activations
	Formats func(format.Format) bool // weight formats that it multiplies; nil: all
	HeadDim func(int) bool           // widths of attention heads that it takes; nil: all
}

// bench is one case: the executor under test and the reference on the same data.
type bench struct {
	*testing.T
	rng      *rand.Rand
	got, ref ops.Executor
	formats  []format.Format
	headDim  func(int) bool
}

// sub is the case as a subtest.
func (b *bench) sub(t *testing.T) *bench {
	c := *b
	c.T = t
	return &c
}

// Run runs the whole table, each op on a new executor.
func Run(t *testing.T, c Config) {
	reference := &ref.Executor{Integer: c.Integer}
	formats := slices.DeleteFunc(Writable(), func(f format.Format) bool { return c.Formats != nil && !c.Formats(f) })
	for _, group := range []struct {
		name string
		run  func(b *bench)
	}{
		{"RMSNorm", rmsNorm},
		{"MatMul", matMul},
		{"Clamp", clamp},
		{"RoPE", rope},
		{"Attention", attention},
		{"Elementwise", elementwise},
		{"Route", route},
		{"Experts", experts},
		{"MixedExperts", mixedExperts},
		{"RowIndependence", rowIndependence},
	} {
		t.Run(group.name, func(t *testing.T) {
			group.run(&bench{t, rand.New(rand.NewPCG(1, 2)), c.New(t), reference, formats, c.HeadDim})
		})
	}
}

func (b *bench) normal(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(b.rng.NormFloat64())
	}
	return x
}

func (b *bench) vector(n int) *ops.Vector { return &ops.Vector{Name: "v", Data: b.normal(n)} }

// matrix returns random weights in the given format, scaled so that products are of order one. Rows repeat after 23, since encoding
// them well takes longer than everything else here.
func (b *bench) matrix(f format.Format, rows, cols int) *ops.Matrix {
	const distinct = 23
	m := &ops.Matrix{Name: f.String(), Format: f, Rows: rows, Cols: cols}
	var err error
	if m.RowBytes, err = f.RowBytes(cols); err != nil {
		b.Fatal(err)
	}
	m.Data = make([]byte, rows*m.RowBytes)
	for r := range rows {
		row := m.Data[r*m.RowBytes : (r+1)*m.RowBytes]
		if r >= distinct {
			copy(row, m.Data[r%distinct*m.RowBytes:])
			continue
		}
		x := b.normal(cols)
		for i := range x {
			x[i] /= float32(math.Sqrt(float64(cols)))
		}
		if err := format.Encode(f, row, x); err != nil {
			b.Fatal(err)
		}
	}
	return m
}

// pair uploads the same values to both executors.
func (b *bench) pair(rows, cols int) (got, want *ops.Tensor) {
	x := b.normal(rows * cols)
	return b.got.Upload("x", 0, rows, cols, x), b.ref.Upload("x", 0, rows, cols, x)
}

func (b *bench) empty(rows, cols int) (got, want *ops.Tensor) {
	return b.got.New("dst", 0, rows, cols), b.ref.New("dst", 0, rows, cols)
}

// compare fails when a value differs by more than tol times the largest magnitude of its row.
func (b *bench) compare(what string, got, want *ops.Tensor, tol float64) {
	b.Helper()
	g := b.got.Download(got)
	for r := range want.Rows {
		scale := 1e-6
		for _, v := range want.Row(r) {
			scale = max(scale, math.Abs(float64(v)))
		}
		for c, v := range want.Row(r) {
			if d := math.Abs(float64(g[r*want.Cols+c]) - float64(v)); !(d <= tol*scale) {
				b.Fatalf("%s: row %d column %d: %g, reference %g (difference %.2g, allowed %.2g)", what, r, c, g[r*want.Cols+c], v, d, tol*scale)
			}
		}
	}
}

func rmsNorm(b *bench) {
	for _, s := range []struct{ rows, cols, segment int }{{1, 1, 0}, {1, 64, 0}, {3, 320, 0}, {2, 77, 0}, {5, 96, 32}, {17, 2048, 128}} {
		x, rx := b.pair(s.rows, s.cols)
		y, ry := b.empty(s.rows, s.cols)
		p := ops.Norm{Weight: b.vector(cmp.Or(s.segment, s.cols)), Eps: 1e-5, Segment: s.segment}
		b.got.RMSNorm(y, x, p)
		b.ref.RMSNorm(ry, rx, p)
		b.compare(fmt.Sprint("norm ", s), y, ry, 1e-6)
		b.got.RMSNorm(x, x, p)
		b.compare(fmt.Sprint("norm in place ", s), x, ry, 1e-6)
	}
}

// widths are column counts a format is tried with: one block, an odd number of blocks, and a typical width.
func widths(f format.Format) []int {
	block := f.Info().Block
	w := []int{block, 3 * block, 5 * block, 1024}
	if block == 1 {
		w = append(w, 31, 33, 63, 100, 257)
	}
	return slices.Compact(w)
}

func matMul(b *bench) {
	for _, f := range b.formats {
		b.Run(f.String(), func(t *testing.T) {
			b := b.sub(t)
			for _, cols := range widths(f) {
				for _, s := range []struct{ rows, out int }{{1, 1}, {1, 67}, {2, 5}, {4, 64}, {7, 33}, {33, 130}} {
					b.got.Reset()
					w, v := b.matrix(f, s.out, cols), b.matrix(f, 3, cols)
					bias := b.vector(s.out)
					x, rx := b.pair(s.rows, cols)
					y, ry := b.empty(s.rows, s.out)
					z, rz := b.empty(s.rows, 3)
					b.got.MatMul(x, ops.Projection{Dst: y, W: w, Bias: bias}, ops.Projection{Dst: z, W: v})
					b.ref.MatMul(rx, ops.Projection{Dst: ry, W: w, Bias: bias}, ops.Projection{Dst: rz, W: v})
					what := fmt.Sprintf("%d rows, %d×%d", s.rows, s.out, cols)
					b.compare(what, y, ry, 5e-6)
					b.compare(what+", second matrix", z, rz, 2e-5)
				}
			}
		})
	}
}

func clamp(b *bench) {
	x, rx := b.pair(3, 77)
	b.got.Clamp(x, 0.75)
	b.ref.Clamp(rx, 0.75)
	b.compare("clamp", x, rx, 0)
}

func rope(b *bench) {
	for _, s := range []struct{ rows, heads, headDim, dim int }{{1, 1, 2, 2}, {4, 3, 64, 64}, {2, 5, 32, 16}, {9, 2, 128, 128}, {3, 1, 20, 20}} {
		x, rx := b.pair(s.rows, s.heads*s.headDim)
		var places []ops.Place
		for r := range s.rows {
			places = append(places, ops.Place{Pos: r*r*37 + r})
		}
		b.got.RoPE(x, places, ops.NewRope(s.headDim, s.dim, 10000))
		b.ref.RoPE(rx, places, ops.NewRope(s.headDim, s.dim, 10000))
		b.compare(fmt.Sprint("rope ", s), x, rx, 1e-6)
	}
}

func attention(b *bench) {
	for _, s := range []struct{ heads, kvHeads, headDim, past, rows int }{
		{1, 1, 8, 0, 1}, {4, 4, 64, 0, 7}, {6, 3, 10, 5, 3}, {8, 2, 128, 70, 2}, {5, 5, 64, 33, 40}, {4, 1, 33, 1, 2},
	} {
		if b.headDim != nil && !b.headDim(s.headDim) {
			continue
		}
		w := s.kvHeads * s.headDim
		spec := ops.StateSpec{Kind: ops.KVRows, KWidth: w, VWidth: w}
		kv, rkv := []*ops.KV{ops.NewKV(spec), ops.NewKV(spec)}, []*ops.KV{ops.NewKV(spec), ops.NewKV(spec)}
		p := ops.Attention{Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.headDim, Scale: float32(1 / math.Sqrt(float64(s.headDim)))}
		at := 0
		for _, rows := range []int{s.past, s.rows} {
			if rows == 0 {
				continue
			}
			// Two conversations share the step: even rows belong to one, odd rows to the other.
			var places []ops.Place
			next := [2]int{kv[0].Len(), kv[1].Len()}
			for r := range rows {
				seq := r % 2
				places = append(places, ops.Place{Pos: next[seq], Seq: seq})
				next[seq]++
			}
			k, rk := b.pair(rows, w)
			v, rv := b.pair(rows, w)
			q, rq := b.pair(rows, s.heads*s.headDim)
			y, ry := b.empty(rows, s.heads*s.headDim)
			b.got.StoreKV(kv, k, v, places)
			b.ref.StoreKV(rkv, rk, rv, places)
			b.got.Attention(y, q, kv, places, p)
			b.ref.Attention(ry, rq, rkv, places, p)
			b.compare(fmt.Sprint("attention ", s, " at ", at), y, ry, 3e-6)
			at += rows
		}
	}
}

func elementwise(b *bench) {
	for _, s := range []struct{ rows, cols int }{{1, 1}, {3, 77}, {2, 2048}, {40, 130}} {
		x, rx := b.pair(s.rows, s.cols)
		y, ry := b.pair(s.rows, s.cols)
		b.got.Add(x, y)
		b.ref.Add(rx, ry)
		b.compare("add", x, rx, 0)
		b.got.GLU(x, x, y, ops.SiLU)
		b.ref.GLU(rx, rx, ry, ops.SiLU)
		b.compare("silu", x, rx, 1e-6)
		rows := []int{s.rows - 1, 0}
		b.compare("gather", b.got.Gather("rows", x, rows), b.ref.Gather("rows", rx, rows), 1e-6)
	}
}

func route(b *bench) {
	for _, s := range []struct{ rows, experts, topK int }{{1, 1, 1}, {3, 18, 4}, {9, 128, 8}, {40, 64, 8}} {
		for _, normalize := range []bool{false, true} {
			x, rx := b.pair(s.rows, s.experts)
			p := router.Params{Gating: router.SoftmaxTopK, TopK: s.topK, Normalize: normalize}
			got, want := b.got.Route(x, p), b.ref.Route(rx, p)
			ids, weights := b.got.Chosen(got)
			if !slices.Equal(ids, want.IDs) || got.Rows != s.rows || got.TopK != s.topK {
				b.Fatalf("route %v: ids %v, want %v", s, ids, want.IDs)
			}
			for i, w := range want.Weights {
				if math.Abs(float64(weights[i]-w)) > 1e-6 {
					b.Fatalf("route %v: weights %v, want %v", s, weights, want.Weights)
				}
			}
		}
	}
}

// table is an expert set of matrices made by the test.
type table [][3]*ops.Matrix

func (x table) Len() int                                  { return len(x) }
func (x table) Layer() int                                { return 0 }
func (x table) Expert(e int) (gate, up, down *ops.Matrix) { return x[e][0], x[e][1], x[e][2] }

func (b *bench) experts(f format.Format, n, inter, hidden int) table {
	x := make(table, n)
	for e := range x {
		x[e] = [3]*ops.Matrix{b.matrix(f, inter, hidden), b.matrix(f, inter, hidden), b.matrix(f, hidden, inter)}
	}
	return x
}

func experts(b *bench) {
	for _, f := range b.formats {
		b.Run(f.String(), func(t *testing.T) {
			b := b.sub(t)
			unit := max(f.Info().Block, 32)
			for _, s := range []struct{ rows, experts, topK int }{{1, 3, 1}, {1, 6, 4}, {5, 6, 2}, {40, 4, 3}} {
				b.got.Reset()
				set := b.experts(f, s.experts, unit, 2*unit)
				x, rx := b.pair(s.rows, 2*unit)
				y, ry := b.empty(s.rows, 2*unit)
				logits, rlogits := b.pair(s.rows, s.experts)
				p := router.Params{Gating: router.SoftmaxTopK, TopK: s.topK}
				b.got.Experts(y, x, b.got.Route(logits, p), set, ops.SiLU)
				b.ref.Experts(ry, rx, b.ref.Route(rlogits, p), set, ops.SiLU)
				// The hidden row is quantised again in between: a last-bit difference before may move a value by one step of its block.
				tol := 5e-6
				if e, ok := b.ref.(*ref.Executor); ok && e.Integer != nil && e.Integer(f) {
					tol = 3e-3
				}
				b.compare(fmt.Sprint("experts ", s), y, ry, tol)
			}
		})
	}
}

// mixedExperts: the matrices of one layer are of different formats, none of which the executor has met before.
func mixedExperts(b *bench) {
	const hidden, inter, rows = 64, 32, 3
	for _, f := range []format.Format{format.Q8_0, format.Q4_0, format.F16, format.F32, format.BF16, format.MXFP4, format.I8Row} {
		if !slices.Contains(b.formats, f) {
			b.Skipf("the executor does not multiply %s", f)
		}
	}
	gate, p := b.matrix(format.Q8_0, 2, hidden), router.Params{Gating: router.SoftmaxTopK, TopK: 2}
	set := table{
		{b.matrix(format.Q4_0, inter, hidden), b.matrix(format.F16, inter, hidden), b.matrix(format.F32, hidden, inter)},
		{b.matrix(format.BF16, inter, hidden), b.matrix(format.MXFP4, inter, hidden), b.matrix(format.I8Row, hidden, inter)},
	}
	x, rx := b.pair(rows, hidden)
	logits, rlogits := b.empty(rows, 2)
	b.got.MatMul(x, ops.Projection{Dst: logits, W: gate})
	b.ref.MatMul(rx, ops.Projection{Dst: rlogits, W: gate})
	y, ry := b.empty(rows, hidden)
	b.got.Experts(y, x, b.got.Route(logits, p), set, ops.SiLU)
	b.ref.Experts(ry, rx, b.ref.Route(rlogits, p), set, ops.SiLU)
	b.compare("experts", y, ry, 3e-3)
}

// rowIndependence: a row's bits are the same alone and in company.
func rowIndependence(b *bench) {
	for _, f := range b.formats {
		unit := max(f.Info().Block, 32)
		rows := 15
		set, w := b.experts(f, 4, unit, 2*unit), b.matrix(f, 37, 2*unit)
		x, _ := b.pair(rows, 2*unit)
		logits, _ := b.pair(rows, 4)
		p := router.Params{Gating: router.SoftmaxTopK, TopK: 2}
		run := func(x, logits *ops.Tensor) (mm, moe []float32) {
			y, z := b.got.New("y", 0, x.Rows, 37), b.got.New("z", 0, x.Rows, x.Cols)
			b.got.MatMul(x, ops.Projection{Dst: y, W: w})
			b.got.Experts(z, x, b.got.Route(logits, p), set, ops.SiLU)
			return slices.Clone(b.got.Download(y)), slices.Clone(b.got.Download(z))
		}
		mm, moe := run(x, logits)
		for r := range rows {
			one := func(t *ops.Tensor) *ops.Tensor { return b.got.Gather("one", t, []int{r}) }
			mm1, moe1 := run(one(x), one(logits))
			if !slices.Equal(mm1, mm[r*37:(r+1)*37]) || !slices.Equal(moe1, moe[r*2*unit:(r+1)*2*unit]) {
				b.Errorf("%s: row %d alone differs from row %d among %d", f, r, r, rows)
				break
			}
		}
	}
}

// Writable lists the formats that random weights can be encoded in.
func Writable() []format.Format {
	return slices.DeleteFunc(format.All(), func(f format.Format) bool { return !f.CanEncode() })
}
