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
	return loadDecoder(cfg, l, false, func(il int) feedForward { return loadMoE(cfg, l, il, false) }), nil
}
