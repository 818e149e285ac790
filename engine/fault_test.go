//go:build linux

package engine

import (
	"os"
	"strings"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
)

// TestTruncatedWhileMapped: a file that somebody truncates while it is in use ends the step with an error, not the process.
func TestTruncatedWhileMapped(t *testing.T) {
	for _, threads := range []int{1, 2} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(sharedtest.Testdata("oracles", "olmoe"))); err != nil {
			t.Fatal(err)
		}
		m := load(t, dir, Options{Threads: threads})
		s := session(t, m, 0)
		if _, err := s.Forward(t.Context(), prompt(5)); err != nil {
			t.Fatal(err)
		}
		for _, f := range m.Checkpoint.Files() {
			if err := os.Truncate(f, 4096); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Forward(t.Context(), prompt(9)); err == nil || !strings.Contains(err.Error(), "truncated") {
			t.Errorf("%d threads: error %v, want one about a truncated file", threads, err)
		}
		if n := len(s.Tokens()); n != 5 {
			t.Errorf("the session holds %d tokens, want the 5 of the step that succeeded", n)
		}
	}
}
