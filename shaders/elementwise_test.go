package shaders_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/coli-moe/coli/shaders"
)

func TestElementwise(t *testing.T) {
	g := openGPU(t)
	for _, n := range []int{1, 3, 4, 7, 1024, 4099, 65536*4*256/64 + 5} {
		a, b := normal(n, 1), normal(n, 2)
		a[n-1] = -200
		a[0] = float32(math.NaN())
		for _, c := range []struct {
			op        uint32
			f         func(a, b float32) float32
			tolerance float64
		}{
			{shaders.OpAdd, func(a, b float32) float32 { return a + b }, 0},
			{shaders.OpClamp, func(a, _ float32) float32 { return max(-0.5, min(0.5, a)) }, 0},
			{shaders.OpGLU, func(a, b float32) float32 { return float32(silu(a) * float64(b)) }, 1e-6},
		} {
			bb, dst := upload(g, b), g.alloc(4*n)
			p := shaders.ElementwisePush{Dst: dst.Addr, A: upload(g, a).Addr, B: bb.Addr, N: uint32(n), X: 0.5}
			dispatch(g, p, shaders.ElementwiseLaunch(c.op, p))
			got := fetch[float32](dst)
			if !math.IsNaN(float64(got[0])) {
				t.Errorf("op %d of n = %d: a NaN becomes %g", c.op, n, got[0])
			}
			for i := 1; i < n; i++ {
				if w := c.f(a[i], b[i]); math.Abs(float64(got[i]-w)) > c.tolerance*max(1, math.Abs(float64(w))) {
					t.Fatalf("op %d of n = %d: value %d is %g, want %g", c.op, n, i, got[i], w)
				}
			}
			p.Dst = bb.Addr
			dispatch(g, p, shaders.ElementwiseLaunch(c.op, p))
			equal(t, "in place", fetch[float32](bb)[1:], got[1:])
		}
	}
}

func TestGather(t *testing.T) {
	g := openGPU(t)
	index := []int32{4, 0, 4, 2, 6}
	for _, cols := range []int{1, 30, 64, 2048} {
		src := normal(7*cols, 1)
		var want []float32
		for _, i := range index {
			want = append(want, src[int(i)*cols:int(i+1)*cols]...)
		}
		dst := g.alloc(4 * len(want))
		p := shaders.GatherPush{Dst: dst.Addr, Src: upload(g, src).Addr, Index: upload(g, index).Addr, N: 5, Cols: uint32(cols)}
		dispatch(g, p, shaders.GatherLaunch(p))
		equal(t, fmt.Sprint(cols, " columns"), fetch[float32](dst), want)
	}
}
