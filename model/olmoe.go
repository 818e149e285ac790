package model

import "github.com/coli-moe/coli/weights"

func init() { register("olmoe", newOLMoE) }

// newOLMoE builds OlmoeForCausalLM: every layer is MoE; q and k are normalised over the whole projection, then clipped (with v) and
// rotated; routing weights are raw softmax probabilities unless the checkpoint says norm_topk_prob.
func newOLMoE(cfg *weights.Config, l *loader) (Model, error) {
	if err := cfg.Check(append(decoderKeys, "num_experts", "num_experts_per_tok")...); err != nil {
		return nil, err
	}
	if cfg.NumExperts == 0 {
		return nil, unsupported(cfg, "num_experts", "0")
	}
	if err := checkVariants(cfg); err != nil {
		return nil, err
	}
	m := &decoder{ends: loadEnds(cfg, l), layers: make([]decoderLayer, cfg.NumHiddenLayers)}
	for il := 0; il < len(m.layers) && !l.full(); il++ {
		s := l.layer(il)
		layer := &m.layers[il]
		layer.inputNorm, layer.postNorm = loadNorms(cfg, s)
		layer.attention = loadAttention(cfg, s, false)
		layer.ffn = loadMoE(cfg, l, il, false)
	}
	return m, nil
}
