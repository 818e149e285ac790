package chat

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds on a template's source. The largest in use have some 30 KB. Nesting is bounded because the engine's parser recurses, and a stack
// that overflows cannot be recovered from; numbers because 'x' * 9999999999 is a string.
const (
	maxSource  = 256 << 10
	maxNesting = 200
	maxDigits  = 7
)

// The names of the functions that rewrite adds calls of; they are implemented by a run.
const (
	reserved   = "__coli_"
	fnOutput   = reserved + "output"
	fnKeep     = reserved + "keep"
	fnStep     = reserved + "step"
	fnCall     = reserved + "call"
	fnToJSON   = reserved + "tojson"
	noMutation = "a template that changes a list or dictionary in place (%s) is refused, as by Hugging Face's sandbox"
)

// rewrite translates a template into one that the engine renders as jinja2 would with Hugging Face's settings, and that cannot run for ever:
//
//   - White space around tags is trimmed here, by the rules of jinja2's lexer (trim_blocks, lstrip_blocks, and the signs - and +). The engine
//     also trims, but it reaches over an expression to the text behind it. So text is passed on as a string expression, which it leaves alone.
//   - String literals are decoded by Python's rules.
//   - Every loop iteration, macro call, assignment and output calls back (see run), which counts and bounds them.
//   - The filter tojson is replaced: the engine's sorts keys when it indents.
//
// Line breaks are kept, so that the engine's errors name the right lines.
func rewrite(source string) (string, error) {
	if len(source) > maxSource {
		return "", fmt.Errorf("%d bytes, more than the %d that a template may have", len(source), maxSource)
	}
	if strings.Contains(source, reserved) {
		return "", fmt.Errorf("it uses the reserved prefix %s", reserved)
	}
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	r := &rewriter{src: strings.TrimSuffix(source, "\n"), lineStart: true}
	if err := r.template(); err != nil {
		return "", fmt.Errorf("line %d: %w", 1+strings.Count(r.src[:r.pos], "\n"), err)
	}
	return r.out.String(), nil
}

type rewriter struct {
	src       string
	pos       int
	out       strings.Builder
	counted   int      // how far line breaks of the source were counted
	missing   int      // line breaks up to there that were not written
	lineStart bool     // the last tag's end took a line break with it, or there was none yet
	setBlocks []string // the variables of the {% set x %} blocks that are open
}

var endRaw = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*([-+]?)%\}`)

func (r *rewriter) template() error {
	for {
		open := r.nextTag()
		if open < 0 {
			r.text(r.src[r.pos:])
			return nil
		}
		text, kind := r.src[r.pos:open], r.src[open+1]
		r.pos = open + 2
		r.text(r.trimBefore(text, kind, r.sign()))
		r.pad(open)
		start := r.pos
		switch kind {
		case '#':
			length := strings.Index(r.src[start:], "#}")
			if length < 0 {
				return errors.New("a comment is not closed")
			}
			r.pos = start + length
			if length > 0 && strings.IndexByte("-+", r.src[r.pos-1]) >= 0 {
				r.pos--
			}
			r.closeTag('#')
		case '{':
			expression, err := r.expression('}')
			if err != nil {
				return err
			}
			r.closeTag('{')
			r.write("{{ " + fnOutput + "((" + expression + ")) }}")
		case '%':
			content, err := r.expression('%')
			if err != nil {
				return err
			}
			if strings.TrimSpace(content) == "raw" {
				if err := r.raw(); err != nil {
					return err
				}
				continue
			}
			r.closeTag('%')
			r.statement(content)
		}
	}
}

// nextTag returns where the next tag opens, or -1.
func (r *rewriter) nextTag() int {
	for i := r.pos; i+1 < len(r.src); i++ {
		if r.src[i] == '{' && strings.IndexByte("{%#", r.src[i+1]) >= 0 {
			return i
		}
	}
	return -1
}

// sign reads a - or + at the position, 0 if there is none.
func (r *rewriter) sign() byte {
	if r.pos < len(r.src) && strings.IndexByte("-+", r.src[r.pos]) >= 0 {
		r.pos++
		return r.src[r.pos-1]
	}
	return 0
}

// trimBefore trims the text before a tag: all white space for the sign -; for blocks and comments without a sign, the indentation of a line
// that has nothing else before the tag.
func (r *rewriter) trimBefore(text string, kind, sign byte) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, unicode.IsSpace)
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if kind != '{' && sign == 0 && (line > 0 || r.lineStart) && strings.TrimSpace(text[line:]) == "" {
		return text[:line]
	}
	return text
}

// closeTag steps over the end of a tag, its sign, and the white space that goes with it: all for the sign -, else one line break after a
// block or comment without a sign.
func (r *rewriter) closeTag(kind byte) {
	sign := r.sign()
	r.pos += 2
	r.trimAfter(kind, sign)
}

func (r *rewriter) trimAfter(kind, sign byte) {
	rest := r.src[r.pos:]
	switch {
	case sign == '-':
		r.pos += len(rest) - len(strings.TrimLeftFunc(rest, unicode.IsSpace))
	case sign == 0 && kind != '{' && strings.HasPrefix(rest, "\n"):
		r.pos++
	}
	r.lineStart = r.src[r.pos-1] == '\n'
}

// raw passes on the text between {% raw %} and {% endraw %}.
func (r *rewriter) raw() error {
	r.closeTag('{') // unlike other blocks, it leaves a line break
	m := endRaw.FindStringSubmatchIndex(r.src[r.pos:])
	if m == nil {
		return errors.New("a raw block is not closed")
	}
	text := r.src[r.pos : r.pos+m[0]]
	signAt := func(group int) byte {
		if m[group] == m[group+1] {
			return 0
		}
		return r.src[r.pos+m[group]]
	}
	before, after := signAt(2), signAt(4)
	r.text(r.trimBefore(text, '%', before))
	r.pos += m[1]
	r.trimAfter('%', after)
	return nil
}

// statement writes a block tag, with the calls that bound what it does.
func (r *rewriter) statement(content string) {
	content = strings.TrimSpace(content)
	rest := strings.TrimLeftFunc(content, unicode.IsLetter)
	keyword := content[:len(content)-len(rest)]
	target, value, assigns := strings.Cut(rest, "=")
	target = strings.TrimSpace(target)
	switch {
	case keyword == "set" && assigns:
		namespace, _, isMember := strings.Cut(target, ".")
		if isMember {
			value = "(" + value + "), " + namespace
		} else {
			value = "(" + value + ")"
		}
		r.write("{% set " + target + " = " + fnKeep + "(" + value + ") %}")
	case keyword == "set":
		r.setBlocks = append(r.setBlocks, target)
		r.write("{% " + content + " %}")
	case keyword == "endset" && len(r.setBlocks) > 0:
		last := len(r.setBlocks) - 1
		target, r.setBlocks = r.setBlocks[last], r.setBlocks[:last]
		r.write("{% endset %}{% set " + target + " = " + fnKeep + "(" + target + ") %}")
	case keyword == "for":
		r.write("{% " + content + " %}{{ " + fnStep + "() }}")
	case keyword == "macro":
		r.write("{% " + content + " %}{{ " + fnCall + "() }}")
	default:
		r.write("{% " + content + " %}")
	}
}

// expression copies the inside of a tag up to its end, which begins with the given byte and is not consumed, nor is its sign.
func (r *rewriter) expression(end byte) (string, error) {
	var b strings.Builder
	var brackets []byte
	afterDot, afterPipe := false, false
	for r.pos < len(r.src) {
		rest := r.src[r.pos:]
		c := rest[0]
		if len(brackets) == 0 && len(rest) >= 2 {
			closing := rest
			if c == '-' || c == '+' {
				closing = rest[1:]
			}
			if len(closing) >= 2 && closing[0] == end && closing[1] == '}' {
				return b.String(), nil
			}
		}
		wasDot, wasPipe := afterDot, afterPipe
		if c != ' ' && c != '\n' && c != '\t' {
			afterDot, afterPipe = c == '.', c == '|'
		}
		switch {
		case c == '\'' || c == '"':
			text, length, err := unquote(rest)
			if err != nil {
				return "", err
			}
			b.WriteString(quote(text))
			r.pos += length
		case isNameByte(c):
			length := 1
			for length < len(rest) && isNameByte(rest[length]) {
				length++
			}
			word := rest[:length]
			called := strings.HasPrefix(strings.TrimSpace(rest[length:]), "(")
			switch {
			case wasPipe && word == "tojson":
				word = fnToJSON
			case wasDot && called && slices.Contains([]string{"append", "insert", "update"}, word):
				return "", fmt.Errorf(noMutation, word)
			case !wasDot && length > maxDigits && strings.Trim(word, "0123456789") == "":
				return "", fmt.Errorf("the number %.20s is too large for a template", word)
			}
			b.WriteString(word)
			r.pos += length
		default:
			switch c {
			case '(', '[', '{':
				brackets = append(brackets, c)
			case ')', ']', '}':
				if len(brackets) == 0 || brackets[len(brackets)-1] != opening[c] {
					return "", fmt.Errorf("unexpected %c", c)
				}
				brackets = brackets[:len(brackets)-1]
			}
			if len(brackets) > maxNesting {
				return "", fmt.Errorf("brackets are nested deeper than %d", maxNesting)
			}
			b.WriteByte(c)
			if c == '}' || c == '%' {
				b.WriteByte(' ') // the engine would take two of them for the end of the tag
			}
			r.pos++
		}
	}
	return "", errors.New("a tag is not closed")
}

var opening = map[byte]byte{')': '(', ']': '[', '}': '{'}

func isNameByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// text writes literal text as an expression.
func (r *rewriter) text(s string) {
	if s != "" {
		r.write("{{ " + quote(s) + " }}")
	}
}

// pad writes the line breaks that trimming, comments and so on have lost before a position in the source.
func (r *rewriter) pad(pos int) {
	r.missing += strings.Count(r.src[r.counted:pos], "\n")
	r.counted = pos
	if r.missing > 0 {
		r.write("{#" + strings.Repeat("\n", r.missing) + "#}")
	}
}

func (r *rewriter) write(s string) {
	r.out.WriteString(s)
	r.missing -= strings.Count(s, "\n")
}

// quote writes a string literal that the engine reads back as s.
func quote(s string) string {
	return "'" + quoter.Replace(s) + "'"
}

var quoter = strings.NewReplacer(`\`, `\\`, `'`, `\'`)

// unquote reads the Python string literal at the start of s and returns its value and length.
func unquote(s string) (string, int, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == s[0]:
			return b.String(), i + 1, nil
		case s[i] != '\\' || i+1 == len(s):
			b.WriteByte(s[i])
		default:
			i++
			digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
			if digits > 0 && i+digits < len(s) {
				if n, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32); err == nil && n <= utf8.MaxRune {
					b.WriteRune(rune(n))
					i += digits
					continue
				}
			}
			if escaped, known := escapes[s[i]]; known {
				b.WriteString(escaped)
			} else {
				b.WriteString(s[i-1 : i+1])
			}
		}
	}
	return "", 0, errors.New("a string is not closed")
}

var escapes = map[byte]string{
	'n': "\n", 't': "\t", 'r': "\r", '\\': `\`, '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v", '0': "\x00", '\n': "",
}
