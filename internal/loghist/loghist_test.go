package loghist

import (
	"sync"
	"testing"
	"time"
)

func TestBucketHoldsItsRange(t *testing.T) {
	for _, c := range []struct {
		ns   int64
		want int
	}{{-5, 0}, {0, 0}, {1, 0}, {2, 1}, {3, 1}, {4, 2}, {1023, 9}, {1024, 10}, {1 << 41, 41}, {1 << 62, 41}} {
		if got := Bucket(c.ns); got != c.want {
			t.Errorf("Bucket(%d) = %d, want %d", c.ns, got, c.want)
		}
	}
	for i := range Buckets - 1 {
		if below, at := Bucket(int64(Upper(i))-1), Bucket(int64(Upper(i))); below != i || at != i+1 {
			t.Errorf("bucket %d ends at %v: %v before, %v at it", i, Upper(i), below, at)
		}
	}
}

func TestQuantile(t *testing.T) {
	var h Hist
	if got := h.Quantile(0.5); got != 0 {
		t.Errorf("empty: %v", got)
	}
	for range 90 {
		h.Add(100 * time.Nanosecond) // bucket of 64 to 128
	}
	for range 10 {
		h.Add(3 * time.Microsecond) // 2048 to 4096
	}
	for _, c := range []struct {
		q        float64
		low, top time.Duration
	}{{0, 64, 64}, {0.5, 64, 128}, {0.9, 128, 128}, {0.95, 2048, 4096}, {1, 4096, 4096}, {7, 4096, 4096}} {
		if got := h.Quantile(c.q); got < c.low || got > c.top {
			t.Errorf("quantile %v = %d, want %d to %d", c.q, got, c.low, c.top)
		}
	}
	if got := h.Mean(); got != 390 {
		t.Errorf("mean %v, want 390ns", got)
	}
}

func TestSinceAndMerge(t *testing.T) {
	var a Hist
	a.Add(time.Millisecond)
	begin := a
	a.Add(time.Second)
	d := a.Since(begin)
	if d.Count != 1 || d.Sum != uint64(time.Second) || d.Buckets[Bucket(int64(time.Second))] != 1 || d.Buckets[Bucket(int64(time.Millisecond))] != 0 {
		t.Errorf("since: %+v", d)
	}
	d.Merge(&begin)
	if d != a {
		t.Errorf("begin and since make %+v, want %+v", d, a)
	}
}

func TestAtomicCountsEverything(t *testing.T) {
	var a Atomic
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 1000 {
				a.Add(time.Duration(i))
			}
		})
	}
	all.Wait()
	if h := a.Load(); h.Count != 4000 || h.Sum != 4*999*1000/2 {
		t.Errorf("count %d, sum %d", h.Count, h.Sum)
	}
	if n := testing.AllocsPerRun(100, func() { a.Add(5) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
