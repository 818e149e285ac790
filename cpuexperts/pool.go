package cpuexperts

import (
	"context"
	"fmt"
	"io"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/ants/v2"

	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/ops"
)

// Pool is the actor of the CPU experts: it takes the experts whose bytes have landed and has them computed, by its own goroutines and by
// the engine's, which waits for the step and works meanwhile.
type Pool struct {
	workers *ants.PoolWithFuncGeneric[*Work]
	width   int           // goroutines beside the engine's
	active  atomic.Int32  // goroutines at work
	idle    chan struct{} // receives when active returns to 0

	mu   sync.Mutex
	work *Work // the step under way; nil between steps
}

// NewPool returns a pool for the given number of threads, the engine's included.
func NewPool(threads int) (*Pool, error) {
	p := &Pool{width: max(threads-1, 0), idle: make(chan struct{}, 1)}
	if p.width == 0 {
		return p, nil
	}
	var err error
	// Non-blocking: when all goroutines are at work, they find what has been added, and so does the engine's.
	p.workers, err = ants.NewPoolWithFuncGeneric(p.width, p.help, ants.WithPreAlloc(true), ants.WithDisablePurge(true),
		ants.WithNonblocking(true), ants.WithLogger(log.New(io.Discard, "", 0)))
	if err != nil {
		return nil, fmt.Errorf("starting the pool of CPU experts: %w", err)
	}
	return p, nil
}

// Close ends the goroutines.
func (p *Pool) Close() error {
	if p.workers == nil {
		return nil
	}
	return p.workers.ReleaseTimeout(5 * time.Second)
}

// Open makes w the step under way; every run is to be computed by Compute messages, by the engine, or both. tier is told of each expert
// that has been computed.
func (p *Pool) Open(w *Work, tier messages.Address) {
	if cap(w.ready) < len(w.runs) {
		w.ready = make(chan landed, max(len(w.runs), 64))
	}
	if w.done == nil {
		w.done = make(chan struct{}, 1)
	}
	w.err.Store(nil)
	w.left.Store(int32(len(w.runs)))
	w.tier = tier
	p.mu.Lock()
	p.work = w
	p.mu.Unlock()
}

// Receive takes a Compute. What belongs to a step that is over is dropped.
func (p *Pool) Receive(m messages.Message) {
	c, ok := m.(*messages.Compute)
	if !ok {
		panic(fmt.Sprintf("cpuexperts: unexpected message %T", m))
	}
	defer messages.Computes.Put(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.work
	if w == nil || &w.Step != c.Step {
		return
	}
	if c.Err != nil {
		w.fail(c.Err)
		return
	}
	w.ready <- landed{c.Use, c.Data}
	if p.workers != nil && p.active.Load() < int32(p.width) {
		p.active.Add(1)
		if err := p.workers.Invoke(w); err != nil {
			p.leave()
		}
	}
}

// help computes landed experts until there is none.
func (p *Pool) help(w *Work) {
	defer p.leave()
	for {
		select {
		case l := <-w.ready:
			w.take(l)
		default:
			return
		}
	}
}

func (p *Pool) leave() {
	if p.active.Add(-1) == 0 {
		select {
		case p.idle <- struct{}{}:
		default:
		}
	}
}

// take computes a landed expert. A panic, in the engine's goroutine or the pool's, is the step's error.
func (w *Work) take(l landed) {
	defer func() {
		if r := recover(); r != nil {
			w.fail(fmt.Errorf("computing expert %d of layer %d panicked: %v", w.Expert(int(l.run)), w.Step.Layer, r))
		}
	}()
	w.Attach(int(l.run), l.data)
	w.one(l.run)
	w.computed(l.run)
}

// computed tells the tier, then counts: so the engine's Finish comes after every Computed of its step.
func (w *Work) computed(i int32) {
	c := messages.Computeds.Get()
	c.Step, c.Key = w.Step.ID, messages.Key{Layer: w.Step.Layer, Expert: w.Step.Uses[i].Expert}
	w.tier.Send(c)
	if w.left.Add(-1) == 0 {
		w.signal()
	}
}

func (w *Work) fail(err error) {
	w.err.CompareAndSwap(nil, &err)
	w.signal()
}

func (w *Work) signal() {
	select {
	case w.done <- struct{}{}:
	default:
	}
}

// Hits computes the runs whose bytes were in memory when the step was issued, with all threads of the team.
func (w *Work) Hits(team Splitter, runs []int32) {
	w.Tiled(team, runs)
	for _, i := range runs {
		w.computed(i)
	}
}

// Land computes experts as their bytes land, in the calling goroutine beside the pool's, until the step is complete. It returns the time
// spent waiting with nothing to compute, and the step's error: of a read, of a computation, ctx's, or ErrStopped when dead is closed.
func (w *Work) Land(ctx context.Context, dead <-chan struct{}) (waited time.Duration, err error) {
	defer w.Clock.Enter(w.Clock.Enter(ops.PartLanded))
	for {
		if e := w.err.Load(); e != nil {
			return waited, *e
		}
		if w.left.Load() == 0 {
			return waited, nil
		}
		select { // work before waiting, so that the clock is read only when there is nothing to do
		case l := <-w.ready:
			w.take(l)
			continue
		default:
		}
		w.Clock.Enter(ops.PartWaiting)
		start := time.Now()
		select {
		case l := <-w.ready:
			waited += time.Since(start)
			w.Clock.Enter(ops.PartLanded)
			w.take(l)
		case <-w.done:
			waited += time.Since(start)
			w.Clock.Enter(ops.PartLanded)
		case <-ctx.Done():
			return waited, ctx.Err()
		case <-dead:
			return waited, messages.ErrStopped
		}
	}
}

// End ends the pool's part in w. It returns once no goroutine of the pool reads or writes w's memory. A Work whose step failed is not
// to be used again: messages about it may still be under way.
func (p *Pool) End(w *Work) {
	p.mu.Lock()
	p.work = nil
	p.mu.Unlock()
	for p.active.Load() > 0 {
		select { // what has landed is not to be computed any more, or has been
		case <-w.ready:
		case <-p.idle:
		}
	}
	select { // a signal that nobody waited for
	case <-w.done:
	default:
	}
}
