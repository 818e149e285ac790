package engine

import (
	"fmt"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
)

// TestWarmStepAllocatesNothing: a step finds all the memory that it needs where the step before left it, also if its experts are read from
// disk, by actors. What the balancer allocates when it decides is no step's.
func TestWarmStepAllocatesNothing(t *testing.T) {
	const held = 40
	for _, name := range []string{"olmoe", "qwen3_moe"} {
		for _, opt := range []Options{{Threads: 1}, {Threads: 3}, {Threads: 2, RAM: 256 << 10, Deterministic: true}} {
			m := load(t, sharedtest.Testdata("oracles", name), opt)
			if streams := m.system.Streams(); streams != (opt.RAM > 0) {
				t.Fatalf("%s with %d bytes: experts stream: %v", name, opt.RAM, streams)
			}
			for _, rows := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/%d threads/%d bytes/%d rows", name, opt.Threads, opt.RAM, rows), func(t *testing.T) {
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
					for range 50 {
						step()
					}
					if n := testing.AllocsPerRun(100, step); n != 0 && !checked {
						t.Errorf("a step allocates %v times", n)
					}
				})
			}
		}
	}
}
