package shaders_test

import (
	"cmp"
	"fmt"
	"math"
	"testing"

	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/shaders"
	"github.com/coli-moe/coli/weights/format"
)

var (
	nan = float32(math.NaN())
	inf = float32(math.Inf(1))
)

// smallest is the smallest normal number: devices may take anything below for 0.
const smallest = 0x1p-126

// routeParams are the fields of RoutePush and RouterPush for package router's parameters, routeFlags the flags.
func routeParams(p router.Params) (topK, groups, topKGroups uint32, scale float32) {
	return uint32(p.TopK), uint32(p.Groups), uint32(p.TopKGroups), cmp.Or(p.Scale, 1)
}

func routeFlags(p router.Params) (flags uint32) {
	if p.Normalize {
		flags |= shaders.RouteNormalize
	}
	if p.Bias != nil {
		flags |= shaders.RouteBias
	}
	return flags
}

// routerLogits are rows of logits that try a router: random ones, ties, values that are no numbers, scores that vanish.
func routerLogits(experts int) (rows [][]float32) {
	for seed := range 4 {
		rows = append(rows, normal(experts, uint64(seed)))
	}
	row := func(f func(i int) float32) {
		x := make([]float32, experts)
		for i := range x {
			x[i] = f(i)
		}
		rows = append(rows, x)
	}
	row(func(int) float32 { return 0 })
	row(func(i int) float32 { return float32(i%3) - 1 })
	row(func(i int) float32 { return float32(math.Copysign(0, float64(i%2)-0.5)) })
	row(func(i int) float32 { return -100 * float32(i) })
	row(func(int) float32 { return nan })
	row(func(i int) float32 { return []float32{nan, 1, 2}[i%3] })
	row(func(i int) float32 { return []float32{-inf, 1, 2}[i%3] })
	row(func(i int) float32 { return []float32{inf, 1, 2}[i%3] })
	row(func(int) float32 { return -inf })
	return rows
}

func TestRouteIsTheRouters(t *testing.T) {
	g := openGPU(t)
	for _, c := range []struct {
		experts int
		p       router.Params
	}{
		{64, router.Params{Gating: router.SoftmaxTopK, TopK: 8}},
		{128, router.Params{Gating: router.SoftmaxTopK, TopK: 8, Normalize: true}},
		{5, router.Params{Gating: router.SoftmaxTopK, TopK: 5, Scale: 2.5}},
		{32, router.Params{Gating: router.TopKSoftmax, TopK: 4}},
		{33, router.Params{Gating: router.TopKSoftmax, TopK: 4, Normalize: true, Bias: normal(33, 9)}},
		{256, router.Params{Gating: router.Sigmoid, TopK: 8, Normalize: true, Scale: 2.5, Bias: normal(256, 9), Groups: 8, TopKGroups: 4}},
		{512, router.Params{Gating: router.Sigmoid, TopK: 10, Normalize: true}},
		{64, router.Params{Gating: router.Sigmoid, TopK: 3, Groups: 64, TopKGroups: 5}},
		{384, router.Params{Gating: router.SqrtSoftplus, TopK: 6, Normalize: true, Scale: 1.5, Bias: normal(384, 9)}},
		{1024, router.Params{Gating: router.SoftmaxTopK, TopK: 22}},
		{1, router.Params{Gating: router.Sigmoid, TopK: 1}},
	} {
		t.Run(fmt.Sprintf("%d of %d gating %d groups %d", c.p.TopK, c.experts, c.p.Gating, c.p.Groups), func(t *testing.T) {
			g.tb = t
			if err := c.p.Check(c.experts); err != nil {
				t.Fatal(err)
			}
			var all []float32
			logits := routerLogits(c.experts)
			for _, row := range logits {
				all = append(all, row...)
			}
			n := len(logits) * c.p.TopK
			ids, weights, host := g.alloc(4*n), g.alloc(4*n), g.alloc(4*n)
			p := shaders.RoutePush{
				Logits: upload(g, all).Addr, Bias: upload(g, append([]float32{0}, c.p.Bias...)).Addr + 4,
				IDs: ids.Addr, Weights: weights.Addr, Host: host.Addr,
				Rows: uint32(len(logits)), Experts: uint32(c.experts), Flags: shaders.RouteHost,
			}
			p.TopK, p.Groups, p.TopKGroups, p.Scale = routeParams(c.p)
			p.Flags |= routeFlags(c.p)
			dispatch(g, p, shaders.RouteLaunch(p, c.p.Gating))
			gotIDs, gotWeights := fetch[int32](ids), fetch[float32](weights)
			equal(t, "the host's ids", fetch[int32](host), gotIDs)
			wantIDs, wantWeights, scratch := make([]int32, c.p.TopK), make([]float32, c.p.TopK), make([]float32, c.experts)
			for r, row := range logits {
				router.Route(wantIDs, wantWeights, row, scratch, c.p)
				at := r * c.p.TopK
				equal(t, fmt.Sprint("ids of row ", r), gotIDs[at:at+c.p.TopK], wantIDs)
				for i, w := range wantWeights {
					got := gotWeights[at+i]
					if isNaN := w != w; isNaN != (got != got) || !isNaN && got != w && !(math.Abs(float64(got-w)) <= 2e-6*math.Abs(float64(w))+smallest) {
						t.Fatalf("row %d: weight %d is %g, want %g", r, i, got, w)
					}
				}
			}
		})
	}
}

// Logits are the product's, and the choice is that of route.comp.
func TestRouter(t *testing.T) {
	g := openGPU(t)
	for _, c := range []struct {
		f          format.Format
		cols, rows int
		experts    int
		bias       bool // of the product
		p          router.Params
	}{
		{format.F32, 2048, 1, 64, false, router.Params{Gating: router.SoftmaxTopK, TopK: 8}},
		{format.F32, 100, 15, 5, true, router.Params{Gating: router.TopKSoftmax, TopK: 2}},
		{format.F32, 257, 3, 33, false, router.Params{Gating: router.SoftmaxTopK, TopK: 4, Normalize: true}},
		{format.BF16, 2880, 4, 32, true, router.Params{Gating: router.TopKSoftmax, TopK: 4}},
		{format.BF16, 63, 2, 7, false, router.Params{Gating: router.SoftmaxTopK, TopK: 7}},
		{format.F16, 36, 9, 256, true, router.Params{Gating: router.Sigmoid, TopK: 8, Normalize: true, Scale: 2.5, Bias: normal(256, 9), Groups: 8, TopKGroups: 4}},
		{format.F16, 4100, 2, 300, false, router.Params{Gating: router.SqrtSoftplus, TopK: 6, Normalize: true, Scale: 1.5, Bias: normal(300, 9)}},
		{format.F32, 16384, 1, 16, false, router.Params{Gating: router.Sigmoid, TopK: 3}},
	} {
		t.Run(fmt.Sprintf("%s %dx%dx%d gating %d", c.f, c.rows, c.cols, c.experts, c.p.Gating), func(t *testing.T) {
			g.tb = t
			if !shaders.RouterFits(c.f, c.experts) {
				t.Fatal("the kernel does not take it")
			}
			m, a := newMatrix(g, c.f, c.experts, c.cols, 0.05, 1), newActivations(g, c.f, c.rows, c.cols, 2)
			added := make([]float32, c.experts)
			bias := upload(g, append([]float32{0}, c.p.Bias...)).Addr + 4
			n := c.rows * c.p.TopK
			ids, weights, host := g.alloc(4*n), g.alloc(4*n), g.alloc(4*n)
			logits, count := g.alloc(4*c.rows*c.experts), upload(g, make([]int32, c.rows))
			p := shaders.RouterPush{
				X: a.x, Logits: logits.Addr, Count: count.Addr, Bias: bias, IDs: ids.Addr, Weights: weights.Addr, Host: host.Addr,
				Rows: uint32(c.rows), Flags: shaders.RouteHost,
			}
			if c.bias {
				added = normal(c.experts, 3)
				p.WBias = upload(g, added).Addr
			}
			p.SetMatrix(m.buf.Addr, m.Layout)
			p.TopK, p.Groups, p.TopKGroups, p.Scale = routeParams(c.p)
			p.Flags |= routeFlags(c.p)
			dispatch(g, p, shaders.RouterLaunch(p, c.f, c.p.Gating))

			var want []float32
			for r := range c.rows {
				for e := range c.experts {
					want = append(want, float32(dot(m, e, a, r))+added[e])
				}
			}
			got := fetch[float32](logits)
			near(t, "logits", got, want, exact)
			wantIDs, wantWeights := g.alloc(4*n), g.alloc(4*n)
			q := shaders.RoutePush{
				Logits: logits.Addr, Bias: bias, IDs: wantIDs.Addr, Weights: wantWeights.Addr, Rows: uint32(c.rows), Experts: uint32(c.experts),
			}
			q.TopK, q.Groups, q.TopKGroups, q.Scale = routeParams(c.p)
			q.Flags |= routeFlags(c.p)
			dispatch(g, q, shaders.RouteLaunch(q, c.p.Gating))
			check := func(what string) {
				t.Helper()
				equal(t, what+" ids", fetch[int32](ids), fetch[int32](wantIDs))
				equal(t, what+" ids of the host", fetch[int32](host), fetch[int32](wantIDs))
				near(t, what+" weights", fetch[float32](weights), fetch[float32](wantWeights), 1e-6)
				equal(t, what+" counters", fetch[int32](count), make([]int32, c.rows))
			}
			check("first")

			// Each row for itself has the same bits.
			for r := range c.rows {
				one := p
				one.X, one.Logits, one.Rows = p.X+uint64(4*r*c.cols), p.Logits+uint64(4*r*c.experts), 1
				one.IDs, one.Weights, one.Host = p.IDs+uint64(4*r*c.p.TopK), p.Weights+uint64(4*r*c.p.TopK), p.Host+uint64(4*r*c.p.TopK)
				dispatch(g, one, shaders.RouterLaunch(one, c.f, c.p.Gating))
			}
			check("alone")
			equal(t, "logits alone", fetch[float32](logits), got)
		})
	}
}

func TestArgMax(t *testing.T) {
	g := openGPU(t)
	for _, cols := range []int{1, 3, 1000, 1027, 50304, 151937} {
		var all []float32
		var want []int32
		add := func(answer int, change func(x []float32)) {
			x := normal(cols, uint64(len(want)))
			change(x)
			all, want = append(all, x...), append(want, int32(answer))
		}
		add(cols-1, func(x []float32) { x[cols-1] = 9 })
		add(cols/2, func(x []float32) { x[cols/2], x[cols-1] = 9, 9 })
		add(0, func(x []float32) { clear(x) })
		add(0, func(x []float32) { clear(x); x[0] = float32(math.Copysign(0, -1)) })
		add(cols/3, func(x []float32) {
			for i := range x {
				x[i] = -3e38
			}
			x[cols/3] = -2e38
		})
		add(-1, func(x []float32) { x[cols-1] = nan })
		add(-1, func(x []float32) { x[cols/2] = -inf })
		add(-1, func(x []float32) { x[0] = inf })
		rows := len(want)
		out, count := g.alloc(4*rows), upload(g, make([]int32, rows))
		p := shaders.ArgMaxPush{
			X: upload(g, all).Addr, Out: out.Addr, Partial: g.alloc(int(shaders.ArgMaxScratch(rows, cols))).Addr, Count: count.Addr,
			Rows: uint32(rows), Cols: uint32(cols),
		}
		for range 2 { // the second time with the counters that the first left
			dispatch(g, p, shaders.ArgMaxLaunch(p))
			equal(t, fmt.Sprint(cols, " columns"), fetch[int32](out), want)
		}
		equal(t, "counters", fetch[int32](count), make([]int32, rows))
	}
}
