package kernels

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/fstest"
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
	if rate := ReadRateOf(t.Context(), b, 7, time.Millisecond); rate <= 0 || b[0] != 1 || b[2] != 3 {
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

// The caches of all processors count, each once.
func TestSumCaches(t *testing.T) {
	cpu := func(n int, l2, l3, shared string) fstest.MapFS {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache/", n)
		out := fstest.MapFS{
			dir + "index2/size": {Data: []byte(l2 + "\n")}, dir + "index2/shared_cpu_list": {Data: fmt.Appendf(nil, "%d\n", n)},
		}
		if l3 != "" {
			out[dir+"index3/size"], out[dir+"index3/shared_cpu_list"] = &fstest.MapFile{Data: []byte(l3 + "\n")}, &fstest.MapFile{Data: []byte(shared + "\n")}
		}
		return out
	}
	for name, tt := range map[string]struct {
		cpus []fstest.MapFS
		want int64
	}{
		"nothing told":        {nil, 0},
		"one for all":         {[]fstest.MapFS{cpu(0, "2048K", "36864K", "0-1"), cpu(1, "2048K", "36864K", "0-1")}, 36 << 20},
		"one for each group":  {[]fstest.MapFS{cpu(0, "512K", "32768K", "0,2"), cpu(1, "512K", "32768K", "1,3"), cpu(2, "512K", "32768K", "0,2")}, 64 << 20},
		"no third level":      {[]fstest.MapFS{cpu(0, "1024K", "", ""), cpu(1, "1024K", "", "")}, 2 << 20},
		"a size that is none": {[]fstest.MapFS{cpu(0, "1024K", "lots", "0")}, 0},
	} {
		all := fstest.MapFS{}
		for _, files := range tt.cpus {
			maps.Copy(all, files)
		}
		if got := sumCaches(all); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", name, got, tt.want)
		}
	}
}

// BenchmarkRead is the rate that kernels are compared with.
func BenchmarkRead(b *testing.B) {
	for range b.N {
		b.ReportMetric(ReadRate(b.Context(), runtime.GOMAXPROCS(0), 0, 200*time.Millisecond)/1e9, "GB/s")
	}
}
