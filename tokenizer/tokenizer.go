// Package tokenizer turns text into token ids and token ids into text.
//
// It reads Hugging Face's tokenizer.json (BPE over bytes or characters) and the vocabularies inside GGUF files ("gpt2": BPE over bytes,
// "llama": SentencePiece's score-driven merging). Text passes through
//
//	added tokens → normalizers → pre-tokenizers (split into pieces) → merges within each piece → ids
//
// Chat templates are package chat's, GGUF files package weights/gguf's.
//
// # Control tokens
//
// A control token (Hugging Face's "special": true, GGUF's types control and unknown, and whatever a GGUF file spells like "<|this|>") steers
// the model. It is recognised only in text that the caller declares special, never in text a user typed, and no merge may produce one. An
// added token that is not a control token but is spelled like a tag, as "<think>" or "<tool_call>", is recognised under the same condition.
// All other added tokens (runs of spaces, words) are ordinary vocabulary and are recognised everywhere.
//
// Texts may have up to 2 GiB.
package tokenizer

import (
	"slices"
	"strings"
	"sync"
)

// Tokenizer is immutable and safe for concurrent use.
type Tokenizer struct {
	vocab   vocab
	info    []tokenInfo // by id
	model   model
	added   []addedToken
	literal matchSet // added tokens found in the text as it is
	normal  matchSet // added tokens found in normalized text

	normalizers []normalizer
	steps       []step
	decoder     decoder

	unk, bos, eos, pad int32 // -1 where the vocabulary has none
	prefix, suffix     []int32
	warnings           []string
	encoders           sync.Pool // of *encoder
}

// tokenInfo says what an id is beyond its key in the vocabulary.
type tokenInfo struct {
	added   int32 // index in Tokenizer.added plus 1, or 0
	byteVal int16 // the byte that a token such as <0x0A> stands for, or -1
	control bool
}

// Part is a stretch of a prompt. Control tokens are recognised in it only if Special is set: a template's own text is special, what a user
// typed is not.
type Part struct {
	Text    string
	Special bool
}

// Encode returns the ids of text in which no control token is recognised: "<|user|>" is tokenized as the nine characters it is. Nothing
// is added before or after; see Prefix.
func (t *Tokenizer) Encode(text string) []int32 { return t.encode(text, nil) }

// EncodeSpecial returns the ids of text in which control tokens are recognised.
func (t *Tokenizer) EncodeSpecial(text string) []int32 {
	return t.encode(text, []span{{0, uint32(len(text))}})
}

// EncodeParts returns the ids of the parts' concatenation. Only the recognition of control tokens heeds the parts' borders: a control token
// must lie within special parts, while ordinary text is merged across them, as if it had been one string.
func (t *Tokenizer) EncodeParts(parts []Part) []int32 {
	var text strings.Builder
	var special []span
	for _, p := range parts {
		start := uint32(text.Len())
		text.WriteString(p.Text)
		end := uint32(text.Len())
		switch n := len(special); {
		case !p.Special || start == end:
		case n > 0 && special[n-1].end == start:
			special[n-1].end = end
		default:
			special = append(special, span{start, end})
		}
	}
	return t.encode(text.String(), special)
}

// encode tokenizes text whose special stretches, in order and apart, are given.
func (t *Tokenizer) encode(text string, special []span) []int32 {
	e, _ := t.encoders.Get().(*encoder)
	if e == nil {
		e = newEncoder(t)
	}
	defer t.encoders.Put(e)
	e.out = e.out[:0]
	t.literal.split(t.added, text, special, func(s string, start int, id int32) {
		if id >= 0 {
			e.out = append(e.out, id)
		} else {
			e.stretch(s, start == 0)
		}
	})
	return slices.Clone(e.out)
}

// stretch tokenizes text without literal added tokens. first is set where it begins the whole text.
func (e *encoder) stretch(text string, first bool) {
	for _, normalize := range e.t.normalizers {
		text = normalize(text)
	}
	if e.t.normal.empty() {
		e.run(0, text, first)
		return
	}
	e.t.normal.split(e.t.added, text, nil, func(s string, start int, id int32) {
		if id >= 0 {
			e.out = append(e.out, id)
		} else {
			e.run(0, s, first && start == 0)
		}
	})
}

// run passes text through the pre-tokenizers from step k on, and its pieces to the merges.
func (e *encoder) run(k int, text string, first bool) {
	switch {
	case text == "":
	case k == len(e.t.steps):
		e.piece(text)
	default:
		e.t.steps[k].apply(e, k, text, first)
	}
}

// Size returns the number of ids, gaps included.
func (t *Tokenizer) Size() int { return len(t.info) }

// ID returns the id of a token by its spelling in the vocabulary, as "<|endoftext|>" or "Ġthe".
func (t *Tokenizer) ID(token string) (int32, bool) {
	if i := slices.IndexFunc(t.added, func(a addedToken) bool { return a.content == token }); i >= 0 {
		return t.added[i].id, true
	}
	if t.model.byteLevel {
		key, ok := unmapBytes(nil, token)
		if !ok {
			return -1, false
		}
		return t.vocab.lookupBytes(key)
	}
	if b, ok := byteToken(token); ok && t.model.byteIDs[b] >= 0 {
		return t.model.byteIDs[b], true
	}
	return t.vocab.lookup(token)
}

// IsControl reports whether id is a control token, which a reader of the text should not see.
func (t *Tokenizer) IsControl(id int32) bool {
	return id >= 0 && int(id) < len(t.info) && t.info[id].control
}

// BOS returns the token that begins a text, where the vocabulary names one. Whether a prompt is to begin with it is AddBOS's answer.
func (t *Tokenizer) BOS() (int32, bool) { return t.bos, t.bos >= 0 }

// EOS returns the token that ends a text, where the vocabulary names one.
func (t *Tokenizer) EOS() (int32, bool) { return t.eos, t.eos >= 0 }

// PAD returns the token that fills up batches, where the vocabulary names one.
func (t *Tokenizer) PAD() (int32, bool) { return t.pad, t.pad >= 0 }

// UNK returns the token for text that has none, where the vocabulary names one.
func (t *Tokenizer) UNK() (int32, bool) { return t.unk, t.unk >= 0 }

// AddBOS returns the token that a plain prompt begins with, if it begins with one. A rendered chat template brings its own.
func (t *Tokenizer) AddBOS() (int32, bool) {
	if len(t.prefix) == 0 {
		return -1, false
	}
	return t.prefix[0], true
}

// Prefix returns the ids that a plain prompt begins with: none, the BOS token, or a vocabulary's own sequence.
func (t *Tokenizer) Prefix() []int32 { return slices.Clone(t.prefix) }

// Suffix returns the ids that a complete plain text ends with.
func (t *Tokenizer) Suffix() []int32 { return slices.Clone(t.suffix) }

// Warnings returns what a user should know about how the vocabulary was read, a sentence each.
func (t *Tokenizer) Warnings() []string { return slices.Clone(t.warnings) }
