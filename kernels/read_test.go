package kernels

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// Read takes every byte, whatever the length and the alignment.
func TestRead(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	all := make([]byte, 5000)
	for i := range all {
		all[i] = byte(rng.Uint32())
	}
	eachISA(t, func(t *testing.T, s *set) {
		for _, at := range []int{0, 1, 7, 64} {
			for _, n := range []int{0, 1, 7, 8, 31, 32, 33, 511, 512, 513, 1024, 4095, 4900} {
				b := all[at : at+n]
				var want uint64
				for i := 0; i < n; i += 8 {
					var word [8]byte
					copy(word[:], b[i:])
					want ^= binary.LittleEndian.Uint64(word[:])
				}
				if got := s.read(b); got != want {
					t.Fatalf("%d bytes from %d: %x, want %x", n, at, got, want)
				}
			}
		}
	})
}

func TestReadRate(t *testing.T) {
	for _, threads := range []int{0, 1, 3} {
		start := time.Now()
		rate := ReadRate(t.Context(), threads, 4<<20, 5*time.Millisecond)
		if took := time.Since(start); rate < 1e6 || rate > 1e13 || took < 5*time.Millisecond {
			t.Errorf("%d threads: %g bytes per second, after %v", threads, rate, took)
		}
	}
	b := []byte{1, 2, 3}
	if rate := ReadRateOf(t.Context(), b, 2, time.Millisecond); rate <= 0 || b[0] != 1 || b[2] != 3 {
		t.Errorf("rate %g, memory %v", rate, b)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if rate := ReadRate(stopped, 1, 1<<20, time.Hour); rate != 0 {
		t.Errorf("%g although stopped", rate)
	}
	if n := BeyondCaches(); n < leastBeyond || n > mostBeyond {
		t.Errorf("%d bytes are beyond the caches", n)
	}
}

// BenchmarkRead is the rate that kernels are compared with.
func BenchmarkRead(b *testing.B) {
	for range b.N {
		b.ReportMetric(ReadRate(b.Context(), runtime.GOMAXPROCS(0), 0, 200*time.Millisecond)/1e9, "GB/s")
	}
}
