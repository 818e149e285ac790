package synth

import (
	"math"
	"strings"
)

// maxShare bounds how often a token takes the most popular expert.
const maxShare = 0.98

// damping is, before division by the root of the number of layers, what layers' contributions are scaled by where routing is prescribed.
// At full strength they outgrow the embedding after some layers, tokens become alike, and all take the same experts.
const damping = 0.5

// skew prescribes what makes some experts popular. A router sees normalised activations, which have no constant part it could weigh; so
// one is made: column 0 of every embedding is 1, no layer adds to it, and only routers and experts read it. Column 0 of a router is then
// added to its logits. llama.cpp computes the same, for all of it is in the weights.
func skew(tensors []tensor, g geometry, o Options) {
	constant := func(v float32) func(int) float32 { return func(int) float32 { return v } }
	layer := 0
	for i := range tensors {
		switch t := &tensors[i]; {
		case t.name == "token_embd.weight":
			t.first = constant(1)
		case strings.HasSuffix(t.name, ".attn_output.weight"), strings.HasSuffix(t.name, ".ffn_down_exps.weight"):
			t.silence = true
			t.std *= damping / float32(math.Sqrt(float64(g.layers)))
		case strings.HasSuffix(t.name, ".attn_norm.weight"), t.name == "output_norm.weight":
			t.first = constant(0)
		case strings.HasSuffix(t.name, ".ffn_norm.weight"):
			t.first = constant(1)
		case strings.HasSuffix(t.name, ".ffn_gate_inp.weight"):
			offsets := layerOffsets(g, o, layer)
			t.first = func(expert int) float32 { return offsets[expert] }
			layer++
		}
	}
}

// layerOffsets returns what is added to the logits of a layer's experts. Without it logits are standard normal deviates; so an expert
// whose offset is the q-quantile of the normal distribution lies above 0 with probability q, and the top k are about those above 0.
func layerOffsets(g geometry, o Options, layer int) []float32 {
	shares := zipf(g.experts, g.topK, o.Skew)
	out := make([]float32, g.experts)
	for rank, expert := range newRand(o.Seed, uint64(layer)|1<<62).Perm(g.experts) {
		out[expert] = float32(math.Sqrt2 * math.Erfinv(2*shares[rank]-1))
	}
	return out
}

// zipf returns how often a token takes the expert of each rank: as rank^-exponent, in sum topK, none more often than maxShare.
func zipf(experts, topK int, exponent float64) []float64 {
	out := make([]float64, experts)
	left, capped := float64(topK), 0
	for {
		var sum float64
		for rank := capped; rank < experts; rank++ {
			sum += math.Pow(float64(rank+1), -exponent)
		}
		for rank := capped; rank < experts; rank++ {
			out[rank] = left * math.Pow(float64(rank+1), -exponent) / sum
		}
		if capped == experts || out[capped] <= maxShare {
			return out
		}
		out[capped] = maxShare // what is too much for the first is divided among the others
		left -= maxShare
		capped++
	}
}
