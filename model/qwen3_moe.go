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
	m := &decoder{ends: loadEnds(cfg, l), layers: make([]decoderLayer, cfg.NumHiddenLayers)}
	for il := 0; il < len(m.layers) && !l.full(); il++ {
		s := l.layer(il)
		layer := &m.layers[il]
		layer.inputNorm, layer.postNorm = loadNorms(cfg, s)
		layer.attention = loadAttention(cfg, s, true)
		sparse := cfg.NumExperts > 0 && !slices.Contains(cfg.MLPOnlyLayers, il) && (il+1)%max(cfg.DecoderSparseStep, 1) == 0
		if sparse {
			layer.ffn = loadMoE(cfg, l, il, true)
		} else {
			layer.ffn = loadMLP(cfg, s)
		}
	}
	return m, nil
}
