package gguf_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/weights/gguf"
)

func TestVocabularies(t *testing.T) {
	dir := sharedtest.Dir(t, "vocab")
	for name, want := range map[string]struct {
		model, pre string
		tokens     int
		some       string // a token that trimming or re-encoding would damage
	}{
		"gpt-2":          {"gpt2", "gpt-2", 50257, "Ġthe"},
		"qwen2":          {"gpt2", "qwen2", 151936, "ĉĉĉ"},
		"llama-spm":      {"llama", "default", 32000, "▁▁"},
		"deepseek-coder": {"gpt2", "deepseek-coder", 32256, "ĠĠĠĠ"},
	} {
		f, err := gguf.Open(filepath.Join(dir, "ggml-vocab-"+name+".gguf"))
		if err != nil {
			t.Fatal(err)
		}
		model, _ := f.String("tokenizer.ggml.model")
		pre, _ := f.String("tokenizer.ggml.pre")
		tokens, _ := f.Strings("tokenizer.ggml.tokens")
		types, _ := f.Ints("tokenizer.ggml.token_type")
		if model != want.model || pre != want.pre || len(tokens) != want.tokens || len(types) != want.tokens {
			t.Errorf("%s: model %q pre %q, %d tokens, %d types; want %+v", name, model, pre, len(tokens), len(types), want)
		}
		if !strings.Contains("\x00"+strings.Join(tokens, "\x00")+"\x00", "\x00"+want.some+"\x00") {
			t.Errorf("%s: token %q is not there", name, want.some)
		}
		if len(f.Tensors) != 0 {
			t.Errorf("%s: %d tensors in a vocabulary", name, len(f.Tensors))
		}
	}
}

func BenchmarkOpenVocabulary(b *testing.B) {
	path := sharedtest.Dir(b, "vocab", "ggml-vocab-qwen2.gguf")
	for b.Loop() {
		f, err := gguf.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		if tokens, _ := f.Strings("tokenizer.ggml.tokens"); len(tokens) == 0 {
			b.Fatal("no tokens")
		}
	}
}
