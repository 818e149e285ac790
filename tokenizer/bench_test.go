package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/weights/gguf"
)

func prose(b *testing.B) string {
	data, err := os.ReadFile(sharedtest.Dir(b, "models", "heldout-text.txt"))
	if err != nil {
		b.Fatal(err)
	}
	return string(data)
}

func BenchmarkEncode(b *testing.B) {
	for _, name := range []string{"gpt-2", "qwen2", "deepseek-llm", "llama-spm"} {
		b.Run(name, func(b *testing.B) {
			tok := loadGGUF(b, sharedtest.Dir(b, "vocab", "ggml-vocab-"+name+".gguf"))
			text := prose(b)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				tok.Encode(text)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := loadGGUF(b, filepath.Join("testdata", "ggml-vocab-gpt-2.gguf"))
	text := prose(b)
	ids := tok.Encode(text)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Decode(ids)
	}
}

func BenchmarkLoad(b *testing.B) {
	b.Run("gguf-151936", func(b *testing.B) {
		path := sharedtest.Dir(b, "vocab", "ggml-vocab-qwen2.gguf")
		for b.Loop() {
			loadGGUF(b, path)
		}
	})
	b.Run("gguf-4096", func(b *testing.B) {
		path := sharedtest.Dir(b, "models", "tiny-moe-Q8_0.gguf")
		for b.Loop() {
			loadGGUF(b, path)
		}
	})
	b.Run("json-4096", func(b *testing.B) {
		path := filepath.Join("testdata", "tiny-moe", "tokenizer.json")
		for b.Loop() {
			loadJSON(b, path)
		}
	})
	b.Run("json-151936", func(b *testing.B) {
		path := asJSON(b, sharedtest.Dir(b, "vocab", "ggml-vocab-qwen2.gguf"), patternQwen2)
		for b.Loop() {
			loadJSON(b, path)
		}
	})
}

// asJSON writes a "gpt2" vocabulary as a tokenizer.json.
func asJSON(t testing.TB, path, pattern string) string {
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	v, err := VocabFromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	vocab := object{}
	added := []object{}
	for id, s := range v.Tokens {
		vocab[s] = id
		if kind := v.typeOf(id); kind == TypeControl || kind == TypeUserDefined {
			added = append(added, object{"id": id, "content": s, "special": kind == TypeControl})
		}
	}
	split := object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false}
	bytes := object{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
	data, err := json.Marshal(object{
		"version": "1.0", "added_tokens": added,
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []object{split, bytes}},
		"decoder":       object{"type": "ByteLevel"},
		"model":         object{"type": "BPE", "vocab": vocab, "merges": v.Merges},
	})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(out, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}
