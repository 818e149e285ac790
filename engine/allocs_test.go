package engine

import (
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
)

// TestWarmStepAllocatesNothing: a step finds all the memory that it needs where the step before left it.
func TestWarmStepAllocatesNothing(t *testing.T) {
	const held = 40
	for _, name := range []string{"olmoe", "qwen3_moe"} {
		for _, threads := range []int{1, 3} {
			m := load(t, sharedtest.Testdata("oracles", name), Options{Threads: threads})
			for _, rows := range []int{1, 3} {
				s, ids := session(t, m, 0), prompt(held+rows)
				forward := func(ids []int32) {
					if _, err := s.Forward(t.Context(), ids); err != nil {
						t.Fatal(err)
					}
				}
				step := func() {
					s.Truncate(held)
					forward(ids[held:])
				}
				forward(ids[:held])
				for range 10 {
					step()
				}
				if n := testing.AllocsPerRun(100, step); n != 0 {
					t.Errorf("%s: a step of %d rows on %d threads allocates %v times", name, rows, threads, n)
				}
			}
		}
	}
}
