package inspect

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/synth"
	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/format"
)

func inspect(t *testing.T, path string) *Info {
	t.Helper()
	c, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := Checkpoint(c)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestSafetensors(t *testing.T) {
	got := inspect(t, sharedtest.Testdata("oracles", "qwen3_moe"))
	// H 64, 4 heads of 32, 2 KV heads, layer 1 dense, 12 experts of width 32, vocabulary 320.
	want := Info{
		Name: "qwen3_moe", Architecture: "qwen3_moe", Runs: true, Files: 1, Layers: 5, Context: 256, Vocabulary: 320,
		Bytes: 962560, Parameters: 481280, Active: 260096,
		Experts: Experts{Count: 12, TopK: 3, Layers: 4, MinBytes: 12288, MaxBytes: 12288},
	}
	classes, warnings := got.Classes, got.Warnings
	got.Classes, got.Warnings = nil, nil
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Error(diff)
	}
	var roles []string
	var values, bytes int64
	for _, c := range classes {
		roles = append(roles, c.Role)
		values, bytes = values+c.Parameters, bytes+c.Bytes
		if c.Format != "BF16" || c.BitsPerWeight != 16 {
			t.Errorf("%+v", c)
		}
	}
	if want := []string{
		"embedding", "norm", "attention", "router", "expert gate", "expert up", "expert down", "dense mlp", "head",
	}; !slices.Equal(roles, want) {
		t.Errorf("roles %q, want %q", roles, want)
	}
	if values != want.Parameters || bytes != want.Bytes {
		t.Errorf("the classes have %d values in %d bytes", values, bytes)
	}
	if !slices.Contains(warnings, "no tokenizer: the model cannot read or write text") {
		t.Errorf("warnings %q", warnings)
	}
}

func TestGGUF(t *testing.T) {
	for _, experts := range []format.Format{format.Q4_K, format.Q4_1} {
		path := filepath.Join(t.TempDir(), "small.gguf")
		err := synth.Write(t.Context(), path, synth.Options{Like: "olmoe-tiny", Experts: experts, Dense: format.Q8_0}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := inspect(t, path)
		if got.Architecture != "olmoe" || !got.Runs || !strings.HasPrefix(got.Tokenizer, "gpt2") || got.Layers != 2 || got.Experts.Layers != 2 {
			t.Errorf("%+v", got)
		}
		// In both layers 8 experts of 256×256, 2 of them a token.
		const expert = 3 * 256 * 256
		if got.Active != got.Parameters-2*(8-2)*expert {
			t.Errorf("%d parameters of %d are active", got.Active, got.Parameters)
		}
		bits := 8 * float64(experts.Info().BlockBytes) / float64(experts.Info().Block)
		if want := int64(expert * bits / 8); got.Experts.MinBytes != want || got.Experts.MaxBytes != want {
			t.Errorf("experts of %d to %d bytes, want %d", got.Experts.MinBytes, got.Experts.MaxBytes, want)
		}
		k := kernels.For(experts)
		for _, c := range got.Classes {
			switch {
			case strings.HasPrefix(c.Role, "expert"):
				if c.Format != experts.String() || c.BitsPerWeight != bits || c.Kernel != k.ISA || c.Direct != k.Direct {
					t.Errorf("%+v", c)
				}
			case c.Role == "norm" || c.Role == "embedding":
				if c.Kernel != "" {
					t.Errorf("%s is not multiplied: %+v", c.Role, c)
				}
			case c.Kernel == "":
				t.Errorf("%+v", c)
			}
		}
		warned := slices.ContainsFunc(got.Warnings, func(w string) bool { return strings.HasPrefix(w, experts.String()+":") })
		slow := !k.Direct || k.ISA != kernels.For(format.Q8_0).ISA && k.ISA == "generic"
		if warned != slow {
			t.Errorf("%s: direct %v with %s, warnings %q", experts, k.Direct, k.ISA, got.Warnings)
		}
	}
}

// A model that coli cannot run is described as far as its names go, with a warning.
func TestUnknownArchitecture(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(sharedtest.Testdata("oracles", "olmoe"))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "config.json")
	config, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(config), `"olmoe"`, `"hexmoe"`, 1)), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(`{"model": {"type": "Unigram"}}`), 0o666); err != nil {
		t.Fatal(err)
	}
	got := inspect(t, dir)
	if got.Runs || got.Architecture != "hexmoe" || got.Experts.Count != 12 || got.Tokenizer != "Unigram, tokenizer.json" {
		t.Errorf("%+v", got)
	}
	if last := got.Warnings[len(got.Warnings)-1]; !strings.Contains(last, `architecture "hexmoe" is not supported; coli runs olmoe`) {
		t.Error(last)
	}
}

// The C engine's packed tensors are one class with their scales. What multiplies them is known once a model asks for them.
func TestPackedTensors(t *testing.T) {
	dir := t.TempDir()
	header := `{"model.layers.0.mlp.experts.0.up_proj.weight":{"dtype":"U8","shape":[4,32],"data_offsets":[0,128]},` +
		`"model.layers.0.mlp.experts.0.up_proj.weight.qs":{"dtype":"F32","shape":[4],"data_offsets":[128,144]}}`
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "model.safetensors"), append(file, make([]byte, 144)...), 0o666),
		os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type":"olmoe","hidden_size":64,"num_experts":1,"num_experts_per_tok":1}`), 0o666),
	); err != nil {
		t.Fatal(err)
	}
	got := inspect(t, dir)
	if len(got.Classes) != 1 || got.Classes[0].Role != "expert up" || got.Classes[0].Bytes != 144 || got.Classes[0].Kernel != "" {
		t.Errorf("%+v", got.Classes)
	}
	if slices.ContainsFunc(got.Warnings, func(w string) bool { return strings.Contains(w, "kernel") }) {
		t.Errorf("%q", got.Warnings)
	}
}

func TestDamagedTokenizerIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(sharedtest.Testdata("oracles", "olmoe"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(`{"model"`), 0o666); err != nil {
		t.Fatal(err)
	}
	c, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := Checkpoint(c); err == nil || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("error %v", err)
	}
}

func TestRoles(t *testing.T) {
	for want, names := range map[string][]string{
		"embedding":      {"model.embed_tokens.weight", "token_embd.weight", "embeddings.word_embeddings.weight"},
		"norm":           {"model.norm.weight", "blk.0.attn_q_norm.weight", "output_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
		"attention":      {"model.layers.3.self_attn.q_proj.weight", "blk.3.attn_output.weight", "model.layers.0.linear_attn.A_log"},
		"router":         {"model.layers.1.mlp.gate.weight", "blk.1.ffn_gate_inp.weight", "model.layers.1.block_sparse_moe.gate.weight"},
		"shared expert":  {"model.layers.1.mlp.shared_experts.up_proj.weight", "blk.1.ffn_up_shexp.weight"},
		"expert gate":    {"model.layers.1.mlp.experts.17.gate_proj.weight", "blk.1.ffn_gate_exps.weight", "model.layers.0.block_sparse_moe.experts.0.w1.weight"},
		"expert up":      {"model.layers.1.mlp.experts.17.up_proj.weight", "blk.1.ffn_up_exps.weight"},
		"expert down":    {"model.layers.1.mlp.experts.down_proj", "blk.1.ffn_down_exps.weight"},
		"expert gate+up": {"model.layers.1.mlp.experts.gate_up_proj", "blk.1.ffn_gate_up_exps.weight"},
		"dense mlp":      {"model.layers.1.mlp.gate_proj.weight", "blk.1.ffn_gate.weight"},
		"head":           {"lm_head.weight", "output.weight"},
		"other":          {"vision.patch.weight"},
	} {
		for _, name := range names {
			if got := roles[role(name)].name; got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
}
