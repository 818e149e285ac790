package actors

import (
	"time"

	"github.com/coli-moe/coli/internal/loghist"
	"github.com/coli-moe/coli/messages"
)

// ActorStats are an actor's figures since it was declared.
type ActorStats struct {
	Name     string
	Resource string // "" as long as the actor is only declared
	Length   int    // messages in the queue now, the one in hand not among them
	Handled  uint64 // messages taken off the queue, the one in hand among them
	Failed   uint64 // of these, ended by a panic; and those that a stopped actor failed unread
	Restarts uint64
	Dead     bool // the actor is gone for good

	Wait   loghist.Hist // from Send to the receiver; empty unless Options.Measure is set
	Handle loghist.Hist // in the receiver; likewise
}

// times are what an actor's messages took.
type times struct{ wait, handle loghist.Atomic }

// begin counts how long a message has waited that is handled from now on. What the runtime itself sends an actor does not count: begin is
// false then, as it is without times.
func (t *times) begin(m any, now int64) bool {
	msg, ok := m.(messages.Message)
	if !ok || t == nil {
		return false
	}
	t.wait.Add(time.Duration(now - msg.Head().Enqueued))
	return true
}

// Stats returns the figures of all actors there have been, in the order of Declare and Spawn. Any goroutine may call it at any time: it
// waits for no message to be handled, and works on a runtime that has stopped.
func (r *Runtime) Stats() []ActorStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]ActorStats, len(r.refs))
	for i, ref := range r.refs {
		all[i].Name = ref.name
		if h := ref.box.host; h != nil {
			all[i].Resource, all[i].Restarts = h.spec.Resource, h.restarts.Load()
		}
		ref.box.stats(&all[i])
	}
	return all
}

// stats fills in what the mailbox knows; the counts last, so that they are never behind the times.
func (b *mailbox) stats(s *ActorStats) {
	if b.times != nil {
		s.Wait, s.Handle = b.times.wait.Load(), b.times.handle.Load()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Length, s.Handled, s.Failed, s.Dead = b.user.n, b.handled, b.failed, b.finished
}
