package synth

import (
	"fmt"
	"strings"
)

// vocab is a byte-level BPE vocabulary (tokenizer.ggml.model gpt2): the 256 bytes, a few merges, <|endoftext|>, and placeholders up to
// the model's size. Any text can be tokenized with it.
type vocab struct {
	tokens, merges []string
	types          []int32 // tokenizer.ggml.token_type
	eos            int
}

// Token types of GGUF.
const (
	tokenNormal  = 1
	tokenControl = 3
	tokenUnused  = 5
)

// merges are pairs by rank; Ġ stands for a space.
var merges = []string{
	"Ġ t", "h e", "i n", "Ġ a", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "o u", "n d", "Ġ w", "e s", "Ġ o", "i s", "Ġa nd", "in g",
	"Ġ f", "Ġ in", "e d", "Ġo f", "Ġt o", "Ġ h", "Ġ b", "i t", "l l", "Ġ he", "a s", "Ġw as",
}

var minVocab = 256 + len(merges) + 1

// vocabulary returns one of n ≥ minVocab tokens.
func vocabulary(n int) vocab {
	v := vocab{merges: merges}
	add := func(token string, kind int32) {
		v.tokens, v.types = append(v.tokens, token), append(v.types, kind)
	}
	for _, r := range byteRunes() {
		add(string(r), tokenNormal)
	}
	for _, pair := range merges {
		add(strings.ReplaceAll(pair, " ", ""), tokenNormal)
	}
	v.eos = len(v.tokens)
	add("<|endoftext|>", tokenControl)
	for len(v.tokens) < n {
		add(fmt.Sprintf("[PAD%d]", len(v.tokens)), tokenUnused)
	}
	return v
}

// byteRunes lists the characters that stand for the 256 bytes in GPT-2's vocabularies: printable bytes of Latin-1 stand for themselves
// and come first, the others are numbered from U+0100 on.
func byteRunes() []rune {
	var printable, others []rune
	for b := range rune(256) {
		if b >= '!' && b <= '~' || b >= '¡' && b <= '¬' || b >= '®' {
			printable = append(printable, b)
		} else {
			others = append(others, rune(256+len(others)))
		}
	}
	return append(printable, others...)
}
