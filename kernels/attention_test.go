package kernels

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Tiles of queries give each query the bits that it gets alone, whatever the sizes, and touch nothing else.
func TestAttentionTiles(t *testing.T) {
	eachISA(t, func(t *testing.T, s *set) {
		rng := rand.New(rand.NewPCG(4, 9))
		for _, size := range []int{1, 5, 8, 16, 33, 64, 80, 96, 128, 192, 256, 300} {
			for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 33, 64} {
				stride, ld := size+rng.IntN(20), n+rng.IntN(9)
				q, k := randomFloats(rng, Queries*size), randomFloats(rng, (n-1)*stride+size)
				dst, check := guarded(rng, (Queries-1)*ld+n)
				before := slices.Clone(dst)
				s.dotTile(dst, ld, q, k, size, stride, n)
				check(t)
				alone := make([]float32, n)
				for i := range Queries {
					s.dotRows(alone, q[i*size:][:size], k, stride, n)
					if got := dst[i*ld:][:n]; !slices.Equal(got, alone) {
						t.Fatalf("size %d, %d keys: query %d of a tile gets %g, alone %g", size, n, i, got, alone)
					}
					if end := min((i+1)*ld, len(dst)); !slices.Equal(dst[i*ld+n:max(end, i*ld+n)], before[i*ld+n:max(end, i*ld+n)]) {
						t.Fatalf("size %d, %d keys: writes behind the scores of query %d", size, n, i)
					}
				}
				acc, check := guarded(rng, Queries*size)
				before = slices.Clone(acc)
				s.axpyTile(acc, dst, ld, k, size, stride, n)
				check(t)
				for i := range Queries {
					alone := before[i*size:][:size]
					s.axpyRows(alone, dst[i*ld:][:n], k, stride, n)
					if got := acc[i*size:][:size]; !slices.Equal(got, alone) {
						t.Fatalf("size %d, %d keys: query %d of a tile gets %g, alone %g", size, n, i, got, alone)
					}
				}
			}
		}
	})
}
