package tokenizer

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"
)

// addedToken is a token that is found in the text before anything else happens to it.
type addedToken struct {
	content string
	id      int32

	singleWord     bool // only where no word character touches it
	lstrip, rstrip bool // takes the white space before or after it along
	normalized     bool // looked for in normalized text
	control        bool
	guarded        bool // found in special text only
}

// tagged reports whether s is spelled like a tag: angle brackets around something without white space.
func tagged(s string) bool {
	return len(s) > 2 && s[0] == '<' && s[len(s)-1] == '>' && !strings.ContainsAny(s, " \t\r\n")
}

// matchSet finds added tokens, leftmost first and the longest of those.
type matchSet struct {
	byText  map[string]int32 // index in Tokenizer.added
	lengths [256][]int       // by first byte: the distinct lengths of tokens that begin with it, longest first
	free    bool             // some token is not guarded
}

func (m *matchSet) empty() bool { return len(m.byText) == 0 }

func (m *matchSet) add(token *addedToken, index int32) {
	if m.byText == nil {
		m.byText = map[string]int32{}
	}
	m.byText[token.content] = index
	m.free = m.free || !token.guarded
	first, n := token.content[0], len(token.content)
	at, found := slices.BinarySearchFunc(m.lengths[first], n, func(a, b int) int { return cmp.Compare(b, a) })
	if !found {
		m.lengths[first] = slices.Insert(m.lengths[first], at, n)
	}
}

// split cuts text into added tokens and the stretches between them, in order, and hands each to yield: a token by its id, a stretch, never
// empty, with id -1. start is the offset in text.
func (m *matchSet) split(added []addedToken, text string, special []span, yield func(s string, start int, id int32)) {
	done := 0
	for i := 0; i < len(text) && (m.free || len(special) > 0); {
		tok, end := m.at(added, text, i, special)
		if tok == nil {
			i++
			continue
		}
		start := i
		if tok.lstrip {
			start = done + len(strings.TrimRightFunc(text[done:start], isSpace))
		}
		if tok.rstrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], isSpace))
		}
		if done < start {
			yield(text[done:start], done, -1)
		}
		yield(text[start:end], start, tok.id)
		done, i = end, end
	}
	if done < len(text) {
		yield(text[done:], done, -1)
	}
}

// at returns the longest token that begins at text[i], and its end, or nil.
func (m *matchSet) at(added []addedToken, text string, i int, special []span) (*addedToken, int) {
	for _, n := range m.lengths[text[i]] {
		if n > len(text)-i {
			continue
		}
		index, ok := m.byText[text[i:i+n]]
		if !ok {
			continue
		}
		tok := &added[index]
		if tok.guarded && !within(special, i, i+n) {
			continue
		}
		if tok.singleWord && (endsInWord(text[:i]) || startsWithWord(text[i+n:])) {
			continue
		}
		return tok, i + n
	}
	return nil, 0
}

// within reports whether one of the spans, which are in order, contains text[start:end].
func within(spans []span, start, end int) bool {
	k := sort.Search(len(spans), func(k int) bool { return int(spans[k].end) >= end })
	return k < len(spans) && int(spans[k].start) <= start
}

func isSpace(r rune) bool { return classOf(r)&space != 0 }

func isWord(r rune) bool { return r == '_' || classOf(r)&(letter|mark|number) != 0 }

func endsInWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func startsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}
