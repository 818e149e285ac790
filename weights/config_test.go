package weights

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/weights/gguf"
)

// fromJSON parses a config.json and, if not "", a generation_config.json.
func fromJSON(config, generation string) (*Config, error) {
	var gen []byte
	if generation != "" {
		gen = []byte(generation)
	}
	return parseConfig("config.json", []byte(config), "generation_config.json", gen)
}

// fromKVs builds a GGUF file of metadata alone and parses it.
func fromKVs(t *testing.T, kvs ...gguf.Pair) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := gguf.WriteHeader(f, kvs, nil); err != nil {
		t.Fatal(err)
	}
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Config()
}

var ignoreSource = cmp.Options{cmpopts.IgnoreUnexported(Config{}), cmpopts.IgnoreFields(Config{}, "Raw", "File")}

// TestConfig: the spellings of transformers 4, transformers 5, multimodal files and GGUF give the same values.
func TestConfig(t *testing.T) {
	const common = `"vocab_size":320,"hidden_size":64,"num_hidden_layers":5,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,
		"intermediate_size":96,"moe_intermediate_size":32,"num_experts_per_tok":3,"norm_topk_prob":true,"rms_norm_eps":1e-6,
		"max_position_embeddings":256,"tie_word_embeddings":true,"bos_token_id":1,"eos_token_id":2,"pad_token_id":null,"sliding_window":null`
	want := &Config{
		ModelType: "qwen3_moe", VocabSize: 320, HiddenSize: 64, NumHiddenLayers: 5, NumAttentionHeads: 4, NumKeyValueHeads: 2, HeadDim: 32,
		IntermediateSize: 96, MoEIntermediateSize: 32, NumExperts: 12, NumExpertsPerTok: 3, MaxPositionEmbeddings: 256, NormTopKProb: new(true),
		TieWordEmbeddings: new(true), RMSNormEps: 1e-6, RopeTheta: 1e6, BOS: new(1), EOS: []int{2},
		RopeScaling: &RopeScaling{Type: "yarn", Factor: 4, OriginalMaxPositionEmbeddings: 64, BetaFast: 32, BetaSlow: 1},
	}
	const yarn = `"factor":4.0,"original_max_position_embeddings":64,"beta_fast":32,"beta_slow":1`
	for name, config := range map[string]string{
		"transformers 4": `{"model_type":"qwen3_moe",` + common + `,"num_experts":12,"rope_theta":1000000,"rope_scaling":{"type":"yarn",` + yarn + `}}`,
		"transformers 5": `{"model_type":"qwen3_moe",` + common + `,"num_local_experts":12,"rope_parameters":{"rope_type":"yarn","rope_theta":1e6,` +
			yarn + `}}`,
		"multimodal": `{"model_type":"qwen3_moe","vocab_size":9,"eos_token_id":2,"text_config":{"model_type":"x",` + common +
			`,"num_experts":12.0,"rope_parameters":{"rope_type":"yarn","rope_theta":1e6,` + yarn + `}}}`,
	} {
		got, err := fromJSON(config, "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(want, got, ignoreSource); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	got, err := fromKVs(t,
		gguf.Pair{Key: "general.architecture", Value: "qwen3moe"}, gguf.Pair{Key: "tokenizer.ggml.tokens", Value: make([]string, 320)},
		gguf.Pair{Key: "qwen3moe.embedding_length", Value: uint32(64)}, gguf.Pair{Key: "qwen3moe.block_count", Value: uint32(5)},
		gguf.Pair{Key: "qwen3moe.attention.head_count", Value: uint32(4)},
		gguf.Pair{Key: "qwen3moe.attention.head_count_kv", Value: []int32{2, 2, 2, 2, 2}},
		gguf.Pair{Key: "qwen3moe.attention.key_length", Value: uint64(32)}, gguf.Pair{Key: "qwen3moe.feed_forward_length", Value: uint32(96)},
		gguf.Pair{Key: "qwen3moe.expert_feed_forward_length", Value: int32(32)}, gguf.Pair{Key: "qwen3moe.expert_count", Value: uint32(12)},
		gguf.Pair{Key: "qwen3moe.expert_used_count", Value: uint32(3)}, gguf.Pair{Key: "qwen3moe.expert_weights_norm", Value: true},
		gguf.Pair{Key: "qwen3moe.attention.layer_norm_rms_epsilon", Value: float32(1e-6)},
		gguf.Pair{Key: "qwen3moe.context_length", Value: uint32(256)}, gguf.Pair{Key: "qwen3moe.rope.freq_base", Value: float32(1e6)},
		gguf.Pair{Key: "qwen3moe.rope.scaling.type", Value: "yarn"}, gguf.Pair{Key: "qwen3moe.rope.scaling.factor", Value: float32(4)},
		gguf.Pair{Key: "qwen3moe.rope.scaling.original_context_length", Value: uint32(64)},
		gguf.Pair{Key: "qwen3moe.rope.scaling.yarn_beta_fast", Value: float32(32)},
		gguf.Pair{Key: "qwen3moe.rope.scaling.yarn_beta_slow", Value: float32(1)},
		gguf.Pair{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)}, gguf.Pair{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)},
		gguf.Pair{Key: "tokenizer.ggml.eot_token_id", Value: uint32(5)})
	if err != nil {
		t.Fatal(err)
	}
	want.RMSNormEps, want.EOS = float64(float32(1e-6)), []int{2, 5}
	if diff := cmp.Diff(want, got, ignoreSource); diff != "" {
		t.Errorf("GGUF (-want +got):\n%s", diff)
	}
}

// TestConfigDefaults: what follows from other values, and what stays open.
func TestConfigDefaults(t *testing.T) {
	c, err := fromJSON(`{"model_type":"olmoe","hidden_size":64,"num_attention_heads":4,"intermediate_size":32,"num_experts":8,"num_experts_per_tok":2,
		"clip_qkv":1.5,"pad_token_id":-1}`, "")
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		ModelType: "olmoe", HiddenSize: 64, NumAttentionHeads: 4, NumKeyValueHeads: 4, HeadDim: 16, IntermediateSize: 32, MoEIntermediateSize: 32,
		NumExperts: 8, NumExpertsPerTok: 2, ClipQKV: new(float32(1.5)),
	}
	if diff := cmp.Diff(want, c, ignoreSource); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := c.Check("hidden_size", "moe_intermediate_size"); err != nil {
		t.Error(err)
	}
	err = c.Check("hidden_size", "vocab_size", "rope_theta")
	if !errors.Is(err, ErrMissingKey) || !strings.Contains(err.Error(), `config.json: key "vocab_size, rope_theta"`) {
		t.Errorf("%v", err)
	}
}

// TestConfigGGUFNames: messages name GGUF's own keys, and a number that differs by layer is not taken for the architecture's.
func TestConfigGGUFNames(t *testing.T) {
	kvs := []gguf.Pair{
		{Key: "general.architecture", Value: "olmoe"},
		{Key: "olmoe.attention.head_count", Value: uint32(4)},
		{Key: "olmoe.attention.head_count_kv", Value: []int32{4, 2}},
		{Key: "olmoe.embedding_length", Value: uint32(64)},
	}
	c, err := fromKVs(t, kvs...)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Check("num_attention_heads", "num_key_value_heads", "hidden_size")
	if c.NumKeyValueHeads != 0 || !errors.Is(err, ErrMissingKey) || !strings.Contains(err.Error(), `"olmoe.attention.head_count_kv"`) {
		t.Errorf("%d heads, %v", c.NumKeyValueHeads, err)
	}
	if c.EOS != nil || c.BOS != nil {
		t.Errorf("absent tokens are %v and %v", c.BOS, c.EOS)
	}
	kvs[3].Value = int32(-1)
	if _, err := fromKVs(t, kvs...); !errors.Is(err, ErrValue) || !strings.Contains(err.Error(), `m.gguf: key "olmoe.embedding_length": impossible value: -1`) {
		t.Errorf("%v", err)
	}
	if _, err := fromKVs(t, kvs[1:]...); !errors.Is(err, ErrMissingKey) || !strings.Contains(err.Error(), "general.architecture") {
		t.Errorf("%v", err)
	}
}

// TestEOS: the union of both files, one id or a list, none is none.
func TestEOS(t *testing.T) {
	for _, tt := range []struct {
		config, generation string
		want               []int
	}{
		{`{}`, ``, nil},
		{`{"eos_token_id":null}`, `{}`, nil},
		{`{"eos_token_id":0}`, ``, []int{0}},
		{`{"eos_token_id":2}`, `{"eos_token_id":[3,2,4]}`, []int{2, 3, 4}},
		{`{"eos_token_id":[7,8]}`, `{"eos_token_id":7}`, []int{7, 8}},
		{`{}`, `{"eos_token_id":9}`, []int{9}},
		{`{"eos_token_id":-1}`, ``, nil},
		{`{"eos_token_id":5,"text_config":{"eos_token_id":6}}`, ``, []int{6}},
	} {
		c, err := fromJSON(tt.config, tt.generation)
		if err != nil || !cmp.Equal(c.EOS, tt.want) {
			t.Errorf("%s and %s: %v %v, want %v", tt.config, tt.generation, c.EOS, err, tt.want)
		}
	}
}

func TestGeneration(t *testing.T) {
	c, err := fromJSON(`{}`, `{"temperature":0.7,"top_p":0.8,"top_k":20,"min_p":0,"repetition_penalty":1.05,"do_sample":true,"bos_token_id":4}`)
	if err != nil {
		t.Fatal(err)
	}
	want := Generation{new(0.7), new(0.8), new(0.0), new(1.05), new(20), new(true)}
	if diff := cmp.Diff(want, c.Generation); diff != "" || *c.BOS != 4 {
		t.Errorf("BOS %d (-want +got):\n%s", *c.BOS, diff)
	}
}

// badConfigs are config.json and generation_config.json that must be refused, and the key the message must name.
var badConfigs = map[string]struct {
	config, generation string
	err                error
	says               string
}{
	"cut":                    {`{"hidden_size":64`, "", ErrHeader, "EOF"},
	"not an object":          {`[1]`, "", ErrHeader, "not a JSON object"},
	"more after the object":  {`{}{}`, "", ErrHeader, ""},
	"key given twice":        {`{"hidden_size":64,"hidden_size":32}`, "", ErrDuplicate, "hidden_size"},
	"nested key given twice": {`{"text_config":{"a":1,"a":2}}`, "", ErrDuplicate, `"a"`},
	"nested too deep":        {`{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "", ErrHeader, "deeper"},
	"not UTF-8":              {"{\"\xff\":1}", "", ErrHeader, "UTF-8"},
	"negative":               {`{"hidden_size":-64}`, "", ErrValue, `"hidden_size": impossible value: -64`},
	"zero heads":             {`{"num_attention_heads":0}`, "", ErrValue, `"num_attention_heads"`},
	"a fraction":             {`{"num_hidden_layers":1.5}`, "", ErrValue, `"num_hidden_layers"`},
	"text for a number":      {`{"vocab_size":"320"}`, "", ErrValue, `"vocab_size"`},
	"number for text":        {`{"hidden_act":1}`, "", ErrValue, `"hidden_act"`},
	"huge":                   {`{"vocab_size":1e30}`, "", ErrValue, `"vocab_size": impossible value: 1e30`},
	"beyond int64":           {`{"vocab_size":99999999999999999999}`, "", ErrValue, `"vocab_size"`},
	"top_k above experts":    {`{"num_local_experts":4,"num_experts_per_tok":5}`, "", ErrValue, "5 of 4"},
	"top_k 0":                {`{"num_experts":4,"num_experts_per_tok":0}`, "", ErrValue, `"num_experts_per_tok"`},
	"hidden not divisible":   {`{"hidden_size":65,"num_attention_heads":4}`, "", ErrValue, "65"},
	"heads not divisible":    {`{"num_attention_heads":4,"num_key_value_heads":3}`, "", ErrValue, `"num_key_value_heads"`},
	"layer that is not":      {`{"num_hidden_layers":2,"mlp_only_layers":[2]}`, "", ErrValue, `"mlp_only_layers"`},
	"layers are no list":     {`{"mlp_only_layers":2}`, "", ErrValue, `"mlp_only_layers"`},
	"eps 0":                  {`{"rms_norm_eps":0}`, "", ErrValue, `"rms_norm_eps"`},
	"theta beyond float64":   {`{"rope_theta":1e999}`, "", ErrValue, `"rope_theta"`},
	"clip 0":                 {`{"clip_qkv":0}`, "", ErrValue, `"clip_qkv"`},
	"bool in words":          {`{"norm_topk_prob":"yes"}`, "", ErrValue, `"norm_topk_prob"`},
	"rope is no object":      {`{"rope_scaling":"yarn"}`, "", ErrValue, `"rope_scaling"`},
	"rope factor negative":   {`{"rope_parameters":{"rope_type":"yarn","factor":-2}}`, "", ErrValue, `"rope_parameters.factor"`},
	"long factors in words":  {`{"rope_scaling":{"type":"longrope","long_factor":["a"]}}`, "", ErrValue, `"rope_scaling.long_factor"`},
	"token -2":               {`{"bos_token_id":-2}`, "", ErrValue, `"bos_token_id"`},
	"token list with text":   {`{"eos_token_id":[1,"x"]}`, "", ErrValue, `"eos_token_id"`},
	"generation cut":         {`{}`, `{"a"`, ErrHeader, "generation_config.json"},
	"generation value":       {`{}`, `{"top_k":-1}`, ErrValue, `generation_config.json: key "top_k"`},
}

func TestBadConfigs(t *testing.T) {
	for name, tt := range badConfigs {
		_, err := fromJSON(tt.config, tt.generation)
		var e *Error
		if !errors.Is(err, tt.err) || !errors.As(err, &e) {
			t.Errorf("%s: %v, want %v", name, err, tt.err)
		} else if e.Try == "" || !strings.Contains(err.Error(), tt.says) || !strings.Contains(e.File, "config.json") {
			t.Errorf("%s: the message lacks the file, %s or advice: %v", name, tt.says, err)
		}
	}
}

// TestConfigFile: a checkpoint whose config is missing or no config still opens; asking for the config gives the error.
func TestConfigFile(t *testing.T) {
	model, err := os.ReadFile(sharedtest.Testdata("oracles", "olmoe", "logits.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]error{
		"":                                       ErrEmpty,
		"<html>":                                 ErrHTML,
		"version https://git-lfs.github.com/s":   ErrLFSPointer,
		`{"num_attention_heads":4}`:              nil,
		`{"num_attention_heads":4,"hidden_size"`: ErrHeader,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), model, 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Config(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "beside its weights") {
			t.Errorf("no config.json: %v", err)
		}
		c.Close()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if c, err = Open(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Config(); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", content, err, want)
		}
		c.Close()
	}
}

// FuzzConfig: no config panics, and what is accepted keeps the promises an architecture builds on.
func FuzzConfig(f *testing.F) {
	for _, tt := range badConfigs {
		f.Add([]byte(tt.config), []byte(tt.generation))
	}
	for _, name := range []string{"olmoe", "qwen3_moe"} {
		dir := sharedtest.Testdata("oracles", name)
		config, err := os.ReadFile(filepath.Join(dir, "config.json"))
		gen, gerr := os.ReadFile(filepath.Join(dir, "generation_config.json"))
		if err = errors.Join(err, gerr); err != nil {
			f.Fatal(err)
		}
		f.Add(config, gen)
	}
	f.Fuzz(func(t *testing.T, config, gen []byte) {
		c, err := parseConfig("config.json", config, "generation_config.json", gen)
		if err != nil {
			return
		}
		for _, n := range []int{
			c.VocabSize, c.HiddenSize, c.NumHiddenLayers, c.NumAttentionHeads, c.NumKeyValueHeads, c.HeadDim, c.IntermediateSize,
			c.MoEIntermediateSize, c.NumExperts, c.NumExpertsPerTok, c.MaxPositionEmbeddings, c.SlidingWindow,
		} {
			if n < 0 || n > maxInt {
				t.Fatalf("%d passes", n)
			}
		}
		if c.NumKeyValueHeads > 0 && c.NumAttentionHeads%c.NumKeyValueHeads != 0 {
			t.Errorf("%d heads, %d of keys and values", c.NumAttentionHeads, c.NumKeyValueHeads)
		}
		if c.NumExperts > 0 && c.NumExpertsPerTok > c.NumExperts {
			t.Errorf("%d of %d experts", c.NumExpertsPerTok, c.NumExperts)
		}
	})
}

// TestOSErrors: errors of the operating system become typed ones, with the path once, and advice.
func TestOSErrors(t *testing.T) {
	for _, cause := range []error{os.ErrPermission, os.ErrNotExist} {
		err := osError("m.gguf", &os.PathError{Op: "open", Path: "m.gguf", Err: cause})
		var e *Error
		if !errors.Is(err, cause) || !errors.As(err, &e) || e.Try == "" || strings.Count(err.Error(), "m.gguf") != 1 {
			t.Errorf("%v", err)
		}
		if again := osError("other", err); again != err {
			t.Errorf("a typed error changed: %v", again)
		}
	}
	if err := osError("m.gguf", nil); err != nil {
		t.Error(err)
	}
}
