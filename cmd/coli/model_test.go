package main

import (
	"strings"
	"testing"
	"time"
)

func TestProgressIsShownWhenItTakesLong(t *testing.T) {
	for _, c := range []struct {
		name string
		each time.Duration // what a tenth of the load takes
		want bool
	}{
		{"quick", patience / 11, false},
		{"slow", patience, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			var now time.Time
			show := progress(&out, func() time.Time { return now })
			for i := range int64(10) {
				now = now.Add(c.each)
				show((i+1)<<20, 10<<20)
			}
			if got := strings.Contains(out.String(), "loading"); got != c.want {
				t.Errorf("the terminal has %q", out.String())
			}
			if at := strings.LastIndex(out.String(), "\r"); c.want && strings.TrimSpace(out.String()[at:]) != "" {
				t.Errorf("%q is left on the line", out.String()[at:])
			}
		})
	}
}
