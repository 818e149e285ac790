package cpu

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// spinFor is how long an idle worker watches for the next piece of work before it parks. Between two ops of a decode step lie a few
// microseconds; a woken goroutine starts tens of microseconds late.
const spinFor = 60 * time.Microsecond

// spinYield is how many looks a waiting goroutine takes before it offers its processor to another one.
const spinYield = 512

// Team is a fixed set of workers that split index ranges by a claim counter. The goroutine that calls Run works too. One goroutine at
// a time calls Run; Close ends the workers.
type Team struct {
	size   int
	gen    atomic.Uint64 // number of the current job; workers watch it
	next   atomic.Int64  // first unclaimed index
	left   atomic.Int64  // workers that have not finished the job
	n      int
	grain  int
	fn     func(worker, from, to int)
	closed atomic.Bool

	mu     sync.Mutex
	wake   *sync.Cond
	parked atomic.Int32
	done   sync.WaitGroup
	panics atomic.Pointer[any]
}

// NewTeam returns a team of size workers, the caller of Run included.
func NewTeam(size int) *Team {
	t := &Team{size: max(size, 1)}
	t.wake = sync.NewCond(&t.mu)
	for w := 1; w < t.size; w++ {
		t.done.Go(func() { t.work(w) })
	}
	return t
}

// Size is the number of workers.
func (t *Team) Size() int { return t.size }

// Close ends the workers and waits for them. The team must be idle.
func (t *Team) Close() {
	if !t.closed.Swap(true) {
		t.gen.Add(1)
	}
	t.mu.Lock()
	t.wake.Broadcast()
	t.mu.Unlock()
	t.done.Wait()
}

// Run calls fn on disjoint ranges that cover [0, n), each of at most grain indices (the last may be shorter), from up to Size
// goroutines; worker numbers them from 0. A panic in fn is raised again in the caller once all have stopped.
func (t *Team) Run(n, grain int, fn func(worker, from, to int)) {
	if n <= 0 {
		return
	}
	grain = max(grain, 1)
	if t.size == 1 || n <= grain {
		fn(0, 0, n)
		return
	}
	t.n, t.grain, t.fn = n, grain, fn
	t.next.Store(0)
	t.left.Store(int64(t.size - 1))
	t.gen.Add(1)
	if t.parked.Load() > 0 {
		t.mu.Lock()
		t.wake.Broadcast()
		t.mu.Unlock()
	}
	t.claim(0)
	for spin := 0; t.left.Load() > 0; spin++ {
		if spin > spinYield {
			runtime.Gosched() // with more workers than processors the last one needs ours
		}
	}
	t.fn = nil
	if p := t.panics.Swap(nil); p != nil {
		panic(*p)
	}
}

// claim works on ranges until none is left. A panic is kept for Run, and the ranges not yet claimed are dropped.
func (t *Team) claim(worker int) {
	defer func() {
		if p := recover(); p != nil {
			kept := p // whose address is taken: each claim would allocate p otherwise
			t.panics.CompareAndSwap(nil, &kept)
			t.next.Store(int64(t.n))
		}
	}()
	for {
		to := t.next.Add(int64(t.grain))
		from := int(to) - t.grain
		if from >= t.n {
			return
		}
		t.fn(worker, from, min(int(to), t.n))
	}
}

func (t *Team) work(worker int) {
	debug.SetPanicOnFault(true) // reading a mapped file that was truncated is a panic, which claim carries to the caller
	var seen uint64
	for {
		seen = t.await(seen)
		if t.closed.Load() {
			return
		}
		t.claim(worker)
		t.left.Add(-1)
	}
}

// await returns the number of the next job after seen: it spins for a bounded time, then parks.
func (t *Team) await(seen uint64) uint64 {
	start := time.Now()
	for spin := 1; ; spin++ {
		if g := t.gen.Load(); g != seen {
			return g
		}
		if spin%spinYield == 0 {
			if time.Since(start) > spinFor {
				break
			}
			runtime.Gosched()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.parked.Add(1)
	defer t.parked.Add(-1)
	for t.gen.Load() == seen {
		t.wake.Wait()
	}
	return t.gen.Load()
}
