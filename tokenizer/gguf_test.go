package tokenizer

import (
	"slices"
	"strings"
	"testing"

	"github.com/coli-moe/coli/weights/gguf"
)

var _ Metadata = (*gguf.File)(nil)

func at[T any](x T) *T { return &x }

// spmVocab is a SentencePiece vocabulary without byte tokens.
func spmVocab() Vocab {
	return Vocab{
		Model:  "llama",
		Tokens: []string{"<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁a", "▁ab", "<x>", "word", "</", "s>"},
		Scores: []float32{0, 0, 0, -1, -2, -3, -4, -5, -6, 0, 0, -7, -8},
		Types: []int{
			TypeUnknown, TypeControl, TypeControl, TypeNormal, TypeNormal, TypeNormal, TypeNormal, TypeNormal, TypeNormal,
			TypeUserDefined, TypeUserDefined, TypeNormal, TypeNormal,
		},
		BOS: at(1), EOS: at(2), UNK: at(0),
	}
}

func bpeVocab() Vocab {
	v := Vocab{Model: "gpt2", Pre: "gpt-2", EOS: at(256)}
	for r, b := range runeBytes {
		if b >= 0 {
			v.Tokens = append(v.Tokens, string(rune(r)))
			v.Types = append(v.Types, TypeNormal)
		}
	}
	v.Tokens = append(v.Tokens, "<|end|>", "<tag>", "  ", "Ġa", "aa")
	v.Types = append(v.Types, TypeControl, TypeUserDefined, TypeUserDefined, TypeNormal, TypeNormal)
	v.Merges = []string{"Ġ a", "a a"}
	return v
}

func TestFromGGUF(t *testing.T) {
	spm := func(change func(*Vocab)) Vocab {
		v := spmVocab()
		change(&v)
		return v
	}
	bpe := func(change func(*Vocab)) Vocab {
		v := bpeVocab()
		change(&v)
		return v
	}
	same := func(*Vocab) {}
	tests := []struct {
		name    string
		vocab   Vocab
		special bool
		text    string
		want    string
		addBOS  bool
	}{
		{"SentencePiece, the best score first", spm(same), false, "ab aab", "▁ab|▁a|ab", true},
		{"SentencePiece, no space before", spm(func(v *Vocab) { v.AddSpacePrefix = at(false) }), false, "ab a", "ab|▁a", true},
		{"SentencePiece, a control token as text", spm(same), false, "a</s>", "▁a|</|s>", true},
		{"SentencePiece, a control token", spm(same), true, "a</s>a", "▁a|</s>|▁a", true},
		{"SentencePiece, a user-defined word", spm(same), false, "awordb", "▁a|word|▁|b", true},
		{"SentencePiece, a user-defined tag as text", spm(same), false, "<x>", "▁|<unk>|<unk>|<unk>", true},
		{"SentencePiece, a user-defined tag", spm(same), true, "<x>", "<x>", true},
		{"SentencePiece, no BOS", spm(func(v *Vocab) { v.AddBOS = at(false) }), false, "", "", false},
		{"SentencePiece, BOS of no id", spm(func(v *Vocab) { v.BOS = nil }), false, "", "", false},
		{"BPE", bpe(same), false, "aa a<|end|>", "aa| a|<|||e|n|d|||>", false},
		{"BPE, a control token", bpe(same), true, "aa<|end|>", "aa|<|end|>", false},
		{"BPE, a user-defined tag as text", bpe(same), false, "<tag>", "<|t|a|g|>", false},
		{"BPE, user-defined spaces", bpe(same), false, "a  a", "a|  |a", false},
		{"BPE, BOS unless the file says otherwise", bpe(func(v *Vocab) { v.Pre, v.BOS = "llama-bpe", at(256) }), false, "", "", true},
		{"BPE, BOS where the file says so", bpe(func(v *Vocab) { v.BOS, v.AddBOS = at(256), at(true) }), false, "", "", true},
		{"BPE, types missing", bpe(func(v *Vocab) { v.Types = nil }), true, "aa<|end|>", "aa|<|end|>", false},
		{"BPE, a control token of another type", bpe(func(v *Vocab) { v.Types[256] = TypeUserDefined }), false, "<|end|>", "<|||e|n|d|||>", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tok, err := FromGGUF(tt.vocab)
			if err != nil {
				t.Fatal(err)
			}
			encode := tok.Encode
			if tt.special {
				encode = tok.EncodeSpecial
			}
			if got := spellings(tok, encode(tt.text)); got != tt.want {
				t.Errorf("%q: %s, want %s", tt.text, got, tt.want)
			}
			if _, ok := tok.AddBOS(); ok != tt.addBOS {
				t.Errorf("AddBOS: %v", ok)
			}
		})
	}
}

func TestMissingPreWarns(t *testing.T) {
	v := bpeVocab()
	v.Pre = ""
	tok, err := FromGGUF(v)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Warnings(); len(got) != 1 || !strings.Contains(got[0], "tokenizer.ggml.pre") {
		t.Errorf("%q", got)
	}
	if got := spellings(tok, tok.Encode("a.1234")); got != "a|.|1|2|3|4" {
		t.Errorf("%s", got)
	}
}

func TestBadVocabularies(t *testing.T) {
	spm := func(change func(*Vocab)) Vocab {
		v := spmVocab()
		change(&v)
		return v
	}
	bpe := func(change func(*Vocab)) Vocab {
		v := bpeVocab()
		change(&v)
		return v
	}
	nan := float32(0)
	nan /= nan
	tests := []struct {
		name  string
		vocab Vocab
		want  string
	}{
		{"nothing", Vocab{}, "tokenizer.ggml.tokens: the list is empty"},
		{"another model", spm(func(v *Vocab) { v.Model = "bert" }), `tokenizer.ggml.model: "bert" is not supported`},
		{"an unknown pre-tokenizer", bpe(func(v *Vocab) { v.Pre = "kimi-k3" }), `tokenizer.ggml.pre: "kimi-k3" is not known`},
		{"too few types", bpe(func(v *Vocab) { v.Types = v.Types[:3] }), "tokenizer.ggml.token_type: 3 types"},
		{"too few scores", spm(func(v *Vocab) { v.Scores = nil }), "tokenizer.ggml.scores: 0 scores"},
		{"a score that is no number", spm(func(v *Vocab) { v.Scores[4] = nan }), "tokenizer.ggml.scores[4]"},
		{"BOS out of range", spm(func(v *Vocab) { v.BOS = at(99) }), "tokenizer.ggml.bos_token_id: 99"},
		{"EOS out of range", spm(func(v *Vocab) { v.EOS = at(-1) }), "tokenizer.ggml.eos_token_id: -1"},
		{"BOS wanted and absent", bpe(func(v *Vocab) { v.AddBOS = at(true) }), "tokenizer.ggml.add_bos_token"},
		{"EOS wanted and absent", spm(func(v *Vocab) { v.EOS, v.AddEOS = nil, at(true) }), "tokenizer.ggml.add_eos_token"},
		{"no token for a byte", spm(func(v *Vocab) { v.UNK = nil }), "<0x00>"},
		{"a token twice", bpe(func(v *Vocab) { v.Tokens[4] = "a" }), `both "a"`},
		{"a merge without a space", bpe(func(v *Vocab) { v.Merges = []string{"aa"} }), `tokenizer.ggml.merges[0]: "aa" has no space`},
		{"an empty merge", bpe(func(v *Vocab) { v.Merges = []string{""} }), "tokenizer.ggml.merges[0]"},
		{"a merge of no token", bpe(func(v *Vocab) { v.Merges = []string{"a zz"} }), `tokenizer.ggml.merges[0]: "zz" is not a token`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := FromGGUF(tt.vocab); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// metadata is a GGUF file's in a map.
type metadata map[string]any

func get[T any](m metadata, key string) (T, bool) {
	x, ok := m[strings.TrimPrefix(key, "tokenizer.ggml.")].(T)
	return x, ok
}

func (m metadata) String(key string) (string, bool)    { return get[string](m, key) }
func (m metadata) Uint(key string) (uint64, bool)      { return get[uint64](m, key) }
func (m metadata) Bool(key string) (bool, bool)        { return get[bool](m, key) }
func (m metadata) Strings(key string) ([]string, bool) { return get[[]string](m, key) }
func (m metadata) Ints(key string) ([]int64, bool)     { return get[[]int64](m, key) }
func (m metadata) Floats(key string) ([]float32, bool) { return get[[]float32](m, key) }

func TestVocabFromGGUF(t *testing.T) {
	v, err := VocabFromGGUF(metadata{
		"model": "gpt2", "pre": "olmo", "tokens": []string{"a", "b"}, "token_type": []int64{1, 3}, "merges": []string{"a b"},
		"bos_token_id": uint64(1), "eos_token_id": uint64(0xFFFFFFFF), "padding_token_id": uint64(1 << 40), "add_bos_token": true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if v.Model != "gpt2" || v.Pre != "olmo" || !slices.Equal(v.Tokens, []string{"a", "b"}) || !slices.Equal(v.Types, []int{1, 3}) ||
		!slices.Equal(v.Merges, []string{"a b"}) || *v.BOS != 1 || v.EOS != nil || v.UNK != nil || *v.PAD <= 1 || !*v.AddBOS || v.AddEOS != nil {
		t.Errorf("%+v", v)
	}
	for _, m := range []metadata{{}, {"model": "gpt2"}, {"tokens": []string{"a"}}} {
		if _, err := VocabFromGGUF(m); err == nil || !strings.Contains(err.Error(), "tokenizer.ggml.") {
			t.Errorf("%v: %v", m, err)
		}
	}
}

// FuzzGGUF checks that no vocabulary makes FromGGUF or its result panic. The texts become lists at their line breaks.
func FuzzGGUF(f *testing.F) {
	f.Add("gpt2", "gpt-2", "a\nb\nab\n<|x|>", "\x01\x01\x01\x03", "a b", "ab<|x|>")
	f.Add("llama", "", "<unk>\na\n▁a\n<0x41>", "\x02\x01\x01\x06", "", "a A\xff▁")
	f.Fuzz(func(t *testing.T, model, pre, tokens, types, merges, text string) {
		v := Vocab{Model: model, Pre: pre, Tokens: strings.Split(tokens, "\n"), UNK: at(0)}
		if merges != "" {
			v.Merges = strings.Split(merges, "\n")
		}
		for i := range types {
			v.Types = append(v.Types, int(types[i]))
		}
		for i := range v.Tokens {
			v.Scores = append(v.Scores, float32(i%7)-3)
		}
		tok, err := FromGGUF(v)
		if err != nil {
			return
		}
		for _, id := range tok.EncodeSpecial(text) {
			if id < 0 || int(id) >= tok.Size() {
				t.Fatalf("id %d of %d", id, tok.Size())
			}
		}
		for id := range int32(tok.Size()) {
			tok.Token(id)
		}
	})
}
