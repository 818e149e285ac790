package tokenizer

import (
	"strings"

	"github.com/dlclark/regexp2/v2"
	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites a stretch of text before it is cut into pieces.
type normalizer func(string) string

// form returns the normalizer of a Unicode normalization form. Most text is normalized already and is returned as it is.
func form(f norm.Form) normalizer {
	return func(s string) string {
		if f.IsNormalString(s) {
			return s
		}
		return f.String(s)
	}
}

func prepend(prefix string) normalizer {
	return func(s string) string {
		if s == "" {
			return s
		}
		return prefix + s
	}
}

func replace(from, to string) normalizer {
	if from == "" {
		return func(s string) string { return s }
	}
	return func(s string) string { return strings.ReplaceAll(s, from, to) }
}

func replacePattern(re *regexp2.Regexp, to string) normalizer {
	return func(s string) string {
		// An error can only be a timeout, and none is set.
		out, _ := re.ReplaceFunc(s, func(regexp2.Match) string { return to }, -1, -1)
		return out
	}
}

func strip(left, right bool) normalizer {
	return func(s string) string {
		if left {
			s = strings.TrimLeftFunc(s, isSpace)
		}
		if right {
			s = strings.TrimRightFunc(s, isSpace)
		}
		return s
	}
}
