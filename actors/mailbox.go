package actors

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/coli-moe/coli/messages"
)

// mailbox is an actor's queue, and the loop that hands its messages to the actor one at a time. It implements actor.Mailbox. A user
// message that was accepted is handled or failed.
type mailbox struct {
	host  *host        // set before the actor starts; nil while it is only declared
	now   func() int64 // nil if nothing is traced nor measured
	track *Track       // nil if nothing is traced
	times *times       // nil if nothing is measured
	dead  chan struct{}

	invoker    actor.MessageInvoker
	dispatcher *dispatcher
	run        func() // b.process, bound once: a method value at each wake-up would allocate

	mu        sync.Mutex
	user      fifo
	system    []any
	started   bool
	scheduled bool  // process runs, or the dispatcher has been told to run it
	refuse    error // what user messages fail with, once it is set
	finished  bool  // dead is closed
	handled   uint64
	failed    uint64
}

func newMailbox() *mailbox {
	b := &mailbox{dead: make(chan struct{})}
	b.run = b.process
	return b
}

// RegisterHandlers implements actor.Mailbox.
func (b *mailbox) RegisterHandlers(i actor.MessageInvoker, d actor.Dispatcher) {
	b.invoker, b.dispatcher = i, d.(*dispatcher)
}

// Start implements actor.Mailbox.
func (b *mailbox) Start() {
	b.mu.Lock()
	b.started = true
	b.wake()
}

// UserMessageCount implements actor.Mailbox.
func (b *mailbox) UserMessageCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.user.n
}

// PostUserMessage implements actor.Mailbox.
func (b *mailbox) PostUserMessage(m any) {
	b.mu.Lock()
	if err := b.refuse; err != nil {
		b.lose(m)
		b.mu.Unlock()
		fail(m, err)
		return
	}
	b.user.push(m)
	b.wake()
}

// stamp marks a message as enqueued now. Called by senders.
func (b *mailbox) stamp(h *messages.Header) {
	h.Enqueued = b.now()
	if b.track != nil {
		b.track.join(h)
	}
}

// PostSystemMessage implements actor.Mailbox. System messages overtake the queue.
func (b *mailbox) PostSystemMessage(m any) {
	b.mu.Lock()
	b.system = append(b.system, m)
	b.wake()
}

// wake sees to it that process runs, and unlocks.
func (b *mailbox) wake() {
	start := b.started && !b.scheduled
	b.scheduled = b.scheduled || start
	b.mu.Unlock()
	if start {
		b.dispatcher.Schedule(b.run)
	}
}

// process handles messages until there are none. The dispatcher calls it; b.scheduled keeps it from running twice at once.
func (b *mailbox) process() {
	for i := 1; ; i++ {
		if i%b.dispatcher.Throughput() == 0 {
			runtime.Gosched()
		}
		m, system, queued := b.next()
		switch {
		case m == nil:
			return
		case system:
			b.invoker.InvokeSystemMessage(m)
			if b.host.stopped {
				b.finish()
				return // scheduled stays set: nothing is ever handled again
			}
		default:
			b.handle(m, queued)
		}
	}
}

// next takes a message off the queue, with the number of those behind it; without one the mailbox goes idle and m is nil.
func (b *mailbox) next() (m any, system bool, queued int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.system) > 0 {
		m := b.system[0]
		b.system = append(b.system[:0], b.system[1:]...)
		switch m.(type) {
		case *actor.SuspendMailbox, *actor.ResumeMailbox: // they frame a failure; the supervisor has decided before it is back here
		default:
			return m, true, 0
		}
	}
	if b.user.n == 0 {
		b.scheduled = false
		return nil, false, 0
	}
	if m = b.user.pop(); m != any(poison) {
		b.handled++ // here, where the lock is held: counting costs nothing
	}
	return m, false, b.user.n
}

// lose counts a message that is going to be failed without being handled; mu is held.
func (b *mailbox) lose(m any) {
	if m != any(poison) {
		b.failed++
	}
}

// handle lets the actor receive a user message. A panic fails the message and goes to the supervisor.
func (b *mailbox) handle(m any, queued int) {
	var span message
	var start int64
	times := b.times
	if b.now != nil { // before the receiver puts the message back in its pool
		start = b.now()
		if b.track != nil {
			span = b.track.open(m, queued, start)
		}
		if !times.begin(m, start) {
			times = nil
		}
	}
	defer func() {
		if v := recover(); v != nil {
			failure := panicked(&b.host.spec, v, m)
			b.mu.Lock()
			b.failed++
			b.mu.Unlock()
			fail(m, failure)
			b.invoker.EscalateFailure(failure, m)
			span.panicked = true
		}
		if b.now != nil {
			end := b.now()
			if times != nil {
				times.handle.Add(time.Duration(end - start))
			}
			if b.track != nil {
				b.track.close(span, end)
			}
		}
	}()
	b.invoker.InvokeUserMessage(m)
}

// finish ends the mailbox of an actor that has stopped.
func (b *mailbox) finish() {
	h := b.host
	err := fmt.Errorf("actor %s (%s): %w", h.spec.Name, h.spec.Resource, messages.ErrStopped)
	if h.failure != nil {
		err = fmt.Errorf("%w: %w", messages.ErrStopped, h.failure)
	}
	b.release(err)
	b.dispatcher.close()
}

// release fails the queue and everything sent from now on, and frees whoever waits for the actor. Only the first call's error counts.
func (b *mailbox) release(err error) {
	b.mu.Lock()
	if b.refuse == nil {
		b.refuse = err
	}
	err = b.refuse
	for b.user.n > 0 {
		m := b.user.pop()
		b.lose(m)
		b.mu.Unlock()
		fail(m, err)
		b.mu.Lock()
	}
	first := !b.finished
	b.finished = true
	b.mu.Unlock()
	if first {
		close(b.dead)
	}
}

func (b *mailbox) refusal() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refuse
}

// grace is what an idle actor gets to stop in when there is no time left.
const grace = 50 * time.Millisecond

var (
	poison  = &actor.PoisonPill{}
	stopNow = &actor.Stop{}
)

// stop lets the actor handle its queue and stop, and waits for it until ctx ends. It posts to the mailbox and not by the actor's id: the
// library turns what is sent to a stopped actor's id into dead letters, and keeps a goroutine for a second to count them.
func (b *mailbox) stop(ctx context.Context, name string) error {
	if b.host == nil { // declared only
		b.release(fmt.Errorf("actor %s was never started: %w", name, messages.ErrStopped))
		return nil
	}
	b.PostUserMessage(poison)
	select {
	case <-b.dispatcher.exited:
	case <-ctx.Done():
		b.release(fmt.Errorf("actor %s (%s) did not come to an end: %w", name, b.host.spec.Resource, messages.ErrStopped))
		b.PostSystemMessage(stopNow)
		select {
		case <-b.dispatcher.exited: // it had nothing in hand
		case <-time.After(grace):
			return fmt.Errorf("actor %s (%s) is still busy with a message: %w", name, b.host.spec.Resource, context.Cause(ctx))
		}
	}
	if err := b.host.closeErr; err != nil {
		return fmt.Errorf("actor %s (%s): closing: %w", name, b.host.spec.Resource, err)
	}
	return nil
}

// fifo is a growing ring.
type fifo struct {
	ring    []any // its length is a power of two
	head, n int
}

func (q *fifo) push(m any) {
	if q.n == len(q.ring) {
		ring := make([]any, max(16, 2*q.n))
		copy(ring[copy(ring, q.ring[q.head:]):], q.ring[:q.head])
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = m
	q.n++
}

func (q *fifo) pop() any {
	m := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return m
}
