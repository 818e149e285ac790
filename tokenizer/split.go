package tokenizer

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// class is the set of Unicode properties that pre-tokenizers ask about.
type class uint8

const (
	upper       class = 1 << iota // Lu, Lt
	lower                         // Ll
	otherLetter                   // Lm, Lo
	mark                          // M
	number                        // N
	punct                         // P
	symbolClass                   // S
	space                         // White_Space
	letter      = upper | lower | otherLetter
)

var classTables = []struct {
	class class
	table *unicode.RangeTable
}{
	{upper, unicode.Lu},
	{upper, unicode.Lt},
	{lower, unicode.Ll},
	{otherLetter, unicode.Lm},
	{otherLetter, unicode.Lo},
	{mark, unicode.M},
	{number, unicode.N},
	{punct, unicode.P},
	{symbolClass, unicode.S},
	{space, unicode.White_Space},
}

// asciiClasses is apart from allClasses, which costs a millisecond and a megabyte and is made when the first other character comes along.
var asciiClasses = func() (t [utf8.RuneSelf]class) {
	fillClasses(t[:])
	return t
}()

var allClasses = sync.OnceValue(func() []class {
	t := make([]class, unicode.MaxRune+1)
	fillClasses(t)
	return t
})

func fillClasses(t []class) {
	for _, c := range classTables {
		for _, r := range c.table.R16 {
			for x := int(r.Lo); x <= int(r.Hi) && x < len(t); x += int(r.Stride) {
				t[x] |= c.class
			}
		}
		for _, r := range c.table.R32 {
			for x := int(r.Lo); x <= int(r.Hi) && x < len(t); x += int(r.Stride) {
				t[x] |= c.class
			}
		}
	}
}

func classOf(r rune) class {
	if uint32(r) < utf8.RuneSelf {
		return asciiClasses[r]
	}
	return allClasses()[r]
}

// classAt returns the class and width of the character at s[i], both 0 at the end. An invalid byte is a character of no class.
func classAt(s string, i int) (class, int) {
	if i >= len(s) {
		return 0, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return asciiClasses[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	if r == utf8.RuneError && n == 1 {
		return 0, 1
	}
	return allClasses()[r], n
}

// run returns the end of the longest run, from s[i] on, of characters in any of the classes.
func run(s string, i int, in class) int {
	for {
		c, n := classAt(s, i)
		if c&in == 0 {
			return i
		}
		i += n
	}
}

// runOther returns the end of the longest run of characters in none of the classes.
func runOther(s string, i int, not class) int {
	for {
		c, n := classAt(s, i)
		if n == 0 || c&not != 0 {
			return i
		}
		i += n
	}
}

func runNewlines(s string, i int) int {
	for i < len(s) && (s[i] == '\r' || s[i] == '\n') {
		i++
	}
	return i
}

// matcher returns where the match of a pattern that begins at s[i] ends, or i if none does. i < len(s).
type matcher func(s string, i int) int

// The patterns that vocabularies use, as tokenizer.json spells them after canonical. Each has a hand-written matcher, some ten times
// faster than the regular expression; FuzzMatchers compares the two.
const (
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`

	patternGPT2    = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternWords   = `[^\r\n\p{L}\p{N}]?\p{L}+|`
	patternRest    = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternLlama3  = contractions + `|` + patternWords + `\p{N}{1,3}` + patternRest
	patternQwen2   = contractions + `|` + patternWords + `\p{N}` + patternRest
	patternMiniCPM = contractions + `|` + patternWords + `\p{N}+` + patternRest
	patternQwen35  = contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	patternO200k = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` + contractions + `?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` + contractions + `?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	patternDeepSeek3 = `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|` +
		` ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	patternNewline = `[\r\n]`
	patternDigit   = `\p{N}`
	patternDigits3 = `\p{N}{1,3}`
	patternNumber  = `\p{N}+`
	patternTail    = `\s+$`
	patternLetters = `\s?\p{L}+`
	patternPuncts  = `\s?\p{P}+`
	patternCJK     = "[" + classCJK + "]+"
	patternKana    = "[" + classKana + "]+"
	patternCased   = `\s?[` + classCased + `]+`
	patternMarks   = `\s?[` + classMarks + `]+`
)

// Character classes of DeepSeek's pre-tokenizers.
const (
	classCJK   = "\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF"
	classKana  = "\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF"
	classMarks = "!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002"
	classCased = "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376\u0377" +
		"\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5" +
		"\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D" +
		"\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4" +
		"\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D" +
		"\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4" +
		"\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06" +
		"\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2" +
		"\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943"
)

// matchers has the hand-written matcher of each known pattern.
var matchers = map[string]matcher{
	patternGPT2:      matchGPT2,
	patternLlama3:    cl100k{digits: 3, letters: letter, contract: true}.match,
	patternQwen2:     cl100k{digits: 1, letters: letter, contract: true}.match,
	patternMiniCPM:   cl100k{digits: 1 << 30, letters: letter, contract: true}.match,
	patternQwen35:    cl100k{digits: 1, letters: letter | mark, contract: true}.match,
	patternO200k:     matchO200k,
	patternDeepSeek3: matchDeepSeek3,
	patternNewline: func(s string, i int) int {
		if s[i] == '\r' || s[i] == '\n' {
			return i + 1
		}
		return i
	},
	patternDigit:   func(s string, i int) int { return digits(s, i, 1) },
	patternDigits3: func(s string, i int) int { return digits(s, i, 3) },
	patternNumber:  func(s string, i int) int { return run(s, i, number) },
	patternTail:    matchTail,
	patternLetters: func(s string, i int) int { return afterSpace(s, i, letter) },
	patternPuncts:  func(s string, i int) int { return afterSpace(s, i, punct) },
	patternCJK:     newRuneSet(classCJK).match,
	patternKana:    newRuneSet(classKana).match,
	patternCased:   newRuneSet(classCased).matchAfterSpace,
	patternMarks:   newRuneSet(classMarks).matchAfterSpace,
}

// canonical spells a pattern as the table does: escaped line breaks, and one of the ways to write contractions in any case.
func canonical(pattern string) string {
	return strings.NewReplacer("\r", `\r`, "\n", `\n`,
		`(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`, contractions).Replace(pattern)
}

// contraction returns the end of 's, 't, 'm, 'd, 're, 've or 'll at s[i], or i. fold is 0x20 to ignore the case and 0 to heed it.
func contraction(s string, i int, fold byte) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return i
	}
	a := s[i+1] | fold
	switch {
	case a == 's', a == 't', a == 'm', a == 'd':
		return i + 2
	case fold != 0 && strings.HasPrefix(s[i+1:], "ſ"): // U+017F, the long s
		return i + 1 + len("ſ")
	}
	if i+2 < len(s) {
		switch b := s[i+2] | fold; {
		case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
			return i + 3
		}
	}
	return i
}

// digits returns the end of at most limit numbers.
func digits(s string, i, limit int) int {
	for range limit {
		c, n := classAt(s, i)
		if c&number == 0 {
			break
		}
		i += n
	}
	return i
}

// spaces matches \s+(?!\S)|\s+: white space without its last character, which goes with the word that follows, unless none does or it is
// the only one. With newlines set, \s*[\r\n]+ is tried before.
func spaces(s string, i int, newlines bool) int {
	end, last, newline := i, i, i
	for {
		c, n := classAt(s, end)
		if c&space == 0 {
			break
		}
		last = end
		end += n
		if s[last] == '\r' || s[last] == '\n' {
			newline = end
		}
	}
	switch {
	case newlines && newline > i:
		return newline
	case end < len(s) && last > i:
		return last
	}
	return end
}

func matchGPT2(s string, i int) int {
	if end := contraction(s, i, 0); end > i {
		return end
	}
	p := i
	if s[p] == ' ' {
		p++
	}
	switch c, n := classAt(s, p); {
	case n == 0:
		return p
	case c&letter != 0:
		return run(s, p, letter)
	case c&number != 0:
		return run(s, p, number)
	case c&space == 0:
		return runOther(s, p, space|letter|number)
	}
	return spaces(s, i, false)
}

// cl100k is the family of patterns that began with OpenAI's encoding of that name.
type cl100k struct {
	digits   int   // how many numbers make a piece
	letters  class // what words consist of
	contract bool  // English contractions are pieces
}

func (m cl100k) match(s string, i int) int {
	if m.contract {
		if end := contraction(s, i, 0x20); end > i {
			return end
		}
	}
	c, n := classAt(s, i)
	newline := s[i] == '\r' || s[i] == '\n'
	if c&(letter|number) == 0 && !newline {
		if end := run(s, i+n, m.letters); end > i+n {
			return end
		}
	}
	switch {
	case c&m.letters != 0:
		return run(s, i, m.letters)
	case c&number != 0:
		return digits(s, i, m.digits)
	}
	if end := afterBlank(s, i, m.letters); end > i {
		return runNewlines(s, end)
	}
	return spaces(s, i, true)
}

// afterBlank matches ` ?[^\s\p{N}…]+`, where … is letters.
func afterBlank(s string, i int, letters class) int {
	p := i
	if s[p] == ' ' {
		p++
	}
	if end := runOther(s, p, space|number|letters); end > p {
		return end
	}
	return i
}

func matchO200k(s string, i int) int {
	c, n := classAt(s, i)
	optional := c&(letter|number) == 0 && s[i] != '\r' && s[i] != '\n'
	for _, lowercase := range []bool{true, false} {
		if optional {
			if end := caseRun(s, i+n, lowercase); end > i+n {
				return contraction(s, end, 0x20)
			}
		}
		if end := caseRun(s, i, lowercase); end > i {
			return contraction(s, end, 0x20)
		}
	}
	if c&number != 0 {
		return digits(s, i, 3)
	}
	if end := afterBlank(s, i, letter); end > i {
		for end < len(s) && (s[end] == '\r' || s[end] == '\n' || s[end] == '/') {
			end++
		}
		return end
	}
	return spaces(s, i, true)
}

// caseRun matches U*L+ if lowercase is set, else U+L*, where U are upper-case letters and L lower-case ones, and letters without a case and
// marks are both.
func caseRun(s string, i int, lowercase bool) int {
	const either = otherLetter | mark
	end, afterEither := i, i
	for {
		c, n := classAt(s, end)
		if c&(upper|either) == 0 {
			break
		}
		end += n
		if c&either != 0 {
			afterEither = end
		}
	}
	switch tail := run(s, end, lower|either); {
	case tail > end && (lowercase || end > i):
		return tail
	case lowercase: // U* gives back up to its last character that is also an L
		return afterEither
	}
	return end
}

func matchDeepSeek3(s string, i int) int {
	c, n := classAt(s, i)
	if s[i] < utf8.RuneSelf && c&(punct|symbolClass) != 0 {
		end := i + 1
		for end < len(s) && s[end]|0x20 >= 'a' && s[end]|0x20 <= 'z' {
			end++
		}
		if end > i+1 {
			return end
		}
	}
	if c&(letter|punct|symbolClass) == 0 && s[i] != '\r' && s[i] != '\n' {
		if end := run(s, i+n, letter|mark); end > i+n {
			return end
		}
	}
	if c&(letter|mark) != 0 {
		return run(s, i, letter|mark)
	}
	p := i
	if s[p] == ' ' {
		p++
	}
	if end := run(s, p, punct|symbolClass); end > p {
		return runNewlines(s, end)
	}
	if c&space != 0 {
		return spaces(s, i, true)
	}
	return i
}

// matchTail matches \s+$ at the first character of the text's last white space. Elsewhere in a run of white space it need not look: had the
// run reached the end, its first character would have matched.
func matchTail(s string, i int) int {
	if r, n := utf8.DecodeLastRuneInString(s[:i]); n > 0 && isSpace(r) {
		return i
	}
	if end := run(s, i, space); end == len(s) {
		return end
	}
	return i
}

// afterSpace matches \s?[in]+, where no white space is in the class.
func afterSpace(s string, i int, in class) int {
	c, n := classAt(s, i)
	if c&space == 0 {
		return run(s, i, in)
	}
	if end := run(s, i+n, in); end > i+n {
		return end
	}
	return i
}

// runeSet is the contents of a regular expression's character class, ranges and single characters.
type runeSet struct {
	text  string
	table func() *unicode.RangeTable
}

func newRuneSet(text string) runeSet {
	return runeSet{text, sync.OnceValue(func() *unicode.RangeTable {
		t := new(unicode.RangeTable)
		rs := []rune(text)
		for i := 0; i < len(rs); i++ {
			lo := rs[i]
			if i+2 < len(rs) && rs[i+1] == '-' {
				i += 2
			}
			t.R32 = append(t.R32, unicode.Range32{Lo: uint32(lo), Hi: uint32(rs[i]), Stride: 1})
		}
		return t
	})}
}

func (m runeSet) match(s string, i int) int {
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError || !m.has(r) {
			break
		}
		i += n
	}
	return i
}

// has is a linear scan because a class's ranges need not be sorted, and the common ones come first.
func (m runeSet) has(r rune) bool {
	for _, x := range m.table().R32 {
		if uint32(r) >= x.Lo && uint32(r) <= x.Hi {
			return true
		}
	}
	return false
}

// matchAfterSpace matches \s?[class]+, where white space may be in the class.
func (m runeSet) matchAfterSpace(s string, i int) int {
	if c, n := classAt(s, i); c&space != 0 {
		if end := m.match(s, i+n); end > i+n {
			return end
		}
	}
	return m.match(s, i)
}
