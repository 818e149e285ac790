package router

import (
	"math"
	"slices"
	"testing"
)

func TestRoute(t *testing.T) {
	// softmax of (ln 1, ln 2, ln 3, ln 4) is (0.1, 0.2, 0.3, 0.4).
	logs := []float32{0, float32(math.Log(2)), float32(math.Log(3)), float32(math.Log(4))}
	for _, c := range []struct {
		name    string
		logits  []float32
		p       Params
		ids     []int32
		weights []float32
	}{
		{"raw probabilities", logs, Params{TopK: 2}, []int32{3, 2}, []float32{0.4, 0.3}},
		{"normalised", logs, Params{TopK: 2, Normalize: true}, []int32{3, 2}, []float32{4. / 7, 3. / 7}},
		{"ties take the lowest id", []float32{1, 5, 5, 5}, Params{TopK: 2, Normalize: true}, []int32{1, 2}, []float32{0.5, 0.5}},
		{"all experts", logs, Params{TopK: 4}, []int32{3, 2, 1, 0}, []float32{0.4, 0.3, 0.2, 0.1}},
		{"large logits do not overflow", []float32{1e4, 1e4 - 1, -1e4}, Params{TopK: 1}, []int32{0}, []float32{0.7310586}},
		{"one expert", []float32{-3}, Params{TopK: 1, Normalize: true}, []int32{0}, []float32{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ids, weights := make([]int32, c.p.TopK), make([]float32, c.p.TopK)
			Route(ids, weights, c.logits, make([]float32, len(c.logits)), c.p)
			if !slices.Equal(ids, c.ids) {
				t.Errorf("ids %v, want %v", ids, c.ids)
			}
			for i, w := range c.weights {
				if math.Abs(float64(weights[i]-w)) > 1e-6 {
					t.Errorf("weights %v, want %v", weights, c.weights)
				}
			}
		})
	}
}

// FuzzRoute: whatever the logits, the ids are distinct and inside the layer.
func FuzzRoute(f *testing.F) {
	f.Add(uint8(8), uint8(3), int64(1))
	f.Fuzz(func(t *testing.T, n, k uint8, seed int64) {
		experts := int(n)%64 + 1
		topK := int(k)%experts + 1
		logits := make([]float32, experts)
		for i := range logits {
			seed = seed*6364136223846793005 + 1442695040888963407
			logits[i] = math.Float32frombits(uint32(seed >> 32))
			if v := float64(logits[i]); math.IsNaN(v) || math.IsInf(v, 0) {
				logits[i] = float32(seed >> 60)
			}
		}
		ids, weights := make([]int32, topK), make([]float32, topK)
		Route(ids, weights, logits, make([]float32, experts), Params{TopK: topK})
		seen := map[int32]bool{}
		for _, id := range ids {
			if id < 0 || int(id) >= experts || seen[id] {
				t.Fatalf("ids %v of %d experts", ids, experts)
			}
			seen[id] = true
		}
	})
}
