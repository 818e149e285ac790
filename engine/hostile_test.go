package engine

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coli-moe/coli/engine/sampler"
	"github.com/coli-moe/coli/weights/format"
	"github.com/coli-moe/coli/weights/gguf"
)

// sketch is a GGUF file to be: metadata and tensors, with values that are all zero.
type sketch struct {
	arch    string
	kvs     []gguf.Pair
	tensors []gguf.Tensor
}

// sketchOf returns a sound model of two layers with four experts.
func sketchOf(arch string) *sketch {
	s := &sketch{arch: arch}
	tokens, types := make([]string, 64), make([]int32, 64)
	for i := range tokens {
		tokens[i], types[i] = string(rune('A'+i)), 1
	}
	s.kvs = []gguf.Pair{
		{Key: "general.architecture", Value: arch},
		{Key: "block_count", Value: uint32(2)},
		{Key: "context_length", Value: uint32(64)},
		{Key: "embedding_length", Value: uint32(256)},
		{Key: "feed_forward_length", Value: uint32(256)},
		{Key: "attention.head_count", Value: uint32(4)},
		{Key: "attention.head_count_kv", Value: uint32(4)},
		{Key: "attention.key_length", Value: uint32(64)},
		{Key: "attention.layer_norm_rms_epsilon", Value: float32(1e-5)},
		{Key: "rope.freq_base", Value: float32(1e4)},
		{Key: "expert_count", Value: uint32(4)},
		{Key: "expert_used_count", Value: uint32(2)},
		{Key: "expert_feed_forward_length", Value: uint32(256)},
	}
	for i := range s.kvs[1:] {
		s.kvs[1+i].Key = arch + "." + s.kvs[1+i].Key
	}
	s.kvs = append(s.kvs,
		gguf.Pair{Key: "tokenizer.ggml.model", Value: "gpt2"}, gguf.Pair{Key: "tokenizer.ggml.pre", Value: "olmo"},
		gguf.Pair{Key: "tokenizer.ggml.tokens", Value: tokens}, gguf.Pair{Key: "tokenizer.ggml.token_type", Value: types},
		gguf.Pair{Key: "tokenizer.ggml.merges", Value: []string{}}, gguf.Pair{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)},
		gguf.Pair{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)})
	s.add("token_embd.weight", format.Q8_0, 64, 256)
	s.add("output_norm.weight", format.F32, 256)
	s.add("output.weight", format.Q8_0, 64, 256)
	norm := 256
	if arch == "qwen3moe" {
		norm = 64 // a head
	}
	for il := range 2 {
		layer := func(name string, f format.Format, shape ...int) {
			s.add(fmt.Sprintf("blk.%d.%s.weight", il, name), f, shape...)
		}
		layer("attn_norm", format.F32, 256)
		for _, name := range []string{"attn_q", "attn_k", "attn_v", "attn_output"} {
			layer(name, format.Q8_0, 256, 256)
		}
		layer("attn_q_norm", format.F32, norm)
		layer("attn_k_norm", format.F32, norm)
		layer("ffn_norm", format.F32, 256)
		layer("ffn_gate_inp", format.F32, 4, 256)
		for _, name := range []string{"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"} {
			layer(name, format.Q4_K, 4, 256, 256)
		}
	}
	return s
}

func (s *sketch) add(name string, f format.Format, shape ...int) {
	s.tensors = append(s.tensors, gguf.Tensor{Name: name, Format: f, Shape: shape})
}

// set gives a key another value; a key without "." at the front of the architecture's own.
func (s *sketch) set(key string, value any) {
	if !strings.HasPrefix(key, "tokenizer.") && !strings.HasPrefix(key, "general.") {
		key = s.arch + "." + key
	}
	for i := range s.kvs {
		if s.kvs[i].Key == key {
			s.kvs[i].Value = value
			return
		}
	}
	s.kvs = append(s.kvs, gguf.Pair{Key: key, Value: value})
}

func (s *sketch) drop(key string) {
	s.kvs = slices.DeleteFunc(s.kvs, func(kv gguf.Pair) bool { return strings.HasSuffix(kv.Key, key) })
}

func (s *sketch) tensor(name string) *gguf.Tensor {
	return &s.tensors[slices.IndexFunc(s.tensors, func(t gguf.Tensor) bool { return t.Name == name })]
}

// write makes the file, sparse behind its header.
func (s *sketch) write(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hostile.gguf")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := gguf.WriteHeader(f, s.kvs, s.tensors); err != nil {
		t.Fatal(err)
	}
	end, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		t.Fatal(err)
	}
	for _, tensor := range s.tensors {
		end = max(end, tensor.Offset+tensor.Size)
	}
	if err := f.Truncate(end); err != nil {
		t.Fatal(err)
	}
	return path
}

// use does with a file what a run does: load it, and answer a prompt that begins as the vocabulary says.
func use(t *testing.T, path string) error {
	m, err := Load(t.Context(), path, Options{Threads: 2, Chunk: 2})
	if err != nil {
		return err
	}
	defer m.Close()
	tok, err := m.Tokenizer()
	if err != nil {
		return err
	}
	s, err := m.NewSession(0)
	if err != nil {
		return err
	}
	_, err = s.Generate(t.Context(), Request{
		Prompt: append(tok.Prefix(), tok.Encode("ABC")...), Sampler: sample(t, sampler.Params{RepeatPenalty: 1, TopP: 1}), MaxTokens: 4,
		Emit: func(string) error { return nil },
	})
	return err
}

// TestHostileFiles: a file in which one thing is wrong is refused in words that name it, without a panic, without a long wait, and without
// much memory; a file that is only unusual runs.
func TestHostileFiles(t *testing.T) {
	const huge = math.MaxInt32
	set := func(key string, value any) func(*sketch) { return func(s *sketch) { s.set(key, value) } }
	reshape := func(name string, shape ...int) func(*sketch) { return func(s *sketch) { s.tensor(name).Shape = shape } }
	retype := func(f format.Format, names ...string) func(*sketch) {
		return func(s *sketch) {
			for _, name := range names {
				s.tensor(name).Format = f
			}
		}
	}
	tokens := func(n int) func(*sketch) {
		return func(s *sketch) {
			list, types := make([]string, n), make([]int32, n)
			for i := range list {
				list[i], types[i] = string(rune('A'+i)), 1
			}
			s.set("tokenizer.ggml.tokens", list)
			s.set("tokenizer.ggml.token_type", types)
		}
	}
	for _, c := range []struct {
		name string
		edit func(*sketch)
		says string // what the error must contain, separated by blanks; "": it runs
	}{
		{"sound", func(*sketch) {}, ""},

		{"no architecture", func(s *sketch) { s.drop("general.architecture") }, "general.architecture"},
		{"unknown architecture", set("general.architecture", "olmost"), "olmost"},
		{"no layers", set("block_count", uint32(0)), "block_count"},
		{"too few layers", set("block_count", uint32(1)), "blk.1."},
		{"too many layers", set("block_count", uint32(3)), "blk.2."},
		{"huge number of layers", set("block_count", uint32(huge)), "block_count"},
		{"many layers without tensors", func(s *sketch) {
			s.set("block_count", uint32(20000))
			for i := range 20000 {
				s.add(fmt.Sprint("other.", i), format.F32, 1)
			}
		}, "blk.2. more"},
		{"width of zero", set("embedding_length", uint32(0)), "embedding_length"},
		{"another width", set("embedding_length", uint32(512)), "token_embd"},
		{"huge width", set("embedding_length", uint32(huge)), "token_embd"},
		{"beyond 2^31", set("embedding_length", uint64(math.MaxUint64)), "embedding_length"},
		{"a width of text", set("embedding_length", "256"), "embedding_length"},
		{"no heads", set("attention.head_count", uint32(0)), "attention.head_count"},
		{"heads that differ", set("attention.head_count", []int32{4, 2}), "attention.head_count"},
		{"huge number of heads", set("attention.head_count", uint32(huge)), "head_count_kv"},
		{"huge number of heads of both kinds", func(s *sketch) {
			s.set("attention.head_count", uint32(huge))
			s.set("attention.head_count_kv", uint32(huge))
		}, "attn_q"},
		{"no key heads", set("attention.head_count_kv", uint32(0)), "attention.head_count_kv"},
		{"key heads that differ", set("attention.head_count_kv", []int32{4, 2}), "attention.head_count_kv"},
		{"key heads that do not divide", set("attention.head_count_kv", uint32(3)), "attention.head_count_kv"},
		{"more key heads than heads", set("attention.head_count_kv", uint32(8)), "attention.head_count_kv"},
		{"odd head width", func(s *sketch) {
			s.set("attention.key_length", uint32(63))
			for il := range 2 {
				for _, name := range []string{"attn_q", "attn_k", "attn_v"} {
					s.tensor(fmt.Sprintf("blk.%d.%s.weight", il, name)).Shape[0] = 4 * 63
				}
				s.tensor(fmt.Sprintf("blk.%d.attn_output.weight", il)).Format = format.F16
				s.tensor(fmt.Sprintf("blk.%d.attn_output.weight", il)).Shape[1] = 4 * 63
				for _, name := range []string{"attn_q_norm", "attn_k_norm"} {
					n := s.tensor(fmt.Sprintf("blk.%d.%s.weight", il, name))
					n.Shape[0] = n.Shape[0] / 64 * 63
				}
			}
		}, "attention.key_length 63"},
		{"huge head width", set("attention.key_length", uint32(huge-1)), "attn_q"},
		{"width that heads do not divide", func(s *sketch) {
			s.drop("attention.key_length")
			s.set("attention.head_count", uint32(3))
			s.set("attention.head_count_kv", uint32(3))
		}, "embedding_length"},
		{"half of a head rotated", set("rope.dimension_count", uint32(32)), "rope.dimension_count 0.5"},
		{"no epsilon", func(s *sketch) { s.drop("layer_norm_rms_epsilon") }, "layer_norm_rms_epsilon"},
		{"epsilon of zero", set("attention.layer_norm_rms_epsilon", float32(0)), "layer_norm_rms_epsilon"},
		{"epsilon that is no number", set("attention.layer_norm_rms_epsilon", float32(math.NaN())), "layer_norm_rms_epsilon"},
		{"negative theta", set("rope.freq_base", float32(-1)), "rope.freq_base"},
		{"infinite theta", set("rope.freq_base", float32(math.Inf(1))), "rope.freq_base"},
		{"scaled positions", set("rope.scaling.factor", float32(4)), "rope_scaling linear"},
		{"positions scaled by one", set("rope.scaling.factor", float32(1)), ""},
		{"no context", func(s *sketch) { s.drop("context_length") }, "context"},
		{"huge context", set("context_length", uint32(huge)), ""},
		{"a long list", set("wide", make([]uint32, 1<<20)), ""},

		{"no number of experts", func(s *sketch) { s.drop("expert_count") }, "expert_count"},
		{"no experts", set("expert_count", uint32(0)), "exp"}, // by the key, or by the dense matrices that are missing
		{"more experts than stored", set("expert_count", uint32(5)), "blk.0.ffn_gate_inp"},
		{"fewer experts than stored", func(s *sketch) {
			s.set("expert_count", uint32(3))
			s.tensor("blk.0.ffn_gate_inp.weight").Shape[0] = 3
			s.tensor("blk.1.ffn_gate_inp.weight").Shape[0] = 3
		}, "blk.0.ffn_gate_exps.weight 3 experts"},
		{"huge number of experts", set("expert_count", uint32(huge)), "blk.0.ffn_gate_inp"},
		{"no experts a token", set("expert_used_count", uint32(0)), "expert_used_count"},
		{"unsaid experts a token", func(s *sketch) { s.drop("expert_used_count") }, "expert_used_count"},
		{"all experts a token", set("expert_used_count", uint32(4)), ""},
		{"more experts a token than there are", set("expert_used_count", uint32(5)), "expert_used_count"},
		{"another expert width", set("expert_feed_forward_length", uint32(512)), "blk.0.ffn_gate_exps"},
		{"fewer experts in one tensor", reshape("blk.1.ffn_down_exps.weight", 3, 256, 256), "blk.1.ffn_down_exps"},
		{"experts that are no stack", reshape("blk.0.ffn_up_exps.weight", 4, 256), "blk.0.ffn_up_exps"},
		{"experts of another shape in one layer", reshape("blk.1.ffn_up_exps.weight", 4, 128, 256), "blk.1.ffn_up_exps"},
		{"experts of other formats", func(s *sketch) {
			s.tensor("blk.0.ffn_up_exps.weight").Format = format.F16
			s.tensor("blk.0.ffn_down_exps.weight").Format = format.Q6_K
			s.tensor("blk.1.ffn_gate_exps.weight").Format = format.IQ2_XXS
		}, ""},
		{"router in integers", retype(format.Q8_0, "blk.0.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"), ""},

		{"vocabulary smaller than the embedding", tokens(63), "token_embd"},
		{"vocabulary larger than the embedding", tokens(65), "token_embd"},
		{"padded embedding", func(s *sketch) { tokens(60)(s); s.set("vocab_size", uint32(64)) }, ""},
		{"tokens beyond the embedding", func(s *sketch) {
			tokens(80)(s)
			s.set("vocab_size", uint32(64))
			s.set("tokenizer.ggml.bos_token_id", uint32(79))
			s.set("tokenizer.ggml.add_bos_token", true)
		}, "79 64"},
		{"embedding with too few rows", reshape("token_embd.weight", 63, 256), "token_embd"},
		{"head with too few rows", reshape("output.weight", 63, 256), "output.weight"},
		{"tied embedding", func(s *sketch) {
			s.tensors = slices.DeleteFunc(s.tensors, func(t gguf.Tensor) bool { return t.Name == "output.weight" })
		}, ""},
		{"BOS outside the vocabulary", set("tokenizer.ggml.bos_token_id", uint32(64)), "bos_token_id 64"},
		{"EOS outside the vocabulary", set("tokenizer.ggml.eos_token_id", uint32(1<<30)), "eos_token_id"},
		{"EOS of 2^32-1, none", set("tokenizer.ggml.eos_token_id", uint32(math.MaxUint32)), ""},
		{"EOS of -1, none", set("tokenizer.ggml.eos_token_id", int32(-1)), ""},
		{"EOS in words", set("tokenizer.ggml.eos_token_id", "end"), "eos_token_id"},
		{"end of turn outside the vocabulary", set("tokenizer.ggml.eot_token_id", uint32(huge)), ""},
		{"types of too few tokens", set("tokenizer.ggml.token_type", []int32{1, 1}), "token_type"},
		{"tokens that are numbers", set("tokenizer.ggml.tokens", make([]uint32, 64)), "tokenizer.ggml.tokens"},
		{"no tokens", func(s *sketch) { s.drop("ggml.tokens"); s.set("vocab_size", uint32(64)) }, "tokenizer.ggml.tokens"},
		{"merge of unknown tokens", set("tokenizer.ggml.merges", []string{"A é"}), "merges"},
		{"unknown vocabulary", set("tokenizer.ggml.model", "t5"), "tokenizer.ggml.model t5"},
		{"unknown pieces", set("tokenizer.ggml.pre", "nothing"), "tokenizer.ggml.pre nothing"},

		{"norms in half precision", retype(format.BF16, "output_norm.weight", "blk.0.attn_norm.weight"), ""},
		{"norms in blocks", retype(format.Q4_K, "output_norm.weight", "blk.1.ffn_norm.weight"), ""},
		{"short norm", reshape("blk.0.attn_norm.weight", 255), "blk.0.attn_norm"},
		{"norm that is a matrix", reshape("blk.0.attn_norm.weight", 1, 256), "blk.0.attn_norm"},
		{"transposed matrix", reshape("blk.0.attn_k.weight", 128, 512), "blk.0.attn_k"},
		{"matrix of three dimensions", reshape("blk.0.attn_k.weight", 1, 256, 256), "blk.0.attn_k"},
		{"missing tensor", func(s *sketch) {
			s.tensors = slices.DeleteFunc(s.tensors, func(t gguf.Tensor) bool { return t.Name == "blk.1.attn_v.weight" })
		}, "blk.1.attn_v"},
		{
			"tensor under another name", func(s *sketch) { s.tensor("blk.1.attn_v.weight").Name = "blk.1.attention_v.weight" },
			"blk.1.attn_v.weight blk.1.attention_v.weight",
		},
		{"unknown tensor", func(s *sketch) { s.add("blk.0.ffn_gate_shexp.weight", format.F32, 4) }, "ffn_gate_shexp"},
		{"factors of RoPE", func(s *sketch) { s.add("rope_freqs.weight", format.F32, 32) }, "rope_freqs"},
	} {
		for _, arch := range []string{"olmoe", "qwen3moe"} {
			t.Run(arch+"/"+c.name, func(t *testing.T) {
				s := sketchOf(arch)
				c.edit(s)
				path := s.write(t)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				err := use(t, path)
				runtime.ReadMemStats(&after)
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
				if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
					t.Errorf("it took %d MiB of memory", n>>20)
				}
				switch {
				case c.says == "" && err != nil:
					t.Errorf("refused: %v", err)
				case c.says != "" && err == nil:
					t.Error("accepted")
				case c.says != "":
					for _, word := range strings.Fields(c.says) {
						if !strings.Contains(err.Error(), word) {
							t.Errorf("%v: does not say %q", err, word)
						}
					}
				}
			})
		}
	}
}
