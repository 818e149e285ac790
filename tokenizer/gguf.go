package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Vocab is a vocabulary as a GGUF file has it under tokenizer.ggml. A nil pointer stands for an absent key.
type Vocab struct {
	Model          string // "gpt2" or "llama"
	Pre            string // how "gpt2" cuts text into pieces
	Tokens         []string
	Scores         []float32 // "llama": tokens of higher score are made first
	Types          []int     // see the Type constants; empty: all are normal
	Merges         []string  // "gpt2": "left right", in order
	BOS, EOS       *int
	UNK, PAD       *int
	AddBOS, AddEOS *bool
	AddSpacePrefix *bool // "llama": a text begins with a space
}

// Token types of a GGUF vocabulary.
const (
	TypeNormal      = 1
	TypeUnknown     = 2
	TypeControl     = 3
	TypeUserDefined = 4
	TypeUnused      = 5
	TypeByte        = 6
)

// Metadata is what VocabFromGGUF needs of a GGUF file; *gguf.File of package weights/gguf has it.
type Metadata interface {
	String(key string) (string, bool)
	Uint(key string) (uint64, bool)
	Bool(key string) (bool, bool)
	Strings(key string) ([]string, bool)
	Ints(key string) ([]int64, bool)
	Floats(key string) ([]float32, bool)
}

// VocabFromGGUF collects the vocabulary of a GGUF file.
func VocabFromGGUF(m Metadata) (Vocab, error) {
	const prefix = "tokenizer.ggml."
	var v Vocab
	var ok bool
	if v.Model, ok = m.String(prefix + "model"); !ok {
		return v, errors.New("tokenizer: the file has no tokenizer.ggml.model, so no vocabulary: use a GGUF file made with one")
	}
	if v.Tokens, ok = m.Strings(prefix + "tokens"); !ok {
		return v, errors.New("tokenizer: the file has no list of strings tokenizer.ggml.tokens")
	}
	v.Pre, _ = m.String(prefix + "pre")
	v.Merges, _ = m.Strings(prefix + "merges")
	v.Scores, _ = m.Floats(prefix + "scores")
	if types, ok := m.Ints(prefix + "token_type"); ok {
		v.Types = make([]int, len(types))
		for i, x := range types {
			v.Types[i] = int(x)
		}
	}
	for key, id := range map[string]**int{
		"bos_token_id": &v.BOS, "eos_token_id": &v.EOS, "unknown_token_id": &v.UNK, "padding_token_id": &v.PAD,
	} {
		// 2^32-1 is how -1, no token, looks in an unsigned field.
		if x, ok := m.Uint(prefix + key); ok && x != math.MaxUint32 {
			n := int(min(x, math.MaxInt32))
			*id = &n
		}
	}
	for key, flag := range map[string]**bool{
		"add_bos_token": &v.AddBOS, "add_eos_token": &v.AddEOS, "add_space_prefix": &v.AddSpacePrefix,
	} {
		if x, ok := m.Bool(prefix + key); ok {
			*flag = &x
		}
	}
	return v, nil
}

// preTokenizer is what a value of tokenizer.ggml.pre stands for.
type preTokenizer struct {
	patterns     []string // each cuts the pieces that the ones before left, its matches being pieces
	ignoreMerges bool
	addBOS       bool // where tokenizer.ggml.add_bos_token is absent
}

// The pre-tokenizers by name, from llama.cpp's src/llama-vocab.cpp, with the models' own patterns where llama.cpp approximates them.
var preTokenizers = func() map[string]preTokenizer {
	const (
		falconPuncts  = "[\\p{P}\\$\\+<=>\\^~\\|`]+"
		defaultPuncts = `[\p{P}\$\+<=>\^~\|]+`
		threeDigits   = `[0-9][0-9][0-9]`
		bailing       = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`
		seedCoder     = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+`
		exaoneMoE     = contractions + `|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}` +
			`| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+`
		tekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|` +
			`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|` +
			`\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	)
	table := map[string]preTokenizer{}
	add := func(p preTokenizer, names ...string) {
		for _, name := range names {
			table[name] = p
		}
	}
	patterns := func(p ...string) preTokenizer { return preTokenizer{patterns: p} }

	add(patterns(patternGPT2), "gpt-2", "olmo", "mpt", "phi-2", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0",
		"mellum", "modern-bert", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code", "roberta-bpe")
	add(patterns(patternDigit, patternGPT2), "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2")
	add(preTokenizer{patterns: []string{patternLlama3}, ignoreMerges: true, addBOS: true}, "llama-bpe", "llama3", "llama-v3", "falcon3",
		"falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano")
	add(patterns(patternLlama3), "dbrx", "smaug-bpe", "chatglm-bpe", "glm4")
	add(patterns(patternQwen2), "qwen2", "stablelm2", "hunyuan", "megrez", "deepseek-r1-qwen", "kormo", "f2llmv2", "solar-open", "grok-2")
	add(patterns(patternQwen35), "qwen35")
	add(preTokenizer{patterns: []string{patternDigits3, patternMiniCPM}, ignoreMerges: true}, "minicpm5")
	add(patterns(patternO200k), "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2")
	add(preTokenizer{patterns: []string{tekken}, ignoreMerges: true, addBOS: true}, "tekken")
	add(patterns(patternNewline, patternCased, patternMarks, patternTail, patternCJK, patternNumber), "deepseek-llm")
	add(patterns(patternNewline, patternLetters, patternPuncts, patternCJK, patternDigit), "deepseek-coder")
	add(patterns(patternDigits3, patternKana, patternDeepSeek3), "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4")
	add(patterns(bailing), "bailingmoe", "bailingmoe2", "llada-moe")
	add(patterns(seedCoder), "seed-coder")
	add(patterns(exaoneMoE), "exaone-moe")
	add(patterns(falconPuncts, patternGPT2, threeDigits), "falcon")
	add(patterns(defaultPuncts, patternGPT2, patternNumber, threeDigits), "default")
	return table
}()

// FromGGUF makes the tokenizer of a GGUF vocabulary. An unknown Pre is an error; a missing one is read as "default", as llama.cpp does, with
// a warning.
func FromGGUF(v Vocab) (*Tokenizer, error) {
	t, err := fromGGUF(v)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: tokenizer.ggml.%w", err)
	}
	return t, nil
}

func fromGGUF(v Vocab) (*Tokenizer, error) {
	switch {
	case len(v.Tokens) == 0:
		return nil, errors.New("tokens: the list is empty")
	case len(v.Tokens) > math.MaxInt32:
		return nil, fmt.Errorf("tokens: %d tokens are too many", len(v.Tokens))
	case len(v.Types) != 0 && len(v.Types) < len(v.Tokens):
		return nil, fmt.Errorf("token_type: %d types for %d tokens", len(v.Types), len(v.Tokens))
	}
	t := newTokenizer(len(v.Tokens))
	for _, s := range []struct {
		key  string
		from *int
		to   *int32
	}{
		{"bos_token_id", v.BOS, &t.bos},
		{"eos_token_id", v.EOS, &t.eos},
		{"unknown_token_id", v.UNK, &t.unk},
		{"padding_token_id", v.PAD, &t.pad},
	} {
		if s.from == nil {
			continue
		}
		if *s.from < 0 || *s.from >= len(v.Tokens) {
			return nil, fmt.Errorf("%s: %d is not one of the %d tokens", s.key, *s.from, len(v.Tokens))
		}
		*s.to = int32(*s.from)
	}
	var addBOS bool
	var err error
	switch v.Model {
	case "gpt2":
		addBOS, err = t.setGPT2(&v)
	case "llama":
		addBOS, err = true, t.setSPM(&v)
	default:
		err = fmt.Errorf("model: %q is not supported, only \"gpt2\" and \"llama\" are", v.Model)
	}
	if err != nil {
		return nil, err
	}
	if v.AddBOS == nil && t.bos >= 0 {
		v.AddBOS = &addBOS
	}
	return t, errors.Join(
		override(&t.prefix, v.AddBOS, t.bos, "add_bos_token is true, but there is no bos_token_id"),
		override(&t.suffix, v.AddEOS, t.eos, "add_eos_token is true, but there is no eos_token_id"))
}

func (v *Vocab) typeOf(id int) int {
	if id < len(v.Types) {
		return v.Types[id]
	}
	return TypeNormal
}

// setGPT2 fills t from a byte-level BPE vocabulary and returns whether a text begins with BOS unless the file says otherwise.
func (t *Tokenizer) setGPT2(v *Vocab) (addBOS bool, err error) {
	name := v.Pre
	if name == "" {
		name = "default"
		t.warnings = append(t.warnings, "the file does not say how to cut text into pieces (tokenizer.ggml.pre), so a usual way is taken: "+
			"a newer conversion of the model may answer better")
	}
	pre, ok := preTokenizers[name]
	if !ok {
		return false, fmt.Errorf("pre: %q is not known: use the model's safetensors with its tokenizer.json", v.Pre)
	}
	for _, p := range pre.patterns {
		st, err := newSplit(p)
		if err != nil {
			return false, fmt.Errorf("pre: %w", err)
		}
		t.steps = append(t.steps, st)
	}
	t.model.byteLevel = true
	t.model.ignoreMerges = pre.ignoreMerges
	if err := t.addTokens(v); err != nil {
		return false, err
	}
	t.model.pairs = newPairTable(len(v.Merges))
	for i, m := range v.Merges {
		// A space may be the first character of the left token in vocabularies that do not map bytes.
		if m == "" {
			return false, fmt.Errorf("merges[%d]: it is empty", i)
		}
		at := strings.IndexByte(m[1:], ' ') + 1
		if at == 0 {
			return false, fmt.Errorf("merges[%d]: %q has no space", i, m)
		}
		if err := t.addMerge(i, []byte(m[:at]), []byte(m[at+1:])); err != nil {
			return false, fmt.Errorf("merges[%d]: %w", i, err)
		}
	}
	return pre.addBOS, nil
}

// addTokens fills the vocabulary and the added tokens.
func (t *Tokenizer) addTokens(v *Vocab) error {
	total := 0
	for _, s := range v.Tokens {
		total += len(s)
	}
	if total > math.MaxInt32 { // a span counts in 32 bits
		return fmt.Errorf("tokens: %d bytes of text are too many", total)
	}
	t.vocab = newVocab(len(v.Tokens), total)
	for i, s := range v.Tokens {
		kind := v.typeOf(i)
		// Converters used to give tokens such as <|im_end|> the type of a user-defined one, or none.
		control := kind == TypeControl || kind == TypeUnknown || enclosed(s, "<|", "|>") || enclosed(s, "<｜", "｜>")
		if s != "" && (control || kind == TypeUserDefined) {
			t.addAdded(addedToken{content: s, id: int32(i), control: control, guarded: control || tagged(s)})
		}
		if err := t.addKey(int32(i), []byte(s), t.model.byteFallback || v.typeOf(i) == TypeByte); err != nil {
			return fmt.Errorf("tokens: %w", err)
		}
	}
	return nil
}

// enclosed reports whether s has something between open and end.
func enclosed(s, open, end string) bool {
	return len(s) > len(open)+len(end) && strings.HasPrefix(s, open) && strings.HasSuffix(s, end)
}

// spaceMark is how SentencePiece spells a space.
const spaceMark = "▁"

// setSPM fills t from a SentencePiece vocabulary.
func (t *Tokenizer) setSPM(v *Vocab) error {
	if len(v.Scores) < len(v.Tokens) {
		return fmt.Errorf("scores: %d scores for %d tokens", len(v.Scores), len(v.Tokens))
	}
	t.model.byteFallback = true
	t.model.scores = make([]uint32, len(v.Tokens))
	for i, x := range v.Scores[:len(v.Tokens)] {
		if math.IsNaN(float64(x)) {
			return fmt.Errorf("scores[%d]: not a number", i)
		}
		t.model.scores[i] = descending(x)
	}
	if v.AddSpacePrefix == nil || *v.AddSpacePrefix {
		t.normalizers = append(t.normalizers, prepend(" "))
		t.decoder.lead = " "
	}
	t.normalizers = append(t.normalizers, replace(" ", spaceMark))
	t.decoder.replace = [][2]string{{spaceMark, " "}}
	if err := t.addTokens(v); err != nil {
		return err
	}
	if !t.marksInside() {
		t.steps = append(t.steps, &splitStep{match: matchMarked})
	}
	if missing := slices.Index(t.model.byteIDs[:], -1); missing >= 0 && t.unk < 0 {
		return fmt.Errorf("tokens: there is neither <0x%02X>, the token of a byte, nor an unknown_token_id", missing)
	}
	return nil
}

// marksInside reports whether some token that merges can make has a space mark after another character. Where none has, merges cannot cross
// the beginning of a word, and words can be tokenized one by one, which is much faster than merging the whole text at once.
func (t *Tokenizer) marksInside() bool {
	for id := range t.vocab.keys {
		key := strings.TrimLeft(string(t.vocab.key(int32(id))), spaceMark)
		if strings.Contains(key, spaceMark) {
			if _, ok := t.vocab.lookup(string(t.vocab.key(int32(id)))); ok {
				return true
			}
		}
	}
	return false
}

// matchMarked matches space marks and the word that follows.
func matchMarked(s string, i int) int {
	end := i
	for strings.HasPrefix(s[end:], spaceMark) {
		end += len(spaceMark)
	}
	if end == i {
		return i
	}
	if n := strings.Index(s[end:], spaceMark); n >= 0 {
		return end + n
	}
	return len(s)
}

// descending maps numbers to integers that order the other way round.
func descending(x float32) uint32 {
	bits := math.Float32bits(x)
	if bits>>31 == 0 {
		return ^(bits | 1<<31)
	}
	return bits
}
