package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// step is one pre-tokenizer: apply cuts text up, or rewrites it, and passes each result to e.run(k+1, …), where k is its own index.
type step interface {
	apply(e *encoder, k int, text string, first bool)
}

// behavior says what becomes of the matches of a split, in the names of Hugging Face's tokenizers.
type behavior int

const (
	isolated behavior = iota
	removed
	contiguous
	mergedWithPrevious
	mergedWithNext
)

var behaviors = map[string]behavior{
	"Isolated": isolated, "Removed": removed, "Contiguous": contiguous,
	"MergedWithPrevious": mergedWithPrevious, "MergedWithNext": mergedWithNext,
}

// splitStep cuts text at the matches of a pattern: a hand-written matcher where there is one, a regular expression or a literal otherwise.
type splitStep struct {
	match    matcher
	re       *regexp2.Regexp
	literal  string
	behavior behavior
	invert   bool // the stretches between the matches count as matches, and the matches as stretches
}

// newSplit returns the step that isolates the matches of a regular expression.
func newSplit(pattern string) (*splitStep, error) {
	if m := matchers[canonical(pattern)]; m != nil {
		return &splitStep{match: m}, nil
	}
	re, err := compile(pattern)
	if err != nil {
		return nil, err
	}
	return &splitStep{re: re}, nil
}

// compile compiles a pattern written for the regular expressions of the Rust or the Oniguruma library. Theirs intersect classes, ours
// subtract them; what cannot be rewritten is refused, since it would otherwise be read as something else.
func compile(pattern string) (*regexp2.Regexp, error) {
	p := strings.ReplaceAll(pattern, "&&[^", "-[")
	if strings.Contains(p, "&&") {
		return nil, fmt.Errorf("pattern %q: an intersection of character classes other than &&[^…] is not supported", pattern)
	}
	return regexp2.Compile(p)
}

func (st *splitStep) apply(e *encoder, k int, text string, first bool) {
	if st.match == nil || st.behavior != isolated {
		for _, s := range st.pieces(text) {
			e.run(k+1, text[s.start:s.end], first && s.start == 0)
		}
		return
	}
	done := 0
	for i := 0; i < len(text); {
		end := st.match(text, i)
		if end == i {
			_, n := utf8.DecodeRuneInString(text[i:])
			i += n
			continue
		}
		e.run(k+1, text[done:i], first && done == 0)
		e.run(k+1, text[i:end], first && i == 0)
		i, done = end, end
	}
	e.run(k+1, text[done:], first && done == 0)
}

// part is a match or a stretch between two.
type part struct {
	span
	match bool
}

// pieces returns what the split leaves of text.
func (st *splitStep) pieces(text string) []span {
	var out []span
	was := false // the part before was a match
	parts := st.parts(text)
	for i, p := range parts {
		switch st.behavior {
		case removed:
			if !p.match {
				out = append(out, p.span)
			}
		case contiguous:
			if p.match == was && len(out) > 0 {
				out[len(out)-1].end = p.end
			} else {
				out = append(out, p.span)
			}
		case mergedWithPrevious:
			if p.match && !was && len(out) > 0 {
				out[len(out)-1].end = p.end
			} else {
				out = append(out, p.span)
			}
		case mergedWithNext:
			// A match joins what follows it, unless that is a match too.
			if i > 0 && was && !p.match {
				out[len(out)-1].end = p.end
			} else {
				out = append(out, p.span)
			}
		default:
			out = append(out, p.span)
		}
		was = p.match
	}
	return out
}

// parts cuts text into matches and the stretches between them.
func (st *splitStep) parts(text string) []part {
	var out []part
	done := 0
	add := func(start, end int) {
		if done < start {
			out = append(out, part{span{uint32(done), uint32(start)}, st.invert})
		}
		if start < end {
			out = append(out, part{span{uint32(start), uint32(end)}, !st.invert})
		}
		done = end
	}
	switch {
	case st.match != nil:
		for i := 0; i < len(text); {
			end := st.match(text, i)
			if end > i {
				add(i, end)
				i = end
				continue
			}
			_, n := utf8.DecodeRuneInString(text[i:])
			i += n
		}
	case st.re != nil:
		// An error can only be a timeout, and none is set.
		found, _ := st.re.FindAllStringIndex(text, -1)
		for _, m := range found {
			add(m[0], m[1])
		}
	case st.literal != "":
		for n := strings.Index(text, st.literal); n >= 0; n = strings.Index(text[done:], st.literal) {
			add(done+n, done+n+len(st.literal))
		}
	}
	add(len(text), len(text))
	return out
}

// spaceStep puts a space before a text that has none, so that its first word is the token that it would be elsewhere.
type spaceStep struct{}

func (spaceStep) apply(e *encoder, k int, text string, first bool) {
	if text[0] != ' ' {
		text = " " + text
	}
	e.run(k+1, text, first)
}

// metaspaceStep writes spaces as a visible character, "▁", and cuts the text before each.
type metaspaceStep struct {
	replacement string
	prepend     string // "always", "first": where the whole text begins, or "never"
	split       bool
}

func (st metaspaceStep) apply(e *encoder, k int, text string, first bool) {
	text = strings.ReplaceAll(text, " ", st.replacement)
	if (st.prepend == "always" || st.prepend == "first" && first) && !strings.HasPrefix(text, st.replacement) {
		text = st.replacement + text
	}
	if !st.split {
		e.run(k+1, text, false)
		return
	}
	for text != "" {
		_, n := utf8.DecodeRuneInString(text)
		end := strings.Index(text[n:], st.replacement)
		if end < 0 {
			break
		}
		e.run(k+1, text[:n+end], false)
		text = text[n+end:]
	}
	e.run(k+1, text, false)
}
