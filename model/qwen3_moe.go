package model

import (
	"slices"

	"github.com/coli-moe/coli/weights"
)

func init() { register("qwen3_moe", newQwen3MoE) }

// newQwen3MoE builds Qwen3MoeForCausalLM: q and k are normalised head by head; a layer is MoE unless mlp_only_layers or
// decoder_sparse_step makes it a dense MLP; routing weights are normalised unless the checkpoint says otherwise.
func newQwen3MoE(cfg *weights.Config, l *loader) (Model, error) {
	keys := append(decoderKeys, "num_experts")
	if cfg.NumExperts > 0 {
		keys = append(keys, "num_experts_per_tok", "moe_intermediate_size")
	}
	if err := cfg.Check(keys...); err != nil {
		return nil, err
	}
	if isTrue(cfg.UseSlidingWindow) {
		return nil, unsupported(cfg, "use_sliding_window", "true")
	}
	if err := checkVariants(cfg); err != nil {
		return nil, err
	}
	return loadDecoder(cfg, l, true, func(il int) feedForward {
		if cfg.NumExperts > 0 && !slices.Contains(cfg.MLPOnlyLayers, il) && (il+1)%max(cfg.DecoderSparseStep, 1) == 0 {
			return loadMoE(cfg, l, il, true)
		}
		return loadMLP(cfg, l.layer(il))
	}), nil
}
