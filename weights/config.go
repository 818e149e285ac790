package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coli-moe/coli/weights/gguf"
	"github.com/coli-moe/coli/weights/internal/badfile"
	"github.com/coli-moe/coli/weights/internal/jsonscan"
)

// Config holds a model's hyper-parameters under Hugging Face's names, whatever file they came from. A zero number is one the file
// does not give (no field has a meaningful zero); where absence and zero differ, the field is a pointer. An architecture says what
// it cannot do without through Check.
type Config struct {
	File      string // where the values came from, for messages
	ModelType string // "olmoe", "qwen3_moe"; GGUF's architecture names are translated

	VocabSize             int
	HiddenSize            int
	NumHiddenLayers       int
	NumAttentionHeads     int
	NumKeyValueHeads      int // NumAttentionHeads where the file does not give it
	HeadDim               int // HiddenSize / NumAttentionHeads where the file does not give it
	IntermediateSize      int // width of the dense MLP
	MoEIntermediateSize   int // width of one expert; IntermediateSize where the file has one width only
	NumExperts            int
	NumExpertsPerTok      int
	DecoderSparseStep     int
	MLPOnlyLayers         []int
	MaxPositionEmbeddings int
	SlidingWindow         int

	NormTopKProb      *bool
	AttentionBias     *bool
	TieWordEmbeddings *bool
	UseSlidingWindow  *bool
	ClipQKV           *float32

	RMSNormEps          float64
	RopeTheta           float64
	PartialRotaryFactor float64
	RopeScaling         *RopeScaling // nil for plain RoPE
	HiddenAct           string

	BOS *int
	EOS []int // union of config.json and generation_config.json, or GGUF's end of sequence and end of turn
	PAD *int

	// Generation are the publisher's sampling defaults.
	Generation Generation

	// Raw holds every key of the model's own section as decoded JSON (numbers as json.Number), or the GGUF metadata without
	// the tokenizer's and without the values of long lists.
	Raw map[string]any

	names map[string]string // HF key to the file's own, for keys that are present
	alias func(key string) string
}

// Generation holds sampling defaults from generation_config.json; nil is not given.
type Generation struct {
	Temperature, TopP, MinP, RepetitionPenalty *float64
	TopK                                       *int
	DoSample                                   *bool
}

// RopeScaling holds the parameters of a scaled RoPE, by transformers' names. Zero is not given.
type RopeScaling struct {
	Type                          string // "linear", "dynamic", "yarn", "llama3", "longrope", …
	Factor                        float64
	OriginalMaxPositionEmbeddings int
	AttentionFactor               *float64
	BetaFast, BetaSlow            float64
	MScale, MScaleAllDim          float64
	LowFreqFactor, HighFreqFactor float64
	ShortFactor, LongFactor       []float64
	Truncate                      *bool
}

// Key returns the name that the file has, or would have, for one of Hugging Face's keys.
func (c *Config) Key(key string) string { return c.alias(key) }

// Check returns one ErrMissingKey that lists the keys (Hugging Face's names) the file does not give a value for.
func (c *Config) Check(keys ...string) error {
	var absent []string
	for _, key := range keys {
		if _, ok := c.names[key]; !ok {
			absent = append(absent, c.alias(key))
		}
	}
	if absent == nil {
		return nil
	}
	return badfile.In(c.File, ErrMissingKey, "").ForKey(strings.Join(absent, ", ")).
		Advise("%s needs it; check that the file is complete", c.ModelType)
}

func (c *Checkpoint) readConfig() (*Config, error) {
	if c.gguf != nil {
		_, hasOutput := c.Lookup("output.weight")
		return configFromGGUF(c.gguf, !hasOutput)
	}
	path := filepath.Join(c.dir, "config.json")
	data, err := readSmall(path)
	if err != nil {
		var e *Error
		if errors.As(err, &e) && errors.Is(err, fs.ErrNotExist) && e.What == "" {
			e.Advise("put the model's config.json beside its weights")
		}
		return nil, err
	}
	genPath := filepath.Join(c.dir, "generation_config.json")
	var gen []byte
	if _, err := os.Lstat(genPath); !errors.Is(err, fs.ErrNotExist) {
		if gen, err = readSmall(genPath); err != nil {
			return nil, err
		}
	}
	return parseConfig(path, data, genPath, gen)
}

// parseConfig builds a Config from config.json and, if gen is not nil, generation_config.json.
func parseConfig(path string, data []byte, genPath string, gen []byte) (*Config, error) {
	raw, err := parseObject(path, data)
	if err != nil {
		return nil, err
	}
	c := &Config{File: path, Raw: raw}
	c.ModelType, _ = raw["model_type"].(string)
	if text, ok := raw["text_config"].(map[string]any); ok { // a multimodal model: its language part is what runs
		for key, v := range text {
			if v != nil && (key != "model_type" || c.ModelType == "") {
				raw[key] = v
			}
		}
		c.ModelType, _ = raw["model_type"].(string)
	}
	r := &reader{file: path, cfg: c, alias: func(key string) string { return key }, get: func(key string) any { return raw[key] }}
	if err := r.config(); err != nil {
		return nil, err
	}
	if gen == nil {
		return c, nil
	}
	raw, err = parseObject(genPath, gen)
	if err != nil {
		return nil, err
	}
	g := &reader{file: genPath, cfg: c, alias: r.alias, get: func(key string) any { return raw[key] }}
	g.generation()
	return c, g.err
}

func parseObject(path string, data []byte) (map[string]any, error) {
	dec, err := jsonscan.New(data)
	if err != nil {
		return nil, jsonError(path, err)
	}
	v, err := jsonscan.Any(dec)
	if err == nil {
		err = jsonscan.End(dec)
	}
	obj, ok := v.(map[string]any)
	if err == nil && !ok {
		err = errors.New("not a JSON object")
	}
	if err != nil {
		return nil, jsonError(path, err)
	}
	return obj, nil
}

// ggufModelType translates general.architecture where it differs from Hugging Face's model_type.
var ggufModelType = map[string]string{"qwen3moe": "qwen3_moe", "qwen2moe": "qwen2_moe", "gpt-oss": "gpt_oss"}

// ggufKey gives, for Hugging Face's keys, those of GGUF metadata; %s stands for the architecture. The names are of docs/gguf.md in the
// ggml repository and of gguf-py's constants.
var ggufKey = map[string]string{
	"vocab_size":              "%s.vocab_size",
	"hidden_size":             "%s.embedding_length",
	"num_hidden_layers":       "%s.block_count",
	"num_attention_heads":     "%s.attention.head_count",
	"num_key_value_heads":     "%s.attention.head_count_kv",
	"head_dim":                "%s.attention.key_length",
	"intermediate_size":       "%s.feed_forward_length",
	"moe_intermediate_size":   "%s.expert_feed_forward_length",
	"num_experts":             "%s.expert_count",
	"num_experts_per_tok":     "%s.expert_used_count",
	"norm_topk_prob":          "%s.expert_weights_norm",
	"max_position_embeddings": "%s.context_length",
	"sliding_window":          "%s.attention.sliding_window",
	"clip_qkv":                "%s.attention.clamp_kqv",
	"rms_norm_eps":            "%s.attention.layer_norm_rms_epsilon",
	"rope_theta":              "%s.rope.freq_base",
	"partial_rotary_factor":   "%s.rope.dimension_count", // a count in place of the fraction
	"bos_token_id":            "tokenizer.ggml.bos_token_id",
	"eos_token_id":            "tokenizer.ggml.eos_token_id",
	"eot_token_id":            "tokenizer.ggml.eot_token_id",
	"pad_token_id":            "tokenizer.ggml.padding_token_id",
}

// ggufRope gives the keys of rope_scaling.
var ggufRope = map[string]string{
	"rope_type":                        "%s.rope.scaling.type",
	"factor":                           "%s.rope.scaling.factor",
	"original_max_position_embeddings": "%s.rope.scaling.original_context_length",
	"attention_factor":                 "%s.rope.scaling.attn_factor",
	"beta_fast":                        "%s.rope.scaling.yarn_beta_fast",
	"beta_slow":                        "%s.rope.scaling.yarn_beta_slow",
}

// configFromGGUF builds a Config from metadata; tied says that the head is the embedding.
func configFromGGUF(f *gguf.File, tied bool) (*Config, error) {
	arch, ok := f.String("general.architecture")
	if !ok {
		return nil, badfile.In(f.Path, ErrMissingKey, "").ForKey("general.architecture").Advise(badfile.TryConvert)
	}
	c := &Config{File: f.Path, ModelType: arch, Raw: map[string]any{}, TieWordEmbeddings: &tied}
	if t, ok := ggufModelType[arch]; ok {
		c.ModelType = t
	}
	for i := range f.KVs {
		if kv := &f.KVs[i]; !strings.HasPrefix(kv.Key, "tokenizer.") {
			c.Raw[kv.Key] = plainValue(kv)
		}
	}
	alias := func(key string) string {
		if pattern, ok := ggufKey[key]; ok {
			return strings.Replace(pattern, "%s", arch, 1)
		}
		return key
	}
	get := func(pattern string) any {
		if kv, ok := f.Lookup(strings.Replace(pattern, "%s", arch, 1)); ok {
			return plainValue(kv)
		}
		return nil
	}
	scaling := map[string]any{}
	for key, pattern := range ggufRope {
		if v := get(pattern); v != nil {
			scaling[key] = v
		}
	}
	if factor, ok := scaling["factor"]; ok && scaling["rope_type"] == nil && factor != json.Number("1") {
		scaling["rope_type"] = "linear" // as llama.cpp reads files that do not say
	}
	r := &reader{file: f.Path, cfg: c, alias: alias, get: func(key string) any {
		pattern, ok := ggufKey[key]
		switch v := any(nil); {
		case ok:
			v = get(pattern)
			if list, isList := v.([]any); isList { // one value a layer: a single one only if they agree
				return uniform(list)
			}
			if tokens, ok := f.Lookup("tokenizer.ggml.tokens"); v == nil && key == "vocab_size" && ok {
				return json.Number(fmt.Sprint(tokens.Len()))
			}
			return v
		case key == "rope_scaling" && scaling["rope_type"] != nil && scaling["rope_type"] != "none":
			return scaling
		}
		return nil
	}}
	if err := r.config(); err != nil {
		return nil, err
	}
	r.addEOS("eot_token_id")
	if c.HeadDim > 0 {
		c.PartialRotaryFactor /= float64(c.HeadDim)
	}
	return c, r.err
}

// maxList bounds the lists that are decoded, which have an element a layer: values take ten times their bytes in the file.
const maxList = 1 << 12

// plainValue returns a metadata value in the types of decoded JSON, nil for a list that is too long to be a hyper-parameter.
func plainValue(kv *gguf.KV) any {
	if kv.Type != gguf.TypeArray {
		return plain(kv.Value())
	}
	if kv.Len() > maxList {
		return nil
	}
	var list []any
	switch v := kv.Value().(type) {
	case []uint64:
		list = plainList(v)
	case []int64:
		list = plainList(v)
	case []float64:
		list = plainList(v)
	case []bool:
		list = plainList(v)
	case []string:
		list = plainList(v)
	}
	return list
}

func plainList[T any](values []T) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = plain(v)
	}
	return out
}

func plain(v any) any {
	switch v.(type) {
	case string, bool:
		return v
	}
	return json.Number(fmt.Sprint(v))
}

func uniform(list []any) any {
	for _, v := range list {
		if v != list[0] {
			return nil
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// reader fills a Config from decoded values. The first bad value stays in err and ends everything.
type reader struct {
	file  string
	cfg   *Config
	get   func(key string) any // nil where the file has no such key or null
	alias func(key string) string
	err   error
}

func (r *reader) bad(key string, format string, args ...any) {
	if r.err == nil {
		r.err = badfile.In(r.file, ErrValue, format, args...).ForKey(r.alias(key)).Advise("check the file; it may be of another model")
	}
}

// value returns the first of the keys that is present, noting it under the first name.
func (r *reader) value(keys ...string) (v any, key string) {
	for _, key := range keys {
		if v := r.get(key); v != nil {
			r.cfg.names[keys[0]] = r.alias(key)
			return v, key
		}
	}
	return nil, keys[0]
}

// maxInt bounds every integer of a config.
const maxInt = 1<<31 - 1

// integer reads an integer of at least lo; 0 if absent.
func (r *reader) integer(lo int, keys ...string) int {
	if p := r.optInteger(lo, keys...); p != nil {
		return *p
	}
	return 0
}

func (r *reader) optInteger(lo int, keys ...string) *int {
	v, key := r.value(keys...)
	if v == nil {
		return nil
	}
	n, ok := toInt(v)
	if !ok || n < lo || n > maxInt {
		r.bad(key, "%v is not an integer from %d to %d", v, lo, maxInt)
	}
	return &n
}

func toInt(v any) (int, bool) {
	num, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	if n, err := num.Int64(); err == nil {
		return int(n), int64(int(n)) == n
	}
	f, err := num.Float64() // 1e5, 128.0
	return int(f), err == nil && math.Abs(f) <= maxInt && f == math.Trunc(f)
}

// number reads a number that a float32 can hold, as everything is computed in it; nil if absent.
func (r *reader) number(keys ...string) *float64 {
	v, key := r.value(keys...)
	if v == nil {
		return nil
	}
	num, _ := v.(json.Number)
	f, err := num.Float64()
	if err != nil || !(math.Abs(f) <= math.MaxFloat32) {
		r.bad(key, "%v is not a number, or too large", v)
	}
	return &f
}

// positive reads a number above zero; 0 if absent.
func (r *reader) positive(keys ...string) float64 {
	p := r.number(keys...)
	if p == nil {
		return 0
	}
	if float32(*p) <= 0 {
		r.bad(keys[0], "%v is not positive", *p)
	}
	return *p
}

func (r *reader) boolean(keys ...string) *bool {
	v, key := r.value(keys...)
	if v == nil {
		return nil
	}
	b, ok := v.(bool)
	if !ok {
		r.bad(key, "%v is neither true nor false", v)
	}
	return &b
}

func (r *reader) text(keys ...string) string {
	v, key := r.value(keys...)
	s, ok := v.(string)
	if v != nil && !ok {
		r.bad(key, "%v is not a string", v)
	}
	return s
}

// integers reads a list of integers of at least lo.
func (r *reader) integers(lo int, key string) []int {
	v, _ := r.value(key)
	list, ok := v.([]any)
	if v != nil && !ok {
		r.bad(key, "%v is not a list", v)
	}
	var out []int
	for _, v := range list {
		n, ok := toInt(v)
		if !ok || n < lo || n > maxInt {
			r.bad(key, "%v in the list is not an integer from %d to %d", v, lo, maxInt)
		}
		out = append(out, n)
	}
	return out
}

func (r *reader) numbers(key string) []float64 {
	v, _ := r.value(key)
	list, _ := v.([]any)
	var out []float64
	for _, v := range list {
		num, _ := v.(json.Number)
		f, err := num.Float64()
		if err != nil {
			r.bad(key, "%v in the list is not a number", v)
		}
		out = append(out, f)
	}
	return out
}

// config reads everything but the generation defaults and checks the values against each other.
func (r *reader) config() error {
	c := r.cfg
	c.names, c.alias = map[string]string{}, r.alias
	if c.ModelType != "" {
		c.names["model_type"] = "model_type"
	}
	c.VocabSize = r.integer(1, "vocab_size")
	c.HiddenSize = r.integer(1, "hidden_size")
	c.NumHiddenLayers = r.integer(1, "num_hidden_layers")
	c.NumAttentionHeads = r.integer(1, "num_attention_heads")
	c.NumKeyValueHeads = r.integer(1, "num_key_value_heads")
	c.HeadDim = r.integer(0, "head_dim") // 0 is how some files say that it follows from the others
	c.IntermediateSize = r.integer(1, "intermediate_size")
	c.MoEIntermediateSize = r.integer(1, "moe_intermediate_size")
	c.NumExperts = r.integer(0, "num_experts", "num_local_experts", "n_routed_experts")
	c.NumExpertsPerTok = r.integer(0, "num_experts_per_tok", "num_experts_per_token")
	c.DecoderSparseStep = r.integer(1, "decoder_sparse_step")
	c.MLPOnlyLayers = r.integers(0, "mlp_only_layers")
	c.MaxPositionEmbeddings = r.integer(1, "max_position_embeddings", "model_max_length")
	c.SlidingWindow = r.integer(0, "sliding_window")
	c.NormTopKProb = r.boolean("norm_topk_prob")
	c.AttentionBias = r.boolean("attention_bias")
	if tied := r.boolean("tie_word_embeddings"); tied != nil {
		c.TieWordEmbeddings = tied
	}
	c.UseSlidingWindow = r.boolean("use_sliding_window")
	c.RMSNormEps = r.positive("rms_norm_eps")
	c.HiddenAct = r.text("hidden_act")
	if clip := float32(r.positive("clip_qkv")); clip != 0 {
		c.ClipQKV = &clip
	}
	r.rope()
	c.BOS = r.token("bos_token_id")
	c.PAD = r.token("pad_token_id")
	r.addEOS("eos_token_id")
	r.derive()
	return r.err
}

// derive fills in what follows from other values, after checking that it does.
func (r *reader) derive() {
	c := r.cfg
	if c.Raw[r.alias("num_key_value_heads")] == nil { // otherwise 0 says that it differs by layer
		c.NumKeyValueHeads = c.NumAttentionHeads
		if key, ok := c.names["num_attention_heads"]; ok {
			c.names["num_key_value_heads"] = key
		}
	}
	if c.NumKeyValueHeads > 0 && c.NumAttentionHeads%c.NumKeyValueHeads != 0 {
		r.bad("num_key_value_heads", "%d does not divide num_attention_heads %d", c.NumKeyValueHeads, c.NumAttentionHeads)
	}
	if c.HeadDim == 0 && c.NumAttentionHeads > 0 {
		if c.HiddenSize%c.NumAttentionHeads != 0 {
			r.bad("hidden_size", "%d is not a multiple of num_attention_heads %d", c.HiddenSize, c.NumAttentionHeads)
		}
		c.HeadDim = c.HiddenSize / c.NumAttentionHeads
	}
	if c.MoEIntermediateSize == 0 && c.NumExperts > 0 {
		c.MoEIntermediateSize = c.IntermediateSize
		if key, ok := c.names["intermediate_size"]; ok {
			c.names["moe_intermediate_size"] = key
		}
	}
	if c.NumExperts > 0 && c.NumExpertsPerTok > c.NumExperts {
		r.bad("num_experts_per_tok", "%d of %d experts", c.NumExpertsPerTok, c.NumExperts)
	}
	if c.NumExperts > 0 && c.NumExpertsPerTok == 0 && c.names["num_experts_per_tok"] != "" {
		r.bad("num_experts_per_tok", "0 of %d experts", c.NumExperts)
	}
	for _, layer := range c.MLPOnlyLayers {
		if c.NumHiddenLayers > 0 && layer >= c.NumHiddenLayers {
			r.bad("mlp_only_layers", "layer %d of %d", layer, c.NumHiddenLayers)
		}
	}
}

// rope reads rope_theta and scaling from rope_parameters (transformers 5) or rope_theta and rope_scaling (transformers 4). Parameters
// that differ by layer type are left in Raw for the architectures that have them.
func (r *reader) rope() {
	c := r.cfg
	c.RopeTheta = r.positive("rope_theta")
	c.PartialRotaryFactor = r.positive("partial_rotary_factor")
	v, key := r.value("rope_parameters", "rope_scaling")
	if v == nil {
		return
	}
	params, ok := v.(map[string]any)
	if !ok {
		r.bad(key, "%v is not an object", v)
		return
	}
	for _, v := range params {
		if _, nested := v.(map[string]any); nested {
			return
		}
	}
	sub := &reader{file: r.file, cfg: c, get: func(k string) any { return params[k] }, alias: func(k string) string {
		return key + "." + k
	}}
	if params["rope_theta"] != nil {
		c.RopeTheta = sub.positive("rope_theta")
	}
	if params["partial_rotary_factor"] != nil {
		c.PartialRotaryFactor = sub.positive("partial_rotary_factor")
	}
	s := RopeScaling{
		Type:                          sub.text("rope_type", "type"),
		Factor:                        sub.positive("factor"),
		OriginalMaxPositionEmbeddings: sub.integer(1, "original_max_position_embeddings"),
		AttentionFactor:               sub.number("attention_factor"),
		BetaFast:                      sub.positive("beta_fast"),
		BetaSlow:                      sub.positive("beta_slow"),
		LowFreqFactor:                 sub.positive("low_freq_factor"),
		HighFreqFactor:                sub.positive("high_freq_factor"),
		ShortFactor:                   sub.numbers("short_factor"),
		LongFactor:                    sub.numbers("long_factor"),
		Truncate:                      sub.boolean("truncate"),
	}
	for key, dst := range map[string]*float64{"mscale": &s.MScale, "mscale_all_dim": &s.MScaleAllDim} {
		if p := sub.number(key); p != nil {
			*dst = *p
		}
	}
	if s.Type != "" && s.Type != "default" {
		c.RopeScaling = &s
	}
	if r.err == nil {
		r.err = sub.err
	}
}

// token reads a token id; null, absent and -1 (an old way to say none, 2^32-1 in an unsigned field) give nil.
func (r *reader) token(key string) *int {
	if v, _ := r.value(key); v == json.Number("-1") || v == json.Number("4294967295") {
		return nil
	}
	return r.optInteger(0, key)
}

// addEOS adds the token ids of a key, one or a list, to the union.
func (r *reader) addEOS(key string) {
	var ids []int
	if _, ok := r.get(key).([]any); ok {
		ids = r.integers(0, key)
	} else if id := r.token(key); id != nil {
		ids = []int{*id}
	}
	for _, id := range ids {
		if !slices.Contains(r.cfg.EOS, id) {
			r.cfg.EOS = append(r.cfg.EOS, id)
		}
	}
}

// generation reads generation_config.json.
func (r *reader) generation() {
	r.addEOS("eos_token_id")
	if r.cfg.BOS == nil {
		r.cfg.BOS = r.token("bos_token_id")
	}
	if r.cfg.PAD == nil {
		r.cfg.PAD = r.token("pad_token_id")
	}
	r.cfg.Generation = Generation{
		Temperature:       r.number("temperature"),
		TopP:              r.number("top_p"),
		MinP:              r.number("min_p"),
		RepetitionPenalty: r.number("repetition_penalty"),
		TopK:              r.optInteger(0, "top_k"),
		DoSample:          r.boolean("do_sample"),
	}
}
