package router

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func logs(x ...float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(math.Log(v))
	}
	return out
}

// logits are what sigmoid makes the given scores of.
func logits(scores ...float64) []float32 {
	out := make([]float32, len(scores))
	for i, s := range scores {
		out[i] = float32(math.Log(s / (1 - s)))
	}
	return out
}

// softplus2 are the logits whose softplus is the square of the given scores.
func softplus2(scores ...float64) []float32 {
	out := make([]float32, len(scores))
	for i, s := range scores {
		out[i] = float32(math.Log(math.Expm1(s * s)))
	}
	return out
}

func route(logits []float32, p Params) (ids []int32, weights []float32) {
	ids, weights = make([]int32, p.TopK), make([]float32, p.TopK)
	Route(ids, weights, logits, make([]float32, len(logits)), p)
	return ids, weights
}

func TestRoute(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	// The softmax of the logarithms of 1, 2, 3, 4 is 0.1, 0.2, 0.3, 0.4.
	softmax := logs(1, 2, 3, 4)
	sigmoid := logits(0.2, 0.8, 0.5, 0.4)
	// Four groups of two: the sums of scores are 1.0, 1.1, 0.9, 0.95.
	groups := logits(0.9, 0.1, 0.6, 0.5, 0.7, 0.2, 0.8, 0.15)
	for _, c := range []struct {
		name    string
		logits  []float32
		p       Params
		ids     []int32
		weights []float32
	}{
		{"softmax, raw", softmax, Params{TopK: 2}, []int32{3, 2}, []float32{0.4, 0.3}},
		{"softmax, normalised", softmax, Params{TopK: 2, Normalize: true}, []int32{3, 2}, []float32{4. / 7, 3. / 7}},
		{"softmax, scaled", softmax, Params{TopK: 2, Normalize: true, Scale: 7}, []int32{3, 2}, []float32{4, 3}},
		{"ties take the lowest id", []float32{1, 5, 5, 5}, Params{TopK: 2, Normalize: true}, []int32{1, 2}, []float32{0.5, 0.5}},
		{"all experts", softmax, Params{TopK: 4}, []int32{3, 2, 1, 0}, []float32{0.4, 0.3, 0.2, 0.1}},
		{"large logits do not overflow", []float32{1e4, 1e4 - 1, -1e4}, Params{TopK: 1}, []int32{0}, []float32{0.7310586}},
		{"one expert", []float32{-3}, Params{TopK: 1, Normalize: true}, []int32{0}, []float32{1}},
		{"softmax with bias", softmax, Params{TopK: 2, Bias: []float32{0.35, 0, 0, 0}}, []int32{0, 3}, []float32{0.1, 0.4}},

		{"softmax of the top k", softmax, Params{Gating: TopKSoftmax, TopK: 2}, []int32{3, 2}, []float32{4. / 7, 3. / 7}},
		{"softmax of the top k, ties", []float32{2, 2, 1, 2}, Params{Gating: TopKSoftmax, TopK: 2}, []int32{0, 1}, []float32{0.5, 0.5}},
		{"softmax of the top k, large", []float32{-1e30, 1e30, 1e30}, Params{Gating: TopKSoftmax, TopK: 3}, []int32{1, 2, 0}, []float32{0.5, 0.5, 0}},

		{"sigmoid, raw", sigmoid, Params{Gating: Sigmoid, TopK: 2}, []int32{1, 2}, []float32{0.8, 0.5}},
		{
			"sigmoid, normalised and scaled", sigmoid,
			Params{Gating: Sigmoid, TopK: 2, Normalize: true, Scale: 2.6},
			[]int32{1, 2},
			[]float32{1.6, 1},
		},
		{
			"the bias chooses and does not weigh", sigmoid,
			Params{Gating: Sigmoid, TopK: 2, Bias: []float32{0.5, -0.6, 0, 0}},
			[]int32{0, 2},
			[]float32{0.2, 0.5},
		},
		{
			"ties made by the bias", logits(0.5, 0.5, 0.5),
			Params{Gating: Sigmoid, TopK: 2, Bias: []float32{0, 0.25, 0.25}},
			[]int32{1, 2},
			[]float32{0.5, 0.5},
		},
		{
			"sigmoids that are all 0",
			[]float32{-1e9, -1e9},
			Params{Gating: Sigmoid, TopK: 2, Normalize: true},
			[]int32{0, 1},
			[]float32{0, 0},
		},

		{"square root of softplus", softplus2(0.5, 2, 1), Params{Gating: SqrtSoftplus, TopK: 2}, []int32{1, 2}, []float32{2, 1}},
		{
			"square root of softplus, normalised", softplus2(0.5, 2, 1),
			Params{Gating: SqrtSoftplus, TopK: 2, Normalize: true, Scale: 1.5},
			[]int32{1, 2},
			[]float32{1, 0.5},
		},
		{"square root of a large softplus", []float32{100, 1e4}, Params{Gating: SqrtSoftplus, TopK: 2}, []int32{1, 0}, []float32{100, 10}},

		// Groups 1 and 0 are taken, so 6 (0.8) and 4 (0.7) are not.
		{
			"group limit", groups,
			Params{Gating: Sigmoid, TopK: 3, Groups: 4, TopKGroups: 2},
			[]int32{0, 2, 3},
			[]float32{0.9, 0.6, 0.5},
		},
		// The bias takes group 3 to the front.
		{
			"group limit with bias", groups,
			Params{Gating: Sigmoid, TopK: 2, Groups: 4, TopKGroups: 1, Bias: []float32{0, 0, 0, 0, 0, 0, 0, 1}},
			[]int32{7, 6},
			[]float32{0.15, 0.8},
		},
		// Only the two best of a group count, not their number: 0.9 + 0.1 against 0.4 + 0.4.
		{
			"a group's two best", logits(0.4, 0.4, 0.4, 0.9, 0.1, 0.1),
			Params{Gating: Sigmoid, TopK: 2, Groups: 2, TopKGroups: 1},
			[]int32{3, 4},
			[]float32{0.9, 0.1},
		},
		{
			"of equal groups the first", logits(0.2, 0.4, 0.4, 0.2, 0.4, 0.2),
			Params{Gating: Sigmoid, TopK: 2, Groups: 3, TopKGroups: 2},
			[]int32{1, 2},
			[]float32{0.4, 0.4},
		},
		{
			"groups of one", logits(0.2, 0.4, 0.3),
			Params{Gating: Sigmoid, TopK: 1, Groups: 3, TopKGroups: 2},
			[]int32{1},
			[]float32{0.4},
		},
		{"all groups", groups, Params{Gating: Sigmoid, TopK: 2, Groups: 4, TopKGroups: 4}, []int32{0, 6}, []float32{0.9, 0.8}},

		{"what is not a number is chosen last", []float32{nan, 0, nan, -inf}, Params{Gating: Sigmoid, TopK: 3}, []int32{1, 3, 0}, []float32{0.5, 0, nan}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.p.Check(len(c.logits)); err != nil {
				t.Fatal(err)
			}
			ids, weights := route(c.logits, c.p)
			if !slices.Equal(ids, c.ids) {
				t.Errorf("ids %v, want %v", ids, c.ids)
			}
			for i, w := range c.weights {
				if d := math.Abs(float64(weights[i] - w)); d > 1e-6*max(1, float64(w)) || w == w && d != d {
					t.Errorf("weights %v, want %v", weights, c.weights)
				}
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for _, p := range []Params{
		{Gating: SqrtSoftplus + 1, TopK: 1},
		{TopK: 0},
		{TopK: 13},
		{TopK: 2, Bias: make([]float32, 11)},
		{TopK: 2, Groups: 5, TopKGroups: 2},
		{TopK: 2, Groups: 4},
		{TopK: 2, Groups: 4, TopKGroups: 5},
		{TopK: 7, Groups: 4, TopKGroups: 2},
	} {
		if p.Check(12) == nil {
			t.Errorf("%+v was accepted", p)
		}
	}
	if (Params{TopK: 1, Groups: 2 * maxGroups, TopKGroups: 1}).Check(2*maxGroups) == nil {
		t.Error("more groups than Route has room for were accepted")
	}
}

// FuzzRoute: whatever the logits, numbers or not, the ids are distinct, of the layer, of the groups that are allowed, and in the order
// of a plain sort.
func FuzzRoute(f *testing.F) {
	f.Add(uint8(8), uint8(3), uint8(0), uint8(0), uint64(1))
	f.Add(uint8(16), uint8(4), uint8(2), uint8(4), uint64(2))
	f.Add(uint8(63), uint8(8), uint8(1), uint8(1), uint64(3))
	f.Fuzz(func(t *testing.T, n, k, gating, groups uint8, seed uint64) {
		experts := int(n)%64 + 1
		p := Params{Gating: Gating(gating % 4), TopK: int(k)%experts + 1, Groups: int(groups) % 9}
		p.TopKGroups = max(p.Groups/2, 1)
		if p.Check(experts) != nil {
			t.Skip()
		}
		r := rand.New(rand.NewPCG(seed, 0))
		x := make([]float32, experts)
		for i := range x {
			if x[i] = float32(r.NormFloat64()); r.IntN(16) == 0 {
				x[i] = math.Float32frombits(r.Uint32())
			}
		}
		ids, _ := route(x, p)
		seen := map[int32]bool{}
		for _, id := range ids {
			if id < 0 || int(id) >= experts || seen[id] {
				t.Fatalf("ids %v of %d experts", ids, experts)
			}
			seen[id] = true
		}
		g, size := scores(make([]float32, experts), x, p.Gating), experts
		if p.Groups > 1 {
			size = experts / p.Groups
		}
		used := map[int32]bool{}
		for i, id := range ids {
			used[id/int32(size)] = true
			if i > 0 && better(g.score(x[id]), g.score(x[ids[i-1]])) {
				t.Fatalf("ids %v are not in order", ids)
			}
		}
		if p.Groups > 1 && len(used) > p.TopKGroups {
			t.Fatalf("ids %v of %d groups", ids, len(used))
		}
		for e := range x { // none of the chosen groups was left out in favour of a worse one
			if used[int32(e/size)] && !seen[int32(e)] && better(g.score(x[e]), g.score(x[ids[len(ids)-1]])) {
				t.Fatalf("expert %d is better than the last of %v", e, ids)
			}
		}
	})
}

func BenchmarkRoute(b *testing.B) {
	for _, p := range []Params{
		{TopK: 8},
		{Gating: Sigmoid, TopK: 8, Groups: 8, TopKGroups: 4, Bias: make([]float32, 256), Normalize: true, Scale: 2.5},
	} {
		b.Run(fmt.Sprintf("gating %d", p.Gating), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			x, scratch := make([]float32, 256), make([]float32, 256)
			for i := range x {
				x[i] = float32(r.NormFloat64())
			}
			ids, weights := make([]int32, 8), make([]float32, 8)
			b.ReportAllocs()
			for b.Loop() {
				Route(ids, weights, x, scratch, p)
			}
		})
	}
}

func TestRouteAllocatesNothing(t *testing.T) {
	x, scratch, ids, weights := make([]float32, 64), make([]float32, 64), make([]int32, 4), make([]float32, 4)
	for gating := range SqrtSoftplus + 1 {
		p := Params{Gating: gating, TopK: 4, Groups: 8, TopKGroups: 2, Bias: make([]float32, 64), Normalize: true}
		if n := testing.AllocsPerRun(100, func() { Route(ids, weights, x, scratch, p) }); n > 0 {
			t.Errorf("gating %d: %v allocations", gating, n)
		}
	}
}
