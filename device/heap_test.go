package device

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestHeapAgainstAMap runs the sub-allocator beside a map of who owns which unit of which block.
func TestHeapAgainstAMap(t *testing.T) {
	const steps, blockUnits = 20_000, 48
	type live struct {
		b      *block
		off, n int64
		id     int32
	}
	for seed := range uint64(2) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var h heap
		owner := map[*block][]int32{} // 0 is free
		var all []live
		id := int32(0)
		for step := range steps {
			fail := func(format string, args ...any) {
				t.Fatalf("seed %d, step %d: %s", seed, step, fmt.Sprintf(format, args...))
			}
			// Phases of growing and of shrinking.
			if wantMore := rng.IntN(10) < 3+4*(step/500%2); wantMore || len(all) == 0 {
				n := 1 + rng.Int64N(1+rng.Int64N(blockUnits))
				best := int64(1 << 62) // the smallest gap that is large enough
				for _, units := range owner {
					run := int64(0)
					for _, u := range append(slices.Clone(units), -1) {
						if u == 0 {
							run++
							continue
						}
						if run >= n {
							best = min(best, run)
						}
						run = 0
					}
				}
				b, off := h.take(n * alignment)
				if b == nil {
					if best < 1<<62 {
						fail("no room for %d, though there is a gap of %d", n, best)
					}
					b = &block{size: max(n, blockUnits) * alignment}
					owner[b] = make([]int32, b.size/alignment)
					h.add(b)
					best = b.size / alignment
					if b, off = h.take(n * alignment); b == nil {
						fail("no room for %d in a fresh block", n)
					}
				}
				off /= alignment
				units := owner[b]
				id++
				for i := off; i < off+n; i++ {
					if units[i] != 0 {
						fail("unit %d is %d's already", i, units[i])
					}
					units[i] = id
				}
				gap := n
				for i := off - 1; i >= 0 && units[i] == 0; i-- {
					gap++
				}
				for i := off + n; i < int64(len(units)) && units[i] == 0; i++ {
					gap++
				}
				if gap != best {
					fail("%d were taken of a gap of %d, there is one of %d", n, gap, best)
				}
				all = append(all, live{b, off, n, id})
				continue
			}
			i := rng.IntN(len(all))
			x := all[i]
			all = slices.Delete(all, i, i+1)
			units := owner[x.b]
			for u := x.off; u < x.off+x.n; u++ {
				if units[u] != x.id {
					fail("unit %d of %d is %d's", u, x.id, units[u])
				}
				units[u] = 0
			}
			empty := h.give(x.b, x.off*alignment, x.n*alignment)
			if want := !slices.ContainsFunc(units, func(u int32) bool { return u != 0 }); empty != want {
				fail("the block is empty: %v, want %v", empty, want)
			}
			for i := 1; i < len(x.b.free); i++ {
				if a, b := x.b.free[i-1], x.b.free[i]; a.off+a.size >= b.off {
					fail("free ranges %v and %v are not apart", a, b)
				}
			}
			if empty {
				h.remove(x.b)
				delete(owner, x.b)
			}
		}
		if len(owner) != len(h.blocks) {
			t.Errorf("seed %d: %d blocks, want %d", seed, len(h.blocks), len(owner))
		}
	}
}
