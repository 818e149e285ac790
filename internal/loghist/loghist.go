// Package loghist has histograms of durations in powers of two: cheap enough for every message and every read, and the same that an eBPF
// program fills. A quantile is exact to the bucket, a factor of two; who needs better keeps samples (package bench).
package loghist

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets is how many a histogram has. Bucket i counts durations d with 2^i <= d < 2^(i+1) nanoseconds, bucket 0 what is shorter too, the
// last (from 0.6 hours on) what is longer too.
const Buckets = 42

// Hist is a histogram at a moment.
type Hist struct {
	Count   uint64          `json:"count"`
	Sum     uint64          `json:"sum_ns"` // nanoseconds
	Buckets [Buckets]uint64 `json:"buckets"`
}

// Bucket is the number of the bucket that counts a duration of ns nanoseconds; negative ones count as 0.
func Bucket(ns int64) int {
	if ns <= 1 {
		return 0
	}
	return min(bits.Len64(uint64(ns))-1, Buckets-1)
}

// Upper is the end of bucket i: what it counts is shorter.
func Upper(i int) time.Duration { return 1 << (i + 1) }

// Add counts a duration.
func (h *Hist) Add(d time.Duration) {
	h.Count++
	h.Sum += uint64(max(d, 0))
	h.Buckets[Bucket(int64(d))]++
}

// Merge adds what o counts.
func (h *Hist) Merge(o *Hist) {
	h.Count += o.Count
	h.Sum += o.Sum
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
}

// Since returns what was counted after begin, an earlier state of the same histogram.
func (h Hist) Since(begin Hist) Hist {
	h.Count -= begin.Count
	h.Sum -= begin.Sum
	for i, n := range begin.Buckets {
		h.Buckets[i] -= n
	}
	return h
}

// Mean is 0 for an empty histogram.
func (h *Hist) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return time.Duration(h.Sum / h.Count)
}

// Quantile returns the duration that a share q (0 to 1) of those counted do not exceed, interpolated linearly within its bucket; 0 for an
// empty histogram.
func (h *Hist) Quantile(q float64) time.Duration {
	var total uint64 // and not Count: a histogram that was read while it was written to may differ
	for _, n := range h.Buckets {
		total += n
	}
	if total == 0 {
		return 0
	}
	rank := min(max(q, 0), 1) * float64(total)
	var below uint64
	for i, n := range h.Buckets {
		if n > 0 && float64(below+n) >= rank {
			low := float64(uint64(1) << i)
			if i == 0 {
				low = 0
			}
			return time.Duration(low + (float64(Upper(i))-low)*max(rank-float64(below), 0)/float64(n))
		}
		below += n
	}
	return Upper(Buckets - 1)
}

// Atomic is a histogram that any number of goroutines add to. The zero value is empty.
type Atomic struct {
	sum     atomic.Uint64
	buckets [Buckets]atomic.Uint64
}

// Add counts a duration; it does not allocate.
func (a *Atomic) Add(d time.Duration) {
	a.sum.Add(uint64(max(d, 0)))
	a.buckets[Bucket(int64(d))].Add(1)
}

// Load returns the state; what is added meanwhile may be in one field and not in another.
func (a *Atomic) Load() (h Hist) {
	h.Sum = a.sum.Load()
	for i := range a.buckets {
		h.Buckets[i] = a.buckets[i].Load()
		h.Count += h.Buckets[i]
	}
	return h
}
