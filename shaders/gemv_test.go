package shaders_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/shaders"
	"github.com/coli-moe/coli/shaders/layout"
	"github.com/coli-moe/coli/weights/format"
)

// widths are, for each format with a device form, columns to test: tails where the format has them.
var widths = map[format.Format][]int{
	format.F32: {1, 31, 64, 100, 257, 2048}, format.F16: {31, 33, 100, 257, 2048}, format.BF16: {33, 63, 100, 257, 512},
	format.I8Row: {31, 33, 63, 100, 257, 2048}, format.Q8_0: {32, 96, 544, 2048}, format.Q4_0: {32, 96, 544, 2048}, format.MXFP4: {32, 160, 1056},
	format.I4G64: {64, 192, 1088}, format.Q4_K: {256, 768, 2048}, format.Q5_K: {256, 768}, format.Q6_K: {256, 768, 2048},
}

// eachKernel calls test for every format, with and without packed dot products.
func eachKernel(t *testing.T, g *gpu, test func(t *testing.T, f format.Format, dot bool)) {
	for f := range widths {
		t.Run(f.String(), func(t *testing.T) { test(t, f, false) })
		switch {
		case !shaders.Integer(f):
		case g.d.Info().Features.IntegerDot:
			t.Run(f.String()+"/dot", func(t *testing.T) { test(t, f, true) })
		default:
			t.Logf("%s has no packed dot products", g.d.Info().Name)
		}
	}
}

// matrix is a matrix in memory of the device, and its values.
type matrix struct {
	layout.Layout
	buf    buffer
	values []float32
}

// newMatrix makes a matrix of values around scale.
func newMatrix(g *gpu, f format.Format, rows, cols int, scale float32, seed uint64) matrix {
	g.tb.Helper()
	l, ok := layout.For(f, rows, cols)
	size, err := f.RowBytes(cols)
	if !ok || err != nil {
		g.tb.Fatalf("%s of %d columns has no device form", f, cols)
	}
	m := matrix{Layout: l, values: normal(rows*cols, seed)}
	data := make([]byte, rows*size)
	for i := range m.values {
		m.values[i] *= scale
	}
	r := rand.New(rand.NewPCG(seed, 2))
	for i := range rows {
		row, v := data[i*size:][:size], m.values[i*cols:][:cols]
		if f == format.Q4_K || f == format.Q5_K || f == format.Q6_K {
			randomK(r, f, row, scale)
		} else if err := format.Encode(f, row, v); err != nil {
			g.tb.Fatal(err)
		}
		if err := format.Decode(f, v, row); err != nil {
			g.tb.Fatal(err)
		}
	}
	packed := make([]byte, l.Bytes)
	l.Pack(packed, data)
	m.buf = upload(g, packed)
	return m
}

// randomK fills a row of a K format with random codes.
func randomK(r *rand.Rand, f format.Format, row []byte, scale float32) {
	for i := range row {
		row[i] = byte(r.Uint32())
	}
	for b := row; len(b) > 0; b = b[f.Info().BlockBytes:] {
		if f == format.Q6_K {
			binary.LittleEndian.PutUint16(b[208:], format.F32ToF16(scale/1024))
			continue
		}
		binary.LittleEndian.PutUint16(b, format.F32ToF16(scale/256))
		binary.LittleEndian.PutUint16(b[2:], format.F32ToF16(scale/64))
	}
}

// input are rows of x in memory of the device as a format wants them, and the values that they stand for.
type activations struct {
	rows, cols int
	x, xd      uint64
	values     []float32
}

func newActivations(g *gpu, f format.Format, rows, cols int, seed uint64) activations {
	g.tb.Helper()
	a := activations{rows: rows, cols: cols, values: normal(rows*cols, seed)}
	if kernels.For(f).Form == kernels.FormF32 {
		a.x = upload(g, a.values).Addr
		return a
	}
	q, d := q8(a.values, rows, cols)
	a.x, a.xd = upload(g, q).Addr, upload(g, d).Addr
	blocks := (cols + 31) / 32
	for i := range a.values {
		r, c := i/cols, i%cols
		a.values[i] = d[2*(r*blocks+c/32)] * float32(q[r*32*blocks+c])
	}
	return a
}

// dot is the exact product of row o of m with row r of a.
func dot(m matrix, o int, a activations, r int) float64 {
	var sum float64
	for c := range m.Cols {
		sum += float64(m.values[o*m.Cols+c]) * float64(a.values[r*m.Cols+c])
	}
	return sum
}

func TestIntegerIsTheKernels(t *testing.T) {
	for f := range widths {
		if got, want := shaders.Integer(f), kernels.For(f).Form == kernels.FormQ8; got != want {
			t.Errorf("%s multiplies the integer form on the device: %t, on the CPU: %t", f, got, want)
		}
	}
}

const exact = 2e-6 // of the largest value: what sums of float32 in another order differ by

func TestGEMV(t *testing.T) {
	g := openGPU(t)
	eachKernel(t, g, func(t *testing.T, f format.Format, dotted bool) {
		for i, cols := range widths[f] {
			rows, outs := 1+2*i, 5+16*i
			scale := float32(0.05)
			if i == 1 {
				scale = 1e-3 // float16 scales below the smallest normal number
			}
			m := newMatrix(g, f, outs, cols, scale, uint64(cols))
			a := newActivations(g, f, rows, cols, uint64(cols)+1)
			bias, old := normal(outs, 3), normal(rows*outs, 4)
			for _, opt := range []struct{ bias, add bool }{{false, false}, {true, false}, {true, true}, {false, true}} {
				p := shaders.GEMVPush{X: a.x, XD: a.xd, Rows: uint32(rows)}
				p.SetMatrix(m.buf.Addr, m.Layout)
				y := upload(g, old)
				p.Y = y.Addr
				want := make([]float32, rows*outs)
				for j := range want {
					sum := dot(m, j%outs, a, j/outs)
					if opt.bias {
						sum += float64(bias[j%outs])
					}
					if opt.add {
						sum += float64(old[j])
					}
					want[j] = float32(sum)
				}
				if opt.bias {
					p.Bias = upload(g, bias).Addr
				}
				if opt.add {
					p.Add = 1
				}
				l := shaders.GEMVLaunch(p, f, dotted, g.subgroup)
				dispatch(g, p, l)
				near(t, fmt.Sprintf("%d columns, %+v", cols, opt), fetch[float32](y), want, 2*exact)
			}
		}
	})
}

// Any workgroups that cover the rows do, as a matrix of more rows than a dimension of workgroups takes needs two dimensions.
func TestGEMVInTwoDimensions(t *testing.T) {
	g := openGPU(t)
	m, a := newMatrix(g, format.Q8_0, 100, 64, 1, 1), newActivations(g, format.Q8_0, 1, 64, 2)
	y := g.alloc(4 * m.Rows)
	p := shaders.GEMVPush{X: a.x, XD: a.xd, Y: y.Addr, Rows: 1}
	p.SetMatrix(m.buf.Addr, m.Layout)
	l := shaders.GEMVLaunch(p, m.Format, false, g.subgroup)
	l.X, l.Y = 3, (l.X+2)/3
	dispatch(g, p, l)
	want := make([]float32, m.Rows)
	for o := range want {
		want[o] = float32(dot(m, o, a, 0))
	}
	near(t, "y", fetch[float32](y), want, exact)

	p.Outs = 1 << 22
	if l := shaders.GEMVLaunch(p, m.Format, false, 8); l.X > 65535 || int(l.X)*int(l.Y) < int(p.Outs)/16 {
		t.Errorf("%d rows take %d×%d workgroups", p.Outs, l.X, l.Y)
	}
}

// A row has the same bits alone and among others, in a matrix of few rows, which workgroups share, as in one of many.
func TestGEMVRowsAreIndependent(t *testing.T) {
	g := openGPU(t)
	eachKernel(t, g, func(t *testing.T, f format.Format, dot bool) {
		for _, outs := range []int{33, 321} {
			rowsAreIndependent(t, g, f, dot, outs)
		}
	})
}

func rowsAreIndependent(t *testing.T, g *gpu, f format.Format, dot bool, outs int) {
	const rows = 15
	cols := slices.Max(widths[f])
	m := newMatrix(g, f, outs, cols, 0.1, 5)
	a := newActivations(g, f, rows, cols, 6)
	multiply := func(first, n int) []float32 {
		y := g.alloc(4 * n * outs)
		p := shaders.GEMVPush{X: a.x, XD: a.xd, Y: y.Addr, Rows: uint32(n)}
		blocks := (cols + 31) / 32
		if shaders.Integer(f) {
			p.X += uint64(first * 32 * blocks)
			p.XD += uint64(first * 8 * blocks)
		} else {
			if cols%4 != 0 {
				t.Fatal("a row alone would not be aligned")
			}
			p.X += uint64(first * 4 * cols)
		}
		p.SetMatrix(m.buf.Addr, m.Layout)
		dispatch(g, p, shaders.GEMVLaunch(p, f, dot, g.subgroup))
		return fetch[float32](y)
	}
	all := multiply(0, rows)
	for r := range rows {
		equal(t, fmt.Sprintf("row %d", r), all[r*outs:][:outs], multiply(r, 1))
	}
}

// However the work is cut, a result has the same bits, unless a lane gets other pieces.
func TestGEMVCuts(t *testing.T) {
	g := openGPU(t)
	for _, f := range []format.Format{format.F32, format.Q8_0, format.Q4_K} {
		const rows, outs, cols = 5, 77, 1280
		m, a := newMatrix(g, f, outs, cols, 0.1, 5), newActivations(g, f, rows, cols, 6)
		var first []float32
		want := make([]float32, rows*outs)
		for i := range want {
			want[i] = float32(dot(m, i%outs, a, i/outs))
		}
		for _, c := range []struct{ threads, outs, unroll, rows, join int }{
			{64, 1, 1, 1, 0},
			{128, 1, 4, 1, 0},
			{64, 2, 2, 2, 0},
			{64, 3, 1, 4, 0},
			{32, 1, 8, 1, 0},
			{32, 3, 8, 2, 0},
			{64, 3, 1, 4, 1},
			{64, 1, 2, 1, 1},
			{128, 2, 4, 2, 1},
		} {
			y := g.alloc(4 * rows * outs)
			p := shaders.GEMVPush{X: a.x, XD: a.xd, Y: y.Addr, Rows: rows}
			p.SetMatrix(m.buf.Addr, m.Layout)
			l := cutAs(shaders.GEMVLaunch(p, f, false, g.subgroup), outs, g.subgroup, [3]int{max(c.threads, g.subgroup), c.outs, c.unroll}, c.join == 1)
			l.Constants[3] = uint32(c.rows)
			dispatch(g, p, l)
			got := fetch[float32](y)
			near(t, fmt.Sprintf("%s cut as %+v", f, c), got, want, exact)
			if c.join == 1 {
				continue // another order of sums
			}
			if first == nil {
				first = got
			}
			equal(t, fmt.Sprintf("%s cut as %+v", f, c), got, first)
		}
	}
}

// layer are the experts of a layer on the device. Those in absent have no address.
type layer struct {
	gate, up, down []matrix
	table          buffer
}

func newLayer(g *gpu, f format.Format, experts, inter, hidden int, absent ...int) layer {
	g.tb.Helper()
	var l layer
	var table []uint64
	for e := range experts {
		l.gate = append(l.gate, newMatrix(g, f, inter, hidden, 0.1, uint64(3*e+10)))
		l.up = append(l.up, newMatrix(g, f, inter, hidden, 0.1, uint64(3*e+11)))
		l.down = append(l.down, newMatrix(g, f, hidden, inter, 0.1, uint64(3*e+12)))
		row := []uint64{l.gate[e].buf.Addr, l.up[e].buf.Addr, l.down[e].buf.Addr}
		if slices.Contains(absent, e) {
			clear(row)
		}
		table = append(table, row...)
	}
	l.table = upload(g, table)
	return l
}

// expertShape is an intermediate and a hidden size that format f has, the first no multiple of 32 if the format allows it.
func expertShape(f format.Format) (inter, hidden int) {
	switch f.Info().Block {
	case 256:
		return 256, 512
	case 1:
		return 100, 132
	}
	return 192, 320
}

// The routes of the tests: three rows, four of six experts each. Expert 2 is absent, and an id is none at all.
var (
	testIDs     = []int32{0, 5, 2, 1, 3, 4, 0, 2, 5, 99, 1, 0}
	testWeights = []float32{0.5, 0.25, 0.2, 0.05, 0.4, 0.3, 0.2, 0.1, 0.7, 0.1, 0.1, 0.1}
)

const (
	testExperts, testTopK, testAbsent = 6, 4, 2
)

func absent(id int32) bool { return id == testAbsent || id >= testExperts }

func TestExpert(t *testing.T) {
	g := openGPU(t)
	eachKernel(t, g, func(t *testing.T, f format.Format, dotted bool) {
		inter, hidden := expertShape(f)
		ly := newLayer(g, f, testExperts, inter, hidden, testAbsent)
		ids := upload(g, testIDs)
		pairs := len(testIDs)
		for which, ms := range [][]matrix{ly.gate, ly.up, ly.down} {
			divide := testTopK
			if which == 2 {
				divide = 1
			}
			a := newActivations(g, f, pairs/divide, ms[0].Cols, 7)
			outs := ms[0].Rows
			y := g.alloc(4 * pairs * outs)
			p := shaders.ExpertPush{
				Table: ly.table.Addr, IDs: ids.Addr, X: a.x, XD: a.xd, Y: y.Addr,
				Pairs: uint32(pairs), Experts: testExperts, Matrix: uint32(which), Divide: uint32(divide),
			}
			p.SetMatrix(ms[0].Layout)
			dispatch(g, p, shaders.ExpertLaunch(p, f, dotted, g.subgroup))
			got := fetch[float32](y)
			for pair, id := range testIDs {
				got := got[pair*outs:][:outs]
				if absent(id) {
					for _, v := range got {
						if math.Float32bits(v) != 0xffffffff {
							t.Fatalf("pair %d of an absent expert was written: %g", pair, v)
						}
					}
					continue
				}
				want := make([]float32, outs)
				for o := range want {
					want[o] = float32(dot(ms[id], o, a, pair/divide))
				}
				near(t, fmt.Sprintf("matrix %d, pair %d", which, pair), got, want, exact)
			}
		}
	})
}

func TestGateUp(t *testing.T) {
	g := openGPU(t)
	eachKernel(t, g, func(t *testing.T, f format.Format, dotted bool) {
		inter, hidden := expertShape(f)
		ly := newLayer(g, f, testExperts, inter, hidden, testAbsent)
		pairs, blocks := len(testIDs), (inter+31)/32
		a := newActivations(g, f, pairs/testTopK, hidden, 7)
		y, yq, yd := g.alloc(4*pairs*inter), g.alloc(pairs*32*blocks), g.alloc(pairs*8*blocks)
		p := shaders.GateUpPush{
			Table: ly.table.Addr, IDs: upload(g, testIDs).Addr, X: a.x, XD: a.xd, Y: y.Addr, YQ: yq.Addr, YD: yd.Addr,
			Pairs: uint32(pairs), Experts: testExperts, TopK: testTopK, Act: shaders.ActSiLU,
		}
		p.SetMatrix(ly.gate[0].Layout)
		dispatch(g, p, shaders.GateUpLaunch(p, f, dotted, g.subgroup))
		got, gotQ, gotD := fetch[float32](y), fetch[int8](yq), fetch[float32](yd)
		for pair, id := range testIDs {
			got := got[pair*inter:][:inter]
			if absent(id) {
				if v := got[0]; math.Float32bits(v) != 0xffffffff {
					t.Fatalf("pair %d of an absent expert was written: %g", pair, v)
				}
				continue
			}
			want := make([]float32, inter)
			for o := range want {
				x := dot(ly.gate[id], o, a, pair/testTopK)
				want[o] = float32(x / (1 + math.Exp(-x)) * dot(ly.up[id], o, a, pair/testTopK))
			}
			near(t, fmt.Sprintf("pair %d", pair), got, want, 1e-5)
			nearQ8(t, gotQ[pair*32*blocks:][:32*blocks], gotD[pair*2*blocks:][:2*blocks], got, 1, inter)
		}
		// Either form of the result may be left out.
		only := p
		only.Y, only.YQ, only.YD = 0, g.alloc(pairs*32*blocks).Addr, g.alloc(pairs*8*blocks).Addr
		dispatch(g, only, shaders.GateUpLaunch(only, f, dotted, g.subgroup))
		y = g.alloc(4 * pairs * inter)
		only.Y, only.YQ, only.YD = y.Addr, 0, 0
		dispatch(g, only, shaders.GateUpLaunch(only, f, dotted, g.subgroup))
		equal(t, "float32 alone", fetch[float32](y), got)
	})
}

func TestDown(t *testing.T) {
	g := openGPU(t)
	eachKernel(t, g, func(t *testing.T, f format.Format, dotted bool) {
		inter, hidden := expertShape(f)
		ly := newLayer(g, f, testExperts, inter, hidden, testAbsent)
		pairs := len(testIDs)
		rows := pairs / testTopK
		a := newActivations(g, f, pairs, inter, 7)
		old := normal(rows*hidden, 8)
		down := func(add uint32, first, rows int) []float32 {
			y := upload(g, old[first*hidden:][:rows*hidden])
			p := shaders.DownPush{
				Table: ly.table.Addr, IDs: upload(g, testIDs[first*testTopK:]).Addr, Weights: upload(g, testWeights[first*testTopK:]).Addr,
				X: a.x, XD: a.xd, Y: y.Addr, Rows: uint32(rows), Experts: testExperts, TopK: testTopK, Add: add,
			}
			pair := uint64(first * testTopK)
			if blocks := uint64(inter+31) / 32; shaders.Integer(f) {
				p.X, p.XD = p.X+pair*32*blocks, p.XD+pair*8*blocks
			} else {
				p.X += pair * 4 * uint64(inter)
			}
			p.SetMatrix(ly.down[0].Layout)
			dispatch(g, p, shaders.DownLaunch(p, f, dotted, g.subgroup))
			return fetch[float32](y)
		}
		for _, add := range []uint32{0, 1} {
			want := make([]float32, rows*hidden)
			for i := range want {
				r, o := i/hidden, i%hidden
				sum := float64(add) * float64(old[i])
				for rank := range testTopK {
					if id := testIDs[r*testTopK+rank]; !absent(id) {
						sum += float64(testWeights[r*testTopK+rank]) * dot(ly.down[id], o, a, r*testTopK+rank)
					}
				}
				want[i] = float32(sum)
			}
			got := down(add, 0, rows)
			near(t, fmt.Sprint("add ", add), got, want, exact)
			for r := range rows {
				equal(t, fmt.Sprintf("row %d alone", r), got[r*hidden:][:hidden], down(add, r, 1))
			}
		}
	})
}
