package kernels

import (
	"context"
	"encoding/binary"
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

// Bounds of BeyondCaches.
const (
	leastBeyond = 64 << 20
	mostBeyond  = 1 << 30
)

// BeyondCaches returns how many bytes memory must have for a pass over it to find next to nothing of the pass before in a cache: twice the
// last-level cache, 64 MiB to 1 GiB.
func BeyondCaches() int64 { return min(max(2*lastCache(), leastBeyond), mostBeyond) }

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

// ReadRateOf is ReadRate over memory of the caller's, which has been written to and has at least a byte per thread.
func ReadRateOf(ctx context.Context, b []byte, threads int, d time.Duration) (bytesPerSecond float64) {
	return readRate(ctx, b, threads, d, func([]byte) {})
}

// readRate has each thread prepare its part before the clock starts.
func readRate(ctx context.Context, b []byte, threads int, d time.Duration, prepare func(part []byte)) (bytesPerSecond float64) {
	threads = max(threads, 1)
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
