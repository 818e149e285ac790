package cpu

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// spinFor is how long a worker watches for jobs after its last range before it parks. Between two ops of a decode step lie a few
// microseconds; a woken goroutine starts tens of microseconds late. Jobs that others finish without it do not prolong that: of a large team
// and small ops, only those stay awake whom the ops have work for.
const spinFor = 60 * time.Microsecond

// spinYield is how many looks a waiting goroutine takes before it offers its processor to another one.
const spinYield = 512

// Team is a fixed set of workers that split index ranges by a claim counter. The goroutine that calls Run works too. One goroutine at
// a time calls Run; Close ends the workers.
//
// A job is over when its ranges are, whoever computed them: nobody waits for a worker that comes too late for one. So an op that is
// smaller than the team does not pay for the team's size.
type Team struct {
	size int

	// The job, written by Run. Only a goroutine that holds a range reads it: until that is done the job cannot change.
	n, grain, ranges int
	fn               func(worker, from, to int)

	_    [cacheLine]byte
	todo atomic.Uint64 // the job's number in the upper half, ranges that nobody has claimed in the lower
	_    [cacheLine]byte
	left atomic.Int64 // ranges that are not done
	_    [cacheLine]byte
	jobs atomic.Uint64 // number of the current job; idle workers watch it
	_    [cacheLine]byte

	closed atomic.Bool
	mu     sync.Mutex
	wake   *sync.Cond
	parked atomic.Int32
	done   sync.WaitGroup
	panics atomic.Pointer[any]
}

// cacheLine keeps what is written by many away from what is watched; processors fetch lines in pairs.
const cacheLine = 128

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
		t.jobs.Add(1)
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
	t.ranges = (n + grain - 1) / grain
	t.left.Store(int64(t.ranges))
	job := t.jobs.Load() + 1
	t.todo.Store(job<<32 | uint64(uint32(t.ranges)))
	t.jobs.Store(job)
	t.help()
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

// help wakes a parked worker if there is more to claim than those awake will claim at once. The worker does the same: so waking all of a
// large team does not keep the caller from its own share.
func (t *Team) help() {
	parked := int(t.parked.Load())
	if parked > 0 && int(uint32(t.todo.Load())) > t.size-parked {
		t.mu.Lock()
		t.wake.Signal()
		t.mu.Unlock()
	}
}

// claim works on ranges until none is left, those of the next job too if it comes that fast, and says whether it got any. A panic is kept
// for Run, and the ranges that nobody has claimed are dropped.
func (t *Team) claim(worker int) (worked bool) {
	defer func() {
		if p := recover(); p != nil {
			kept := p // whose address is taken: each claim would allocate p otherwise
			t.panics.CompareAndSwap(nil, &kept)
			t.left.Add(-1 - t.drop())
		}
	}()
	for {
		todo := t.todo.Load()
		unclaimed := int(uint32(todo))
		if unclaimed == 0 {
			return worked
		}
		if t.todo.CompareAndSwap(todo, todo-1) {
			worked = true
			from := (t.ranges - unclaimed) * t.grain
			t.fn(worker, from, min(from+t.grain, t.n))
			t.left.Add(-1)
		}
	}
}

// drop claims all ranges that are left, of the job that the caller holds a range of, and returns how many they were.
func (t *Team) drop() int64 {
	for {
		todo := t.todo.Load()
		unclaimed := uint64(uint32(todo))
		if t.todo.CompareAndSwap(todo, todo-unclaimed) {
			return int64(unclaimed)
		}
	}
}

func (t *Team) work(worker int) {
	debug.SetPanicOnFault(true) // reading a mapped file that was truncated is a panic, which claim carries to the caller
	var seen uint64
	since := time.Now() // of the last range, or of waking up
	for {
		job, came := t.watch(seen, since)
		if !came {
			job = t.park(seen)
			since = time.Now()
		}
		if seen = job; t.closed.Load() {
			return
		}
		if t.claim(worker) {
			since = time.Now()
		}
	}
}

// watch spins until a job after seen comes, and returns its number, or spinFor has passed since a time.
func (t *Team) watch(seen uint64, since time.Time) (job uint64, came bool) {
	for spin := 0; ; spin++ {
		if job := t.jobs.Load(); job != seen {
			return job, true
		}
		if spin%spinYield == 0 {
			if time.Since(since) > spinFor {
				return 0, false
			}
			if spin > 0 {
				runtime.Gosched()
			}
		}
	}
}

// park sleeps until help is needed with a job after seen, and returns its number. No wake-up is lost: either Run sees that the worker has
// parked, or the worker, which looks after it has said so, sees the job.
func (t *Team) park(seen uint64) uint64 {
	t.mu.Lock()
	t.parked.Add(1)
	for t.jobs.Load() == seen || uint32(t.todo.Load()) == 0 && !t.closed.Load() {
		t.wake.Wait()
	}
	t.parked.Add(-1)
	t.mu.Unlock()
	t.help()
	return t.jobs.Load()
}
