package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// decoder says how the bytes of a token follow from its key.
type decoder struct {
	replace [][2]string // in order; for keys that are spellings
	lead    string      // taken off the beginning of a text, once
}

// Decode returns the text of ids. Control tokens appear as they are spelled. Bytes that are not valid UTF-8 are returned as they are, so
// that Decode is the inverse of Encode wherever the tokenizer's normalization loses nothing. An id outside the vocabulary adds nothing.
func (t *Tokenizer) Decode(ids []int32) string {
	var out []byte
	for _, id := range ids {
		out = t.appendToken(out, id)
	}
	return strings.TrimPrefix(string(out), t.decoder.lead)
}

// Token returns the bytes that id stands for, which may be part of a character only, or nil for an id without a token.
func (t *Tokenizer) Token(id int32) []byte { return t.appendToken(nil, id) }

func (t *Tokenizer) appendToken(dst []byte, id int32) []byte {
	if id < 0 || int(id) >= len(t.info) {
		return dst
	}
	info := t.info[id]
	if info.added > 0 {
		return append(dst, t.added[info.added-1].content...)
	}
	if info.byteVal >= 0 {
		return append(dst, byte(info.byteVal))
	}
	key := t.vocab.key(id)
	if len(t.decoder.replace) == 0 {
		return append(dst, key...)
	}
	s := string(key)
	for _, r := range t.decoder.replace {
		s = strings.ReplaceAll(s, r[0], r[1])
	}
	return append(dst, s...)
}

// Stream decodes tokens one at a time into valid UTF-8. It holds back nothing but the beginning of a character whose other bytes may be in
// tokens to come; an invalid byte becomes U+FFFD at once. A stream continues a text, so unlike Decode it keeps a leading space.
type Stream struct {
	t       *Tokenizer
	control bool
	held    []byte
}

// NewStream returns a stream that shows control tokens, or passes over them. It is for one goroutine.
func (t *Tokenizer) NewStream(control bool) *Stream { return &Stream{t: t, control: control} }

// Push adds a token and returns the text that is now complete.
func (s *Stream) Push(id int32) string {
	if !s.control && s.t.IsControl(id) {
		return ""
	}
	s.held = s.t.appendToken(s.held, id)
	var out strings.Builder
	i := 0
	for i < len(s.held) && utf8.FullRune(s.held[i:]) {
		r, n := utf8.DecodeRune(s.held[i:])
		out.WriteRune(r)
		i += n
	}
	s.held = append(s.held[:0], s.held[i:]...)
	return out.String()
}

// Flush ends the text: what was held back can no longer be completed and becomes U+FFFD, one for each byte.
func (s *Stream) Flush() string {
	out := strings.Repeat(string(utf8.RuneError), len(s.held))
	s.held = s.held[:0]
	return out
}

// The byte-level alphabet of GPT-2's encoder writes each byte as a printable character: printable Latin-1 as itself, the other 68 bytes, in
// order, as U+0100 and up.
var runeBytes = func() (bytes [256 + 68]int16) {
	for r := range bytes {
		bytes[r] = -1
	}
	next := 256
	for b := range 256 {
		if b <= ' ' || b >= 0x7F && b <= 0xA0 || b == 0xAD {
			bytes[next] = int16(b)
			next++
		} else {
			bytes[b] = int16(b)
		}
	}
	return bytes
}()

// unmapBytes appends the bytes that s spells in the byte-level alphabet; ok is false where it has other characters.
func unmapBytes(dst []byte, s string) (out []byte, ok bool) {
	for _, r := range s {
		if int(r) >= len(runeBytes) || runeBytes[r] < 0 {
			return dst, false
		}
		dst = append(dst, byte(runeBytes[r]))
	}
	return dst, true
}

// byteToken returns the byte that a token spelled like <0x0A> stands for.
func byteToken(s string) (byte, bool) {
	if len(s) != 6 || s[:3] != "<0x" || s[5] != '>' {
		return 0, false
	}
	hi, ok1 := hexDigit(s[3])
	lo, ok2 := hexDigit(s[4])
	return hi<<4 | lo, ok1 && ok2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}
