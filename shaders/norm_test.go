package shaders_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/shaders"
)

// q8 is the integer form that package kernels makes of rows, laid out as on the device.
func q8(x []float32, rows, cols int) (q []int8, d []float32) {
	in := new(kernels.Input)
	in.Set(x, rows, cols)
	in.Quantize(0, rows)
	blocks := (cols + 31) / 32
	for r := range rows {
		q = append(q, in.Q[r*in.Padded():][:32*blocks]...)
		for b := range blocks {
			i := r*in.Padded()/32 + b
			d = append(d, in.D[i], in.D[i]*float32(in.S[i]))
		}
	}
	return q, d
}

// nearQ8 checks the integer form of values that were computed in another order: a value near the middle may round to the other side.
func nearQ8(tb testing.TB, gotQ []int8, gotD []float32, x []float32, rows, cols int) {
	tb.Helper()
	q, d := q8(x, rows, cols)
	blocks := (cols + 31) / 32
	for i, v := range q {
		if w, v := int(gotQ[i]), int(v); w < v-1 || w > v+1 {
			tb.Fatalf("q %d is %d, want %d", i, w, v)
		}
	}
	for i := range rows * blocks {
		sum := 0
		for _, v := range gotQ[32*i : 32*i+32] {
			sum += int(v)
		}
		if math.Abs(float64(gotD[2*i]-d[2*i])) > 1e-5*float64(d[2*i]) || gotD[2*i+1] != gotD[2*i]*float32(sum) {
			tb.Fatalf("block %d has d %g, d·Σq %g; want %g and Σq = %d", i, gotD[2*i], gotD[2*i+1], d[2*i], sum)
		}
	}
}

func TestQuantizeIsTheKernels(t *testing.T) {
	g := openGPU(t)
	for _, shape := range [][2]int{{1, 2048}, {3, 100}, {5, 33}, {2, 31}, {1, 1}, {4, 1408}} {
		rows, cols := shape[0], shape[1]
		x := normal(rows*cols, uint64(cols))
		for i := range x { // ties, zero blocks, tiny and huge blocks
			switch b := i % cols / 32; {
			case b == 1:
				x[i] = float32(i%255-127) / 2
			case b == 2:
				x[i] = 0
			case b == 3:
				x[i] *= 1e-30
			case b == 4:
				x[i] *= 1e30
			case b == 5:
				x[i] *= 1e-34
			}
		}
		blocks := (cols + 31) / 32
		xq, xd := g.alloc(rows*blocks*32), g.alloc(rows*blocks*8)
		p := shaders.QuantizePush{X: upload(g, x).Addr, XQ: xq.Addr, XD: xd.Addr, Rows: uint32(rows), Cols: uint32(cols)}
		dispatch(g, p, shaders.QuantizeLaunch(p, shaders.ActNone))
		q, d := q8(x, rows, cols)
		equal(t, fmt.Sprint(shape, " q"), fetch[int8](xq), q)
		equal(t, fmt.Sprint(shape, " d"), fetch[float32](xd), d)
	}
}

func TestQuantizeShowsWhatIsNotFinite(t *testing.T) {
	g := openGPU(t)
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		x := normal(96, 1)
		x[40] = float32(bad)
		xq, xd := g.alloc(96), g.alloc(24)
		p := shaders.QuantizePush{X: upload(g, x).Addr, XQ: xq.Addr, XD: xd.Addr, Rows: 1, Cols: 96}
		dispatch(g, p, shaders.QuantizeLaunch(p, shaders.ActNone))
		for i, d := range fetch[float32](xd) {
			if finite := !math.IsNaN(float64(d)) && !math.IsInf(float64(d), 0); finite == (i/2 == 1) {
				t.Errorf("with %g in block 1, value %d of the scales is %g", bad, i, d)
			}
		}
	}
}

func TestQuantizeOfAGatedUnit(t *testing.T) {
	g := openGPU(t)
	const rows, cols = 2, 100
	x, up := normal(rows*cols, 1), normal(rows*cols, 2)
	h := make([]float32, rows*cols)
	for i := range h {
		h[i] = float32(silu(x[i]) * float64(up[i]))
	}
	xq, xd := g.alloc(rows*128), g.alloc(rows*4*8)
	p := shaders.QuantizePush{X: upload(g, x).Addr, Up: upload(g, up).Addr, XQ: xq.Addr, XD: xd.Addr, Rows: rows, Cols: cols}
	dispatch(g, p, shaders.QuantizeLaunch(p, shaders.ActSiLU))
	nearQ8(t, fetch[int8](xq), fetch[float32](xd), h, rows, cols)
}

func silu(x float32) float64 { return float64(x) / (1 + math.Exp(-float64(x))) }

// normOf is the reference of rmsnorm.comp.
func normOf(x, w []float32, segment int, eps float32, flags uint32) []float32 {
	y := make([]float32, len(x))
	for at := 0; at < len(x); at += segment {
		sum := 0.0
		for _, v := range x[at : at+segment] {
			sum += float64(v) * float64(v)
		}
		if flags&shaders.NormL2 == 0 {
			sum /= float64(segment)
		}
		scale := 1 / math.Sqrt(sum+float64(eps))
		for i := range segment {
			v := float64(x[at+i]) * scale
			switch {
			case flags&shaders.NormL2 != 0:
			case flags&shaders.NormPlusOne != 0:
				v *= 1 + float64(w[i])
			default:
				v *= float64(w[i])
			}
			y[at+i] = float32(v)
		}
	}
	return y
}

func TestNorm(t *testing.T) {
	g := openGPU(t)
	for _, c := range []struct {
		rows, cols, segment int
		flags               uint32
	}{
		{1, 2048, 2048, 0},
		{3, 7168, 7168, shaders.NormPlusOne},
		{2, 1000, 1000, 0},
		{2, 1023, 1023, 0},
		{2, 5, 5, 0},
		{5, 16 * 128, 128, 0},
		{3, 5 * 64, 64, shaders.NormPlusOne},
		{2, 3 * 6, 6, 0},
		{3, 4 * 128, 128, shaders.NormL2},
		{2, 3 * 512, 512, 0},
	} {
		t.Run(fmt.Sprintf("%d×%d by %d flags %d", c.rows, c.cols, c.segment, c.flags), func(t *testing.T) {
			g.tb = t
			x, w := normal(c.rows*c.cols, 1), normal(c.segment, 2)
			want := normOf(x, w, c.segment, 1e-5, c.flags)
			bx, by := upload(g, x), g.alloc(4*len(x))
			p := shaders.NormPush{
				X: bx.Addr, W: upload(g, w).Addr, Y: by.Addr,
				Rows: uint32(c.rows), Cols: uint32(c.cols), Segment: uint32(c.segment), Eps: 1e-5, Flags: c.flags | shaders.NormOut,
			}
			dispatch(g, p, shaders.NormLaunch(p, g.subgroup))
			y := fetch[float32](by)
			near(t, "y", y, want, 1e-6)
			equal(t, "x", fetch[float32](bx), x)

			for r := range uint64(c.rows) { // each row for itself: the same bits
				one, at := p, r*uint64(4*c.cols)
				one.Rows, one.X, one.Y = 1, p.X+at, p.Y+at
				if c.cols%4 == 0 { // a vector's alignment
					dispatch(g, one, shaders.NormLaunch(one, g.subgroup))
				}
			}
			equal(t, "alone", fetch[float32](by), y)

			p.Y = p.X
			dispatch(g, p, shaders.NormLaunch(p, g.subgroup))
			equal(t, "in place", fetch[float32](bx), y)
		})
	}
}

func TestNormInTheIntegerForm(t *testing.T) {
	g := openGPU(t)
	for _, c := range [][3]int{{1, 2048, 2048}, {2, 100, 100}, {3, 45, 45}, {1, 3000, 3000}, {2, 256, 64}} {
		rows, cols, segment := c[0], c[1], c[2]
		blocks := (cols + 31) / 32
		x, w := normal(rows*cols, 1), normal(segment, 2)
		y, xq, xd := g.alloc(4*rows*cols), g.alloc(rows*blocks*32), g.alloc(rows*blocks*8)
		p := shaders.NormPush{
			X: upload(g, x).Addr, W: upload(g, w).Addr, Y: y.Addr, XQ: xq.Addr, XD: xd.Addr,
			Rows: uint32(rows), Cols: uint32(cols), Segment: uint32(segment), Eps: 1e-6, Flags: shaders.NormOut | shaders.NormQ8,
		}
		dispatch(g, p, shaders.NormLaunch(p, g.subgroup))
		// The device's own values, so that the integers are exact.
		q, d := q8(fetch[float32](y), rows, cols)
		equal(t, fmt.Sprint(c, " q"), fetch[int8](xq), q)
		equal(t, fmt.Sprint(c, " d"), fetch[float32](xd), d)
	}
}

func TestNormAdds(t *testing.T) {
	g := openGPU(t)
	for _, c := range [][3]int{{2, 2048, 0}, {3, 77, 0}, {2, 2048, 8}, {3, 77, 3}} {
		rows, cols, topk := c[0], c[1], c[2]
		x, w := normal(rows*cols, 1), normal(cols, 2)
		add, weights := normal(rows*cols*max(topk, 1), 3), normal(rows*max(topk, 1), 4)
		sum := make([]float32, rows*cols)
		for r := range rows {
			for i := range cols {
				v := add[r*cols+i]
				if topk > 0 {
					v = 0
					for k := range topk {
						v += weights[r*topk+k] * add[(r*topk+k)*cols+i]
					}
				}
				sum[r*cols+i] = x[r*cols+i] + v
			}
		}
		bx, by := upload(g, x), g.alloc(4*rows*cols)
		p := shaders.NormPush{
			X: bx.Addr, W: upload(g, w).Addr, Y: by.Addr, Add: upload(g, add).Addr, AddW: upload(g, weights).Addr,
			Rows: uint32(rows), Cols: uint32(cols), Segment: uint32(cols), TopK: uint32(topk), Eps: 1e-5,
			Flags: shaders.NormOut | shaders.NormAdd,
		}
		dispatch(g, p, shaders.NormLaunch(p, g.subgroup))
		near(t, fmt.Sprint(c, " x"), fetch[float32](bx), sum, 1e-6)
		near(t, fmt.Sprint(c, " y"), fetch[float32](by), normOf(sum, w, cols, 1e-5, 0), 1e-5)
	}
}
