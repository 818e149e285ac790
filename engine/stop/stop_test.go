package stop

import (
	"strings"
	"testing"
)

func mustNew(t testing.TB, stops ...string) *Matcher {
	t.Helper()
	m, err := New(stops)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPush(t *testing.T) {
	for _, tc := range []struct {
		name   string
		stops  []string
		pieces string // separated by |
		emits  string // what each Push returns, then Flush
		stop   bool
	}{
		{"no stop strings", nil, "a|b", "a|b|", false},
		{"one piece", []string{"END"}, "abENDcd", "ab|", true},
		{"split over pieces", []string{"END"}, "abE|N|Dcd", "ab|||", true},
		{"text after a stop is dropped", []string{"END"}, "END|x", "||", true},
		{"held back, then not a stop", []string{"END"}, "aE|Nb", "a|ENb|", false},
		{"only what could become a stop is held", []string{"aab"}, "aaa|aab", "a|aa|", true},
		{"held back at the end", []string{"END"}, "aEN", "a|EN", false},
		{"first in the text, not in the list", []string{"yy", "x"}, "axbyy", "a|", true},
		{"the shorter of two that start together", []string{"abc", "ab"}, "zab|c", "z||", true},
		{"inside an unfinished one: it completes", []string{"bcd", "c"}, "abc|d", "a||", true},
		{"inside an unfinished one: it does not", []string{"bcd", "c"}, "abc|e", "a|b|", true},
		{"inside an unfinished one: the text ends", []string{"bcd", "c"}, "abc", "a|b", false},
		{"multi-byte", []string{"→é"}, "a→|è→|é", "a|→è||", true},
	} {
		m := mustNew(t, tc.stops...)
		var emits []string
		var stopped bool
		for piece := range strings.SplitSeq(tc.pieces, "|") {
			var emit string
			emit, stopped = m.Push(piece)
			emits = append(emits, emit)
		}
		emits = append(emits, m.Flush())
		if got := strings.Join(emits, "|"); got != tc.emits || stopped != tc.stop {
			t.Errorf("%s: got %q, stopped %v; want %q, %v", tc.name, got, stopped, tc.emits, tc.stop)
		}
		if again := m.Flush(); again != "" {
			t.Errorf("%s: a second Flush returned %q", tc.name, again)
		}
	}
}

func TestEmptyStopStringIsRefused(t *testing.T) {
	if _, err := New([]string{"a", ""}); err == nil || !strings.Contains(err.Error(), "--stop") {
		t.Errorf("error %v, want one that names --stop", err)
	}
}

// FuzzMatcher compares the matcher with a search of the whole text: the cut may not change the result, nothing of a stop string may be
// emitted at any time, and nothing may be held that cannot become one.
func FuzzMatcher(f *testing.F) {
	f.Add("abcabd", "abd", "ca", []byte{1, 2, 1})
	f.Add("aaaaab", "aab", "ab", []byte{1})
	f.Add("abcde", "bcd", "c", []byte{3, 1})
	f.Add("héllo", "é", "l", []byte{2})
	f.Fuzz(func(t *testing.T, text, stop1, stop2 string, cuts []byte) {
		m, err := New([]string{stop1, stop2})
		if err != nil {
			if stop1 != "" && stop2 != "" {
				t.Fatal(err)
			}
			return
		}
		want := text
		for _, s := range []string{stop1, stop2} {
			if i := strings.Index(text, s); i >= 0 && i < len(want) {
				want = text[:i]
			}
		}
		var got, pushed string
		for i := 0; pushed != text; i++ {
			n := 1
			if len(cuts) > 0 {
				n = int(cuts[i%len(cuts)])%8 + 1
			}
			piece := text[len(pushed):min(len(pushed)+n, len(text))]
			emit, stopped := m.Push(piece)
			pushed += piece
			got += emit
			if !strings.HasPrefix(want, got) {
				t.Fatalf("emitted %q of %q, want a prefix of %q", got, pushed, want)
			}
			if stopped {
				break
			}
			held := pushed[len(got):]
			if held != "" && !strings.HasPrefix(stop1, held) && !strings.HasPrefix(stop2, held) {
				t.Fatalf("%q is held back of %q", held, pushed)
			}
		}
		if got += m.Flush(); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}
