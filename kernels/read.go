package kernels

import (
	"context"
	"encoding/binary"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coli-moe/coli/internal/hugemem"
)

// readStep is what the assembly loads in a turn of its loop.
const readStep = 512

// Read loads every byte of b with plain vector loads, and returns the exclusive or of its little-endian 64-bit words, a last short one
// filled up with zeros. It does as little with the bytes as possible: no kernel goes through memory faster.
func Read(b []byte) uint64 { return current().read(b) }

func readGeneric(b []byte) uint64 {
	var s0, s1, s2, s3 uint64
	for ; len(b) >= 32; b = b[32:] {
		s0 ^= binary.LittleEndian.Uint64(b)
		s1 ^= binary.LittleEndian.Uint64(b[8:])
		s2 ^= binary.LittleEndian.Uint64(b[16:])
		s3 ^= binary.LittleEndian.Uint64(b[24:])
	}
	for i, v := range b {
		s0 ^= uint64(v) << (i % 8 * 8)
	}
	return s0 ^ s1 ^ s2 ^ s3
}

// Bounds of BeyondCaches. The machines with the largest caches, of 1.1 GiB for each of two processors, are below the upper one as well.
const (
	leastBeyond = 64 << 20
	mostBeyond  = 5 << 30
)

// BeyondCaches returns how many bytes memory must have for a pass over it to find next to nothing of the pass before in a cache, whatever
// part of it each thread reads: twice the last-level caches of all processors together, 64 MiB to 5 GiB.
func BeyondCaches() int64 { return min(max(2*Caches(), leastBeyond), mostBeyond) }

// Caches returns the bytes of the last-level caches of all processors, as far as the system, or else the processor, tells; 0 if neither does.
var Caches = sync.OnceValue(func() int64 { return max(systemCaches(), lastCache()) })

// sumCaches adds up the last-level caches that Linux lists in /sys, below fsys: processors that share one count once.
func sumCaches(fsys fs.FS) (bytes int64) {
	const cpus = "sys/devices/system/cpu/"
	levels, _ := fs.Glob(fsys, cpus+"cpu0/cache/index[0-9]")
	if len(levels) == 0 {
		return 0
	}
	text := func(name string) string {
		data, _ := fs.ReadFile(fsys, name)
		return strings.TrimSpace(string(data))
	}
	last, _ := fs.Glob(fsys, cpus+"cpu[0-9]*/cache/"+path.Base(slices.Max(levels)))
	seen := map[string]bool{}
	for _, dir := range last {
		shared := text(dir + "/shared_cpu_list")
		kib, ok := strings.CutSuffix(text(dir+"/size"), "K") // which the kernel writes for every size
		n, err := strconv.ParseInt(kib, 10, 32)
		if ok && err == nil && shared != "" && !seen[shared] {
			seen[shared] = true
			bytes += n << 10
		}
	}
	return bytes
}

// readChunk is what a thread reads between two looks at the clock. Assembly is not preempted: it takes tens of microseconds.
const readChunk = 1 << 20

// ReadRate measures what the processor loads from memory, in bytes per second: so many threads go through one piece each of a block of
// so many bytes (0: BeyondCaches), of huge pages where the system has them, for d. It is 0 if the memory cannot be had or ctx ends.
func ReadRate(ctx context.Context, threads int, bytes int64, d time.Duration) (bytesPerSecond float64) {
	if bytes <= 0 {
		bytes = BeyondCaches()
	}
	block, err := hugemem.Map(max(bytes, readChunk))
	if err != nil {
		return 0
	}
	defer block.Close()
	return readRate(ctx, block.Data, threads, d, func(part []byte) {
		for i := 0; i < len(part); i += 4096 {
			part[i] = 1 // pages that were never written are all one page of zeros
		}
	})
}

// ReadRateOf is ReadRate over memory of the caller's, which has been written to and is not empty.
func ReadRateOf(ctx context.Context, b []byte, threads int, d time.Duration) (bytesPerSecond float64) {
	return readRate(ctx, b, threads, d, func([]byte) {})
}

// readRate has each thread prepare its part before the clock starts.
func readRate(ctx context.Context, b []byte, threads int, d time.Duration, prepare func(part []byte)) (bytesPerSecond float64) {
	threads = min(max(threads, 1), len(b)) // each has something to read
	var ready, done sync.WaitGroup
	ready.Add(threads)
	begin := make(chan time.Time)
	rates := make([]float64, threads)
	for i := range threads {
		part := b[i*len(b)/threads : (i+1)*len(b)/threads]
		done.Go(func() {
			prepare(part)
			ready.Done()
			start := <-begin
			var bytes int64
			for {
				for rest := part; len(rest) > 0; {
					n := min(len(rest), readChunk)
					Read(rest[:n])
					rest = rest[n:]
					bytes += int64(n)
					if took := time.Since(start); took >= d || ctx.Err() != nil {
						rates[i] = float64(bytes) / took.Seconds()
						return
					}
				}
			}
		})
	}
	ready.Wait()
	start := time.Now()
	for range threads {
		begin <- start
	}
	done.Wait()
	if ctx.Err() != nil {
		return 0
	}
	for _, r := range rates {
		bytesPerSecond += r
	}
	return bytesPerSecond
}
