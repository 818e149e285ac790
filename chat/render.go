package chat

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Part is a stretch of a prompt, to be tokenized by itself.
type Part struct {
	Text    string
	Special bool // whether control tokens in the text become control tokens; if not, they are words like any other
}

// Render renders a conversation. The texts of the parts, joined, are the prompt.
//
// A control token (see Request.ControlTokens) that starts in what somebody typed, or a model or tool wrote, gets a part of its own that is not
// special; all other text, where no such token can be, is special. To know where a character of the prompt is from, the template is rendered
// a second time with private-use characters, which occur nowhere else, as marks in the messages. Templates look into messages, so marks can
// change what they do. Therefore there are several ways to mark, tried until the prompt without the marks is that without marking:
//
//  1. a private character in place of each that could begin a control token, which keeps lengths, and the white space at the ends
//  2. a private character before each of those, which keeps the tokens findable
//  3. a private character only before whole control tokens (and their beginnings at the end of a message, as the next may complete them)
//
// If none gives the same prompt, because the template takes a typed token for structure, the prompt of the last way is returned: there the
// typed token may have been read as ordinary text, but it never becomes a control token. A token that starts in the template's own text is
// the template's, even if it ends in a message.
func (t *Template) Render(r Request) ([]Part, error) {
	if r.Now.IsZero() {
		r.Now = time.Now()
	}
	m := newMarks(r.ControlTokens)
	typed := false
	prompt, err := t.execute(r, func(s string) string {
		typed = m.look(s) || typed
		return s
	})
	if err != nil {
		return nil, err
	}
	if !typed {
		return appendPart(nil, prompt, true), nil
	}
	m.look(prompt)
	m.look(t.source)
	if err := m.choose(); err != nil {
		return nil, err
	}
	var parts []Part
	for _, how := range []way{replaceFirst, beforeFirst, beforeToken} {
		var marked string
		marked, err = t.execute(r, func(s string) string { return m.mark(s, how) })
		if err != nil {
			continue
		}
		text, at := m.remove(marked)
		parts = m.cut(text, at)
		if text == prompt {
			break
		}
	}
	if parts == nil {
		return nil, err
	}
	return parts, nil
}

// execute renders the template once, with every string of the messages passed through user.
func (t *Template) execute(r Request, user func(string) string) (_ string, err error) {
	defer recoverInto(&err, t.name)
	vars, err := r.variables(t.specials, user)
	if err != nil {
		return "", err
	}
	maps.Copy(vars, (&run{started: time.Now(), now: r.Now}).functions())
	prompt, err := t.program.RenderValues(vars)
	if _, refused := errors.AsType[*RefusedError](err); err != nil && !refused {
		err = fmt.Errorf("chat template %s: %w", t.name, err)
	}
	return prompt, err
}

// A way to mark where control tokens may begin.
type way int

const (
	replaceFirst way = iota
	beforeFirst
	beforeToken
)

// marks knows the private characters of one rendering.
type marks struct {
	tokens  []string
	firsts  map[rune]rune // what a control token may begin with, in either case, and its replacement
	origins map[rune]rune // the inverse
	before  rune          // the mark that stands before a character
	used    map[rune]bool // private characters that occur in the conversation or the template
}

func newMarks(tokens []string) *marks {
	m := &marks{firsts: make(map[rune]rune), origins: make(map[rune]rune), used: make(map[rune]bool)}
	for _, token := range tokens {
		if strings.TrimSpace(token) == "" { // white space is never harmful, but everywhere
			continue
		}
		m.tokens = append(m.tokens, token)
		first, _ := utf8.DecodeRuneInString(token)
		for _, c := range []rune{first, unicode.ToLower(first), unicode.ToUpper(first)} {
			m.firsts[c] = 0
		}
	}
	return m
}

// Marks are taken from the supplementary private-use planes.
const firstMark, lastMark = 0xF0000, 0x10FFFD

func isMark(c rune) bool { return c >= firstMark && c <= lastMark }

// look notes the private characters of s, and reports whether a control token may begin in it.
func (m *marks) look(s string) bool {
	found := false
	for _, c := range s {
		if isMark(c) {
			m.used[c] = true
		}
		_, first := m.firsts[c]
		found = found || first
	}
	return found
}

// choose picks marks that do not occur anywhere.
func (m *marks) choose() error {
	next := rune(firstMark)
	free := func() rune {
		for m.used[next] || next&0xFFFE == 0xFFFE { // the last two of a plane are no characters
			next++
		}
		next++
		return next - 1
	}
	m.before = free()
	for c := range m.firsts {
		m.firsts[c] = free()
		m.origins[m.firsts[c]] = c
	}
	if next > lastMark {
		return errors.New("the conversation uses all private-use characters of Unicode, of which some are needed to render it")
	}
	return nil
}

func (m *marks) mark(s string, how way) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRuneInString(s[i:])
		replacement, first := m.firsts[c]
		switch {
		case !first || how == beforeToken && !m.begins(s[i:]):
			b.WriteString(s[i : i+n])
		case how == replaceFirst:
			b.WriteRune(replacement)
		default:
			b.WriteRune(m.before)
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// begins reports whether s begins with a control token, or is the beginning of one, in whatever case: templates may change it.
func (m *marks) begins(s string) bool {
	for _, token := range m.tokens {
		n := min(len(s), len(token))
		if strings.EqualFold(s[:n], token[:n]) {
			return true
		}
	}
	return false
}

// remove restores a text without marks, and returns the offsets that were marked, in order.
func (m *marks) remove(marked string) (string, []int) {
	var b strings.Builder
	var at []int
	for i := 0; i < len(marked); {
		c, n := utf8.DecodeRuneInString(marked[i:])
		origin, replaced := m.origins[c]
		switch {
		case c == m.before:
			at = append(at, b.Len())
		case replaced:
			at = append(at, b.Len())
			b.WriteRune(origin)
		default:
			b.WriteString(marked[i : i+n])
		}
		i += n
	}
	return b.String(), at
}

// cut makes parts of a text: the control tokens that begin at the given offsets are not special.
func (m *marks) cut(text string, at []int) []Part {
	var parts []Part
	done := 0
	for _, i := range at {
		longest := ""
		for _, token := range m.tokens {
			if len(token) > len(longest) && strings.HasPrefix(text[i:], token) {
				longest = token
			}
		}
		if i < done || longest == "" {
			continue
		}
		parts = appendPart(parts, text[done:i], true)
		parts = appendPart(parts, longest, false)
		done = i + len(longest)
	}
	return appendPart(parts, text[done:], true)
}

// appendPart adds a part, if it has text, joined to the last one if that is of the same kind.
func appendPart(parts []Part, text string, special bool) []Part {
	switch last := len(parts) - 1; {
	case text == "":
		return parts
	case last >= 0 && parts[last].Special == special:
		parts[last].Text += text
		return parts
	default:
		return append(parts, Part{Text: text, Special: special})
	}
}
