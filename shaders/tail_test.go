package shaders_test

import (
	"fmt"
	"testing"

	"github.com/coli-moe/coli/shaders"
	"github.com/coli-moe/coli/weights/format"
)

// normed is where a norm of rows, behind a product or by itself, is written.
type normed struct {
	rows, cols int
	w          buffer
	y, q       buffer // q is the integer form, its scales behind its values
}

func newNormed(g *gpu, rows, cols int, w buffer) normed {
	return normed{rows, cols, w, g.alloc(4 * rows * cols), g.alloc(rows*cols + rows*cols/4)}
}

const tailEps = 1e-5

func (n normed) tail(count buffer) shaders.TailNorm {
	return shaders.TailNorm{
		NormW: n.w.Addr, NormY: n.y.Addr, NormQ: n.q.Addr, Count: count.Addr, NormD: uint32(n.rows * n.cols), Eps: tailEps,
	}
}

// apart is the stage that a tail saves: the norm of x.
func (n normed) apart(x uint64) shaders.NormPush {
	return shaders.NormPush{
		X: x, W: n.w.Addr, Y: n.y.Addr, XQ: n.q.Addr, XD: n.q.Addr + uint64(n.rows*n.cols),
		Rows: uint32(n.rows), Cols: uint32(n.cols), Segment: uint32(n.cols), Eps: tailEps, Flags: shaders.NormOut | shaders.NormQ8,
	}
}

// check says that two norms of the same rows have the same bits.
func (n normed) check(t *testing.T, what string, want normed) {
	t.Helper()
	equal(t, what+": norm", fetch[float32](n.y), fetch[float32](want.y))
	equal(t, what+": its integer form", fetch[uint32](n.q), fetch[uint32](want.q))
}

// tailWidths have a norm by a subgroup and by a workgroup, with one vector a lane, with several, and with a part of one.
var tailWidths = []int{64, 320, 2048, 2080}

// A norm behind a product has the bits of one by itself, however the product is cut, and leaves its counter as it was.
func TestTailNorm(t *testing.T) {
	g := openGPU(t)
	for _, f := range []format.Format{format.Q8_0, format.F32} {
		for i, hidden := range tailWidths {
			rows := 1 + 4*i
			const cols = 96
			m, a := newMatrix(g, f, hidden, cols, 0.1, 5), newActivations(g, f, rows, cols, 6)
			old, w, count := normal(rows*hidden, 7), upload(g, normal(hidden, 8)), upload(g, []uint32{0})
			for _, c := range []struct {
				cut    [3]int
				joined bool
			}{{cut: [3]int{128, 1, 2}}, {cut: [3]int{256, 1, 1}}, {cut: [3]int{64, 3, 1}}, {[3]int{128, 2, 1}, true}} {
				what := fmt.Sprintf("%s, %d rows of %d, %+v", f, rows, hidden, c)
				multiply := func(tail shaders.TailNorm) buffer {
					y := upload(g, old)
					p := shaders.GEMVPush{X: a.x, XD: a.xd, Y: y.Addr, Rows: uint32(rows), Add: 1, TailNorm: tail}
					p.SetMatrix(m.buf.Addr, m.Layout)
					dispatch(g, p, cutAs(shaders.GEMVLaunch(p, f, false, g.subgroup), hidden, g.subgroup, c.cut, c.joined))
					return y
				}
				y := multiply(shaders.TailNorm{})
				want, got := newNormed(g, rows, hidden, w), newNormed(g, rows, hidden, w)
				n := want.apart(y.Addr)
				dispatch(g, n, shaders.NormLaunch(n, g.subgroup))
				equal(t, what, fetch[float32](multiply(got.tail(count))), fetch[float32](y))
				got.check(t, what, want)
				equal(t, what+": counter", fetch[uint32](count), []uint32{0})
			}
		}
	}
}

func TestTailNormOfExperts(t *testing.T) {
	g := openGPU(t)
	for _, f := range []format.Format{format.Q8_0, format.F32} {
		for _, hidden := range tailWidths {
			const cols = 64
			what := fmt.Sprintf("%s, rows of %d", f, hidden)
			ly := newLayer(g, f, testExperts, cols, hidden, testAbsent)
			pairs := len(testIDs)
			rows := pairs / testTopK
			a := newActivations(g, f, pairs, cols, 7)
			old, w := normal(rows*hidden, 7), upload(g, normal(hidden, 8))
			y, count := upload(g, old), upload(g, make([]uint32, rows))
			p := shaders.DownPush{
				Table: ly.table.Addr, IDs: upload(g, testIDs).Addr, Weights: upload(g, testWeights).Addr,
				X: a.x, XD: a.xd, Y: y.Addr, Rows: uint32(rows), Experts: testExperts, TopK: testTopK, Add: 1,
			}
			p.SetMatrix(ly.down[0].Layout)
			dispatch(g, p, shaders.DownLaunch(p, f, false, g.subgroup))
			want, got := newNormed(g, rows, hidden, w), newNormed(g, rows, hidden, w)
			n := want.apart(y.Addr)
			dispatch(g, n, shaders.NormLaunch(n, g.subgroup))
			sum := fetch[float32](y)

			y = upload(g, old)
			p.Y, p.TailNorm = y.Addr, got.tail(count)
			dispatch(g, p, shaders.DownLaunch(p, f, false, g.subgroup))
			equal(t, what, fetch[float32](y), sum)
			got.check(t, what, want)
			equal(t, what+": counters", fetch[uint32](count), make([]uint32, rows))

			// Either form may be left out.
			only := newNormed(g, rows, hidden, w)
			p.Y, p.TailNorm = upload(g, old).Addr, only.tail(count)
			p.NormY = 0
			dispatch(g, p, shaders.DownLaunch(p, f, false, g.subgroup))
			equal(t, what+": integer form alone", fetch[uint32](only.q), fetch[uint32](want.q))
			p.Y, p.TailNorm = upload(g, old).Addr, only.tail(count)
			p.NormQ = 0
			dispatch(g, p, shaders.DownLaunch(p, f, false, g.subgroup))
			equal(t, what+": float32 alone", fetch[float32](only.y), fetch[float32](want.y))
		}
	}
}

func TestTailNormFits(t *testing.T) {
	for cols, want := range map[int]bool{32: true, 2048: true, 8192: true, 100: false, 16384: false} {
		if got := shaders.TailNormFits(cols); got != want {
			t.Errorf("rows of %d columns fit: %t", cols, got)
		}
	}
}
