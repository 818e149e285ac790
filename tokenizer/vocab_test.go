package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/weights/gguf"
)

// loadGGUF reads the vocabulary of a GGUF file.
func loadGGUF(t testing.TB, path string) *Tokenizer {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	v, err := VocabFromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := FromGGUF(v)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func loadJSON(t testing.TB, path string) *Tokenizer {
	t.Helper()
	tok, err := FromJSON(path)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestLlamaCpp compares with llama.cpp's own expectations for its test vocabularies.
func TestLlamaCpp(t *testing.T) {
	for _, name := range []string{"gpt-2", "llama-spm"} {
		t.Run(name, func(t *testing.T) { compareWithLlamaCpp(t, "testdata", name) })
	}
	for _, name := range []string{"deepseek-coder", "deepseek-llm", "qwen2", "qwen35"} {
		t.Run(name, func(t *testing.T) { compareWithLlamaCpp(t, sharedtest.Dir(t, "vocab"), name) })
	}
}

// compareWithLlamaCpp encodes each text of the .inp file and compares with its line of the .out file.
func compareWithLlamaCpp(t *testing.T, dir, name string) {
	path := filepath.Join(dir, "ggml-vocab-"+name+".gguf")
	tok := loadGGUF(t, path)
	in, err := os.ReadFile(path + ".inp")
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile(path + ".out")
	if err != nil {
		t.Fatal(err)
	}
	texts := strings.Split(string(in), "\n__ggml_vocab_test__\n")
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if n := len(texts); texts[n-1] == "" {
		texts = texts[:n-1]
	}
	if len(texts) != len(lines) || len(texts) < 40 {
		t.Fatalf("%d texts, %d lines of ids", len(texts), len(lines))
	}
	for i, text := range texts {
		want := []int32{}
		for _, word := range strings.Fields(lines[i]) {
			id, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, int32(id))
		}
		got := tok.Encode(text)
		if !slices.Equal(got, want) {
			t.Errorf("text %d, %q\n got %v\nwant %v", i, text, got, want)
		}
		if back := tok.Decode(got); back != text {
			t.Errorf("text %d, %q comes back as %q", i, text, back)
		}
	}
}
