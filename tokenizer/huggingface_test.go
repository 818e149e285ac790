package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
)

// document writes a small tokenizer.json. model is the inside of its "model", rest the other fields.
func documentOf(model, rest string) string {
	return fmt.Sprintf(`{"version": "1.0", "truncation": null, %s, "model": {"type": "BPE", %s}}`, rest, model)
}

// charModel has the letters of "hello world" and some merges, over characters as SentencePiece's converted vocabularies have them.
const charModel = `"unk_token": "<unk>", "fuse_unk": %v, "byte_fallback": %v, "ignore_merges": %v,
	"vocab": {"<unk>": 0, "h": 1, "e": 2, "l": 3, "o": 4, "▁": 5, "w": 6, "r": 7, "d": 8, "he": 9, "ll": 10, "▁he": 11, "▁w": 12, "lo": 13,
		"hell": 14, "world": 15, "1": 16, "2": 17, "12": 18, "-": 19, "A": 20, "é": 21%s},
	"merges": ["h e", "l l", ["▁", "he"], "▁ w", "l o", "he ll", ["1", "2"]]`

func chars(fuse, fallback, ignore bool) string {
	var extra strings.Builder
	if fallback {
		for b := range 256 {
			fmt.Fprintf(&extra, `, "<0x%02X>": %d`, b, 30+b)
		}
	}
	return fmt.Sprintf(charModel, fuse, fallback, ignore, extra.String())
}

const sentencePieceDecoder = `"decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
	{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}`

// spellings returns the tokens by their keys, which for tokens over characters are their spellings.
func spellings(t *Tokenizer, ids []int32) string {
	var out []string
	for _, id := range ids {
		if t.info[id].added > 0 {
			out = append(out, t.added[t.info[id].added-1].content)
		} else {
			out = append(out, string(t.vocab.key(id)))
		}
	}
	return strings.Join(out, "|")
}

func TestComponents(t *testing.T) {
	added := func(flags string) string {
		return `"added_tokens": [{"id": 24, "content": "[X]", "special": false, ` + flags + `}]`
	}
	split := func(pattern, behavior string, invert bool) string {
		return fmt.Sprintf(`"pre_tokenizer": {"type": "Split", "pattern": %s, "behavior": %q, "invert": %v}`, pattern, behavior, invert)
	}
	tests := []struct {
		name, model, rest string
		text, want        string
	}{
		{"merges by rank", chars(false, false, false), `"decoder": null`, "helloworld", "hell|o|w|o|r|l|d"},
		{"ignore_merges", chars(false, false, true), split(`{"String": "-"}`, "Removed", false), "world-hell", "world|hell"},
		{"unknown characters", chars(false, false, false), `"decoder": null`, "hxyzé", "h|<unk>|<unk>|<unk>|é"},
		{"fuse_unk", chars(true, false, false), `"decoder": null`, "hxyzéx", "h|<unk>|é|<unk>"},
		{"byte_fallback", chars(true, true, false), `"decoder": null`, "h日é", "h|<0xE6>|<0x97>|<0xA5>|é"},
		{"byte tokens are not spelled", chars(true, true, true), `"decoder": null`, "<0xE6>", "<0x3C>|<0x30>|<0x78>|<0x45>|<0x36>|<0x3E>"},
		{"Prepend, Replace", chars(true, true, false), `"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
			{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}`, "he wo", "▁he|▁w|o"},
		{
			"Replace by a pattern", chars(true, false, false), `"normalizer": {"type": "Replace", "pattern": {"Regex": "[xy]+"}, "content": "$1"}`,
			"hxxy", "h|<unk>|1",
		},
		{"NFC", chars(true, false, false), `"normalizer": {"type": "NFC"}`, "he\u0301", "h|é"},
		{"NFD", chars(true, false, false), `"normalizer": {"type": "NFD"}`, "é", "e|<unk>"},
		{"NFKC", chars(true, false, false), `"normalizer": {"type": "NFKC"}`, "ｈ①", "h|1"},
		{"NFKD", chars(true, false, false), `"normalizer": {"type": "NFKD"}`, "ﬄ", "<unk>|l"},
		{"Lowercase", chars(true, false, false), `"normalizer": {"type": "Lowercase"}`, "HE", "he"},
		{"Strip", chars(true, false, false), `"normalizer": {"type": "Strip", "strip_left": true, "strip_right": false}`, " \nhe ", "he|<unk>"},
		{
			"Metaspace", chars(true, false, false), `"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}`,
			"he w", "▁he|▁w",
		},
		{
			"Metaspace, add_prefix_space", chars(true, false, false),
			`"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": false, "prepend_scheme": "never"}`, "he w", "he|▁w",
		},
		{
			"Metaspace, first", chars(true, false, false), added(`"normalized": false`) +
				`, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}`,
			"he w[X]he w", "▁he|▁w|[X]|he|▁w",
		},
		{
			"Metaspace, always", chars(true, false, false), added(`"normalized": false`) +
				`, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}`,
			"he w[X]he", "▁he|▁w|[X]|▁he",
		},
		{"Digits", chars(true, false, false), `"pre_tokenizer": {"type": "Digits", "individual_digits": false}`, "he12he", "he|12|he"},
		{"Digits, individual", chars(true, false, false), `"pre_tokenizer": {"type": "Digits", "individual_digits": true}`, "he12", "he|1|2"},
		{"Split by a string", chars(true, false, false), split(`{"String": "l"}`, "MergedWithNext", false), "hello", "he|l|lo"},
		{"Split by a pattern", chars(true, false, false), split(`{"Regex": "h|l"}`, "Isolated", false), "hello", "h|e|l|l|o"},
		{"Split, the rest removed", chars(true, false, false), split(`{"Regex": "[a-z]+"}`, "Removed", true), "he-lo-1", "he|lo"},
		{
			"Sequence", chars(true, false, false), `"pre_tokenizer": {"type": "Sequence", "pretokenizers": [` +
				`{"type": "Digits", "individual_digits": true}, {"type": "Split", "pattern": {"String": "e"}, "behavior": "MergedWithPrevious", "invert": false}]}`,
			"12hello", "1|2|he|ll|o",
		},
		{"an added token", chars(true, false, false), added(`"normalized": false`), "he[X]lo", "he|[X]|lo"},
		{"lstrip", chars(true, false, false), added(`"lstrip": true`), "he  [X] lo", "he|[X]|<unk>|lo"},
		{"rstrip", chars(true, false, false), added(`"rstrip": true`), "he [X] \n lo", "he|<unk>|[X]|lo"},
		{"lstrip, rstrip", chars(true, false, false), added(`"lstrip": true, "rstrip": true`), "[X] [X] ", "[X]|[X]"},
		{"single_word", chars(true, false, false), added(`"single_word": true`), "he[X] [X] [X]o", "he|<unk>|[X]|<unk>|o"},
		{"normalized", chars(true, false, false), added(`"normalized": true`) + `, "normalizer": {"type": "Lowercase"}`, "HE[x]", "he|[X]"},
		{"not normalized", chars(true, false, false), added(`"normalized": false`) + `, "normalizer": {"type": "Lowercase"}`, "HE[X][x]", "he|[X]|<unk>"},
		{
			"the longest added token", chars(true, false, false),
			`"added_tokens": [{"id": 24, "content": "--"}, {"id": 25, "content": "---"}]`, "-----h-", "---|--|h|-",
		},
		{"an added token of the vocabulary", chars(true, false, false), `"added_tokens": [{"id": 14, "content": "hell"}]`, "ohello", "o|hell|o"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tok, err := parseJSON([]byte(documentOf(tt.model, tt.rest)))
			if err != nil {
				t.Fatal(err)
			}
			if got := spellings(tok, tok.Encode(tt.text)); got != tt.want {
				t.Errorf("%q: %s, want %s", tt.text, got, tt.want)
			}
		})
	}
}

func TestDecoders(t *testing.T) {
	tests := []struct {
		name, rest string
		ids        []int32
		want       string
	}{
		{"none", `"decoder": null`, []int32{11, 5, 30 + 'x'}, "▁he▁<0x78>"},
		{"SentencePiece's", sentencePieceDecoder, []int32{11, 12, 30 + 0xC3, 30 + 0xA9}, "he wé"},
		{"one space is stripped", sentencePieceDecoder, []int32{5, 5, 12}, "  w"},
		{"invalid bytes stay", sentencePieceDecoder, []int32{30 + 0xC3}, "\xc3"},
		{"Metaspace", `"decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}`, []int32{11, 12}, "he w"},
		{"Metaspace, never", `"decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}`, []int32{11, 12}, " he w"},
		{"an added token is spelled", sentencePieceDecoder + `, "added_tokens": [{"id": 290, "content": "▁x"}]`, []int32{11, 290}, "he▁x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tok, err := parseJSON([]byte(documentOf(chars(true, true, false), tt.rest)))
			if err != nil {
				t.Fatal(err)
			}
			if got := tok.Decode(tt.ids); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// byteModel is a byte-level vocabulary of all bytes and three merges.
func byteModel() string {
	var vocab []string
	for r, b := range runeBytes {
		if b >= 0 {
			vocab = append(vocab, fmt.Sprintf("%q: %d", string(rune(r)), b))
		}
	}
	vocab = append(vocab, `"\u0120h": 256`, `"he": 257`, `"\u0120he": 258`, `"<|end|>": 259`)
	return fmt.Sprintf(`"vocab": {%s}, "merges": ["\u0120 h", ["h", "e"], "\u0120h e"]`, strings.Join(vocab, ", "))
}

func TestByteLevel(t *testing.T) {
	special := `"added_tokens": [{"id": 259, "content": "<|end|>", "special": true, "normalized": true}]`
	tests := []struct {
		name, pre, text string
		want            []int32
	}{
		{"as it is", `{"type": "ByteLevel", "add_prefix_space": false}`, "he he", []int32{257, 258}},
		{"with a space before", `{"type": "ByteLevel", "add_prefix_space": true}`, "he", []int32{258}},
		{"with the space it has", `{"type": "ByteLevel", "add_prefix_space": true}`, " he", []int32{258}},
		{"without pieces", `{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}`, "1he", []int32{'1', 257}},
		{"after a Split", `{"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "h"}, "behavior": "Isolated"},
			{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}`, "he", []int32{'h', 'e'}},
		{"a control token as text", `{"type": "ByteLevel", "add_prefix_space": false}`, "<|end|>", []int32{'<', '|', 'e', 'n', 'd', '|', '>'}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			doc := documentOf(byteModel(), special+`, "pre_tokenizer": `+tt.pre+`, "decoder": {"type": "ByteLevel"}`)
			tok, err := parseJSON([]byte(doc))
			if err != nil {
				t.Fatal(err)
			}
			if got := tok.Encode(tt.text); !slices.Equal(got, tt.want) {
				t.Errorf("%q: %v, want %v", tt.text, got, tt.want)
			}
			if got := tok.EncodeSpecial("<|end|>"); !slices.Equal(got, []int32{259}) {
				t.Errorf("the control token: %v", got)
			}
		})
	}
}

func TestIDOfNormalizedTokens(t *testing.T) {
	tok, err := parseJSON([]byte(doc(`"normalizer": {"type": "Lowercase"}, "added_tokens": [{"id": 3, "content": "[X]", "normalized": true}]`)))
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := tok.ID("[X]"); id != 3 || !ok {
		t.Errorf("%d, %v", id, ok)
	}
}

func TestTagsNeedSpecialText(t *testing.T) {
	doc := documentOf(byteModel(), `"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
		"added_tokens": [{"id": 260, "content": "<think>", "special": false}, {"id": 261, "content": "  ", "special": false}]`)
	tok, err := parseJSON([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("<think>  "); slices.Contains(got, 260) || !slices.Contains(got, 261) {
		t.Errorf("typed by a user: %v", got)
	}
	if got := tok.EncodeSpecial("<think>  "); !slices.Equal(got, []int32{260, 261}) {
		t.Errorf("a template's: %v", got)
	}
	if tok.IsControl(260) {
		t.Error("<think> is a control token")
	}
}

func TestTokensAroundAText(t *testing.T) {
	const template = `"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
		"single": [{"SpecialToken": {"id": "[B]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
		"special_tokens": {"[B]": {"id": "[B]", "ids": [23], "tokens": ["[B]"]}}}]}`
	const added = `"added_tokens": [{"id": 23, "content": "[B]", "special": true}, {"id": 24, "content": "[E]", "special": true}], `
	tests := []struct {
		name, rest, config string
		prefix, suffix     []int32
	}{
		{"nothing said", `"decoder": null`, "", nil, nil},
		{"a template", template, "", []int32{23}, nil},
		{"a template, and a configuration that does not say", template, `{"bos_token": "[B]"}`, []int32{23}, nil},
		{"a template, and a configuration that agrees", template, `{"bos_token": "[B]", "add_bos_token": true}`, []int32{23}, nil},
		{"a template, and a configuration that does not", template, `{"bos_token": {"content": "[B]"}, "add_bos_token": false}`, nil, nil},
		{"a configuration alone", `"decoder": null`, `{"bos_token": "[B]", "eos_token": {"content": "[E]"}, "pad_token": null,
			"add_bos_token": true, "add_eos_token": true}`, []int32{23}, []int32{24}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "tokenizer.json"), documentOf(chars(true, false, false), added+tt.rest))
			if tt.config != "" {
				write(t, filepath.Join(dir, "tokenizer_config.json"), tt.config)
			}
			tok := loadJSON(t, filepath.Join(dir, "tokenizer.json"))
			if !slices.Equal(tok.Prefix(), tt.prefix) || !slices.Equal(tok.Suffix(), tt.suffix) {
				t.Errorf("%v … %v, want %v … %v", tok.Prefix(), tok.Suffix(), tt.prefix, tt.suffix)
			}
			if id, ok := tok.AddBOS(); ok != (len(tt.prefix) > 0) || ok && id != tt.prefix[0] {
				t.Errorf("AddBOS: %d, %v", id, ok)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// badDocuments are refused, each with words that say where and why.
var badDocuments = []struct{ name, doc, want string }{
	{"empty", "", "the document ends where '{' is expected"},
	{"an HTML page", "<!DOCTYPE html>", `offset 0: '<' where '{' is expected`},
	{"a git-lfs pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"},
	{"cut short", `{"model": {"type": "BPE", "vocab": {"a": 0`, "the document ends"},
	{"cut short in a string", `{"model": {"vocab": {"a`, "a string without end"},
	{"cut short in what is skipped", `{"truncation": [[1, "]`, "without end"},
	{"something after it", `{"model": {"vocab": {"a": 0}}} x`, "something follows"},
	{"no model", `{}`, "model.vocab"},
	{"no vocabulary", `{"model": {"type": "BPE", "merges": []}}`, "model.vocab"},
	{"another model", `{"model": {"type": "Unigram", "vocab": [["a", 0.5]]}}`, `model.type: "Unigram" is not supported`},
	{"a model of another kind", `{"model": 1}`, "model.vocab"},
	{"a negative id", `{"model": {"vocab": {"a": -1}}}`, "not a token id"},
	{"an id far too large", `{"model": {"vocab": {"a": 2000000000}}}`, "not a token id"},
	{"an id that is no integer", `{"model": {"vocab": {"a": 1.5}}}`, "where '}' is expected"},
	{"an id twice", `{"model": {"vocab": {"a": 0, "b": 0}}}`, "the id 0"},
	{"a token twice", `{"model": {"vocab": {"a": 0, "a": 1}}}`, `both "a"`},
	{"a merge of three", `{"model": {"vocab": {"a": 0}, "merges": [["a", "a", "a"]]}}`, "where ']' is expected"},
	{"a merge without a space", `{"model": {"vocab": {"a": 0}, "merges": ["aa"]}}`, `model.merges[0]: "aa" has no space`},
	{"a merge of no token", `{"model": {"vocab": {"a": 0}, "merges": ["a b"]}}`, `model.merges[0]: "b" is not a token`},
	{"a merge to no token", `{"model": {"vocab": {"a": 0}, "merges": ["a a"]}}`, `model.merges[0]: "aa" is not a token`},
	{"an unknown token that is none", `{"model": {"unk_token": "x", "vocab": {"a": 0}}}`, `model.unk_token: "x" is not a token`},
	{"dropout", `{"model": {"dropout": 0.1, "vocab": {"a": 0}}}`, "model.dropout"},
	{"a field of another kind", `{"model": {"byte_fallback": "yes", "vocab": {"a": 0}}}`, "model.byte_fallback"},
	{"a suffix", `{"model": {"end_of_word_suffix": "</w>", "vocab": {"a": 0}}}`, "model.end_of_word_suffix"},
	{"a prefix", `{"model": {"continuing_subword_prefix": "##", "vocab": {"a": 0}}}`, "model.continuing_subword_prefix"},
	{"an added id too large", `{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 4294967296, "content": "b"}]}`, "added_tokens[0].id"},
	{"an unknown normalizer", doc(`"normalizer": {"type": "Precompiled"}`), `normalizer: a normalizer of type "Precompiled"`},
	{
		"an unknown normalizer inside", doc(`"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Bert"}]}`),
		`normalizer.normalizers[1]: a normalizer of type "Bert"`,
	},
	{"a normalizer's pattern", doc(`"normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}`), "normalizer.pattern"},
	{"a Replace without one", doc(`"normalizer": {"type": "Replace", "content": ""}`), "normalizer.pattern"},
	{"an unknown pre-tokenizer", doc(`"pre_tokenizer": {"type": "BertPreTokenizer"}`), `pre_tokenizer: a pre-tokenizer of type "BertPreTokenizer"`},
	{"a pre-tokenizer's pattern", doc(`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a"}, "behavior": "Isolated"}`), "pre_tokenizer.pattern"},
	{"a pattern in other words", doc(`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated"}`), "intersection"},
	{"a Split without one", doc(`"pre_tokenizer": {"type": "Split", "behavior": "Isolated"}`), "pre_tokenizer.pattern"},
	{"an unknown behavior", doc(`"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Kept"}`), `pre_tokenizer.behavior: "Kept"`},
	{
		"a step after ByteLevel", doc(`"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]}`),
		"pre_tokenizer.pretokenizers[1]: a pre-tokenizer after ByteLevel",
	},
	{"a Metaspace of nothing", doc(`"pre_tokenizer": {"type": "Metaspace", "replacement": ""}`), "pre_tokenizer.replacement"},
	{"an unknown scheme", doc(`"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}`), `"last"`},
	{"an unknown decoder", doc(`"decoder": {"type": "CTC"}`), `decoder: a decoder of type "CTC"`},
	{"a decoder of bytes alone", doc(`"decoder": {"type": "ByteLevel"}`), "decoder: ByteLevel without"},
	{"a Strip of tokens", doc(`"decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 0}`), "decoder: a Strip"},
	{"an unknown post-processor", doc(`"post_processor": {"type": "BertProcessing"}`), `post_processor: a post-processor of type "BertProcessing"`},
	{"a template's token", doc(`"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]}`), `single[0]: "x"`},
	{"a template's id", doc(`"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}],
		"special_tokens": {"x": {"id": "x", "ids": [7]}}}`), `has the id 7`},
	{"nested too deeply", doc(`"normalizer": ` + strings.Repeat(`{"type": "Sequence", "normalizers": [`, 20) + strings.Repeat("]}", 20)), "so deep"},
	{"a component of another kind", doc(`"normalizer": 5`), "normalizer: "},
}

func doc(rest string) string { return documentOf(`"vocab": {"a": 0}, "merges": []`, rest) }

func TestBadDocuments(t *testing.T) {
	for _, tt := range badDocuments {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokenizer.json")
			write(t, path, tt.doc)
			_, err := FromJSON(path)
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v\ndoes not name the file and say %q", err, tt.want)
			}
		})
	}
	if _, err := FromJSON(filepath.Join(t.TempDir(), "tokenizer.json")); err == nil || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("no file: %v", err)
	}
}

func TestBadConfigurations(t *testing.T) {
	for config, want := range map[string]string{
		`{`:                          "tokenizer_config.json",
		`{"bos_token": 5}`:           "tokenizer_config.json",
		`{"add_bos_token": true}`:    "there is no bos_token",
		`{"add_eos_token": true}`:    "there is no eos_token",
		`{"eos_token": ["a", "b"]}`:  "tokenizer_config.json",
		`{"add_bos_token": "maybe"}`: "tokenizer_config.json",
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "tokenizer.json"), doc(`"decoder": null`))
		write(t, filepath.Join(dir, "tokenizer_config.json"), config)
		if _, err := FromJSON(filepath.Join(dir, "tokenizer.json")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokenizer.json")
	write(t, path, documentOf(chars(true, false, false), `"added_tokens": [{"id": 24, "content": "hell"}]`))
	write(t, filepath.Join(dir, "tokenizer_config.json"), `{"bos_token": "<none>"}`)
	tok := loadJSON(t, path)
	if got := tok.Warnings(); len(got) != 2 || !strings.Contains(got[0], `"hell" has the id 24`) || !strings.Contains(got[1], `"<none>"`) {
		t.Errorf("%q", got)
	}
	if got := tok.Encode("hell"); !slices.Equal(got, []int32{14}) {
		t.Errorf("the vocabulary's id does not count: %v", got)
	}
}

// TestJSONEqualsGGUF reads one vocabulary in both forms.
func TestJSONEqualsGGUF(t *testing.T) {
	path := filepath.Join("testdata", "ggml-vocab-gpt-2.gguf")
	a, b := loadGGUF(t, path), loadJSON(t, asJSON(t, path, patternGPT2))
	text := strings.Join(splitTexts, "\n") + "\xff<|endoftext|>"
	for name, encode := range map[string]func(*Tokenizer) []int32{
		"Encode":        func(tok *Tokenizer) []int32 { return tok.Encode(text) },
		"EncodeSpecial": func(tok *Tokenizer) []int32 { return tok.EncodeSpecial(text) },
	} {
		if x, y := encode(a), encode(b); !slices.Equal(x, y) {
			t.Errorf("%s: %v from GGUF, %v from JSON", name, x, y)
		}
	}
}

// FuzzJSON checks that no document makes the reader or what it reads panic.
func FuzzJSON(f *testing.F) {
	for _, tt := range badDocuments {
		f.Add([]byte(tt.doc))
	}
	f.Add([]byte(documentOf(chars(true, true, false), sentencePieceDecoder)))
	f.Add([]byte(documentOf(byteModel(), `"pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"}`)))
	f.Add([]byte(documentOf(chars(true, false, true), `"added_tokens": [{"id": 24, "content": "[X]", "lstrip": true, "rstrip": true,
		"single_word": true, "normalized": true}], "normalizer": {"type": "NFKC"}, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := parseJSON(data)
		if err != nil {
			return
		}
		if err := tok.configure(data); err != nil {
			return
		}
		for _, text := range []string{"he said: 12 <|end|>\xff", string(data)} {
			for _, id := range tok.EncodeSpecial(text) {
				if id < 0 || int(id) >= tok.Size() {
					t.Fatalf("id %d of %d", id, tok.Size())
				}
			}
		}
		for id := range int32(tok.Size()) {
			tok.Token(id)
		}
	})
}

func TestLargeJSONHasTheSameIDs(t *testing.T) {
	path := sharedtest.Dir(t, "vocab", "ggml-vocab-qwen2.gguf")
	a, b := loadGGUF(t, path), loadJSON(t, asJSON(t, path, patternQwen2))
	text := strings.Join(splitTexts, "\n")
	if x, y := a.Encode(text), b.Encode(text); !slices.Equal(x, y) {
		t.Errorf("%v from GGUF, %v from JSON", x, y)
	}
}
