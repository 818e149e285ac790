package tokenizer

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	"github.com/google/go-cmp/cmp"
)

// splitTexts exercise the corners of the patterns.
var splitTexts = []string{
	"Hello, y'all! How's it going?  It'S  we'LL  DON'T 'tis '", "  two  spaces\n\n \n  x", "\t\tif x:\r\n\r\n  y = 1234567890;\n",
	"a\u00a0b\u3000c\u2003\u2003d\u0085e", "ΑΒΓ абв 日本語テキスト 한국어 ½²Ⅷ٣٤٥", "é e\u0301 \u0301x न्ही ที่นี่", "HTTPServer fooBar FOObar ǅemal A日b日C",
	"a/b//c\n/d ...\r\n///", "$x+=<y>^`|~ \u20ac5 “q” —", "\x00\x01 \u200b\ufeff", "🚀😶‍🌫️ ✅", "don’t '\u017f 'K it'\u212a",
	"1\u00b22 3.14 12,345 \u0661\u0662", " ", "", "   ", "\n", " \n ", "x\n \n\n  ", "\u3000。「！", "'s't're've'm'll'd'S'T'RE",
}

// regexps has the regular expression of each pattern that has a matcher.
var regexps = sync.OnceValue(func() map[string]*regexp2.Regexp {
	out := map[string]*regexp2.Regexp{}
	for pattern := range matchers {
		out[pattern] = regexp2.MustCompile(pattern)
	}
	return out
})

func pieceStrings(st *splitStep, text string) []string {
	var out []string
	for _, p := range st.pieces(text) {
		out = append(out, text[p.start:p.end])
	}
	return out
}

// appliedPieces returns what the steps, which must end in a piece each, hand to the merges.
func appliedPieces(st *splitStep, text string) []string {
	var out []string
	e := &encoder{t: &Tokenizer{steps: []step{st, collect{&out}}}}
	e.run(0, text, true)
	return out
}

type collect struct{ out *[]string }

func (c collect) apply(_ *encoder, _ int, text string, _ bool) { *c.out = append(*c.out, text) }

func compareMatcher(t *testing.T, pattern, text string) {
	want := pieceStrings(&splitStep{re: regexps()[pattern]}, text)
	st := &splitStep{match: matchers[pattern]}
	if diff := cmp.Diff(want, pieceStrings(st, text)); diff != "" {
		t.Errorf("pattern %s\ntext %q (- regular expression, + matcher):\n%s", pattern, text, diff)
	}
	if diff := cmp.Diff(want, appliedPieces(st, text)); diff != "" {
		t.Errorf("pattern %s\ntext %q (- regular expression, + apply):\n%s", pattern, text, diff)
	}
}

func TestMatchers(t *testing.T) {
	for pattern := range matchers {
		for _, text := range splitTexts {
			compareMatcher(t, pattern, text)
		}
		compareMatcher(t, pattern, strings.Join(splitTexts, ""))
	}
	// Random sequences of the characters that the patterns tell apart.
	alphabet := []rune("  \t\n\r\u00a0\u3000aZsStrevmldLDé'’1٣½.,/-!$+<ǅʰ日カ한ΑяSſ\u0301न्\x00\u200b\ufffd🚀。「")
	rng := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		text := make([]rune, rng.IntN(12))
		for i := range text {
			text[i] = alphabet[rng.IntN(len(alphabet))]
		}
		for pattern := range matchers {
			compareMatcher(t, pattern, string(text))
		}
	}
}

// FuzzMatchers compares every hand-written matcher with its regular expression.
func FuzzMatchers(f *testing.F) {
	for _, text := range splitTexts {
		f.Add(text)
	}
	patterns := slices.Sorted(maps.Keys(matchers))
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			t.Skip("regular expressions are defined on characters")
		}
		for _, pattern := range patterns {
			compareMatcher(t, pattern, text)
		}
	})
}

func TestEveryPreTokenizerIsFastOrCompiles(t *testing.T) {
	for name, pre := range preTokenizers {
		for _, p := range pre.patterns {
			if _, err := newSplit(p); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, name := range []string{"gpt-2", "qwen2", "qwen35", "llama-bpe", "gpt-4o", "deepseek-llm", "deepseek-coder", "deepseek-v3", "olmo"} {
		for _, p := range preTokenizers[name].patterns {
			if matchers[p] == nil {
				t.Errorf("%s has no matcher for %s", name, p)
			}
		}
	}
}

// TestBehaviors has the example of Hugging Face's documentation.
func TestBehaviors(t *testing.T) {
	tests := []struct {
		behavior string
		invert   bool
		want     string
	}{
		{"Removed", false, "The|final|countdown"},
		{"Removed", true, "-|-|-"},
		{"Isolated", false, "The|-|final|-|-|countdown"},
		{"Isolated", true, "The|-|final|-|-|countdown"},
		{"Contiguous", false, "The|-|final|--|countdown"},
		{"MergedWithPrevious", false, "The-|final-|-|countdown"},
		{"MergedWithNext", false, "The|-final|-|-countdown"},
		{"MergedWithNext", true, "The-|final-|-|countdown"},
	}
	const text = "The-final--countdown"
	for _, tt := range tests {
		for _, st := range []*splitStep{{literal: "-"}, {re: regexp2.MustCompile("-")}, {match: func(s string, i int) int {
			if s[i] == '-' {
				return i + 1
			}
			return i
		}}} {
			st.behavior, st.invert = behaviors[tt.behavior], tt.invert
			if got := strings.Join(appliedPieces(st, text), "|"); got != tt.want {
				t.Errorf("%s, invert %v: %s, want %s", tt.behavior, tt.invert, got, tt.want)
			}
		}
	}
}

func TestCompileRewritesIntersection(t *testing.T) {
	st, err := newSplit(`[\p{Han}]+|[\p{L}&&[^\p{Han}]]+`)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(appliedPieces(st, "abc日本語def"), "|"); got != "abc|日本語|def" {
		t.Errorf("%s", got)
	}
	if _, err := newSplit(`[a-z&&[aeiou]]`); err == nil {
		t.Error("another intersection is accepted")
	}
}
