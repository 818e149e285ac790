package actors

import (
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/coli-moe/coli/messages"
)

// ringSize is about how many of its newest records a track keeps: 2 MiB, some 250 tokens of a model of 40 layers. A power of two.
const ringSize = 1 << 15

// ownFlow marks flow numbers that the mailbox gave to messages without one; the senders' own (a step's ID) are below.
const ownFlow = 1 << 63

// tracer holds the tracks of a runtime and the names in their records.
type tracer struct {
	now   func() int64
	flows atomic.Uint64
	size  int // of the rings to come

	mu     sync.Mutex
	tracks []*Track
	names  []string // by the number that records carry
	number map[string]uint64
}

func newTracer(now func() int64) *tracer {
	return &tracer{now: now, size: ringSize, number: map[string]uint64{}}
}

func (t *tracer) track(name string, args ...string) *Track {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := &Track{tracer: t, name: name, args: args, ring: newRing(t.size), names: map[string]uint64{}, types: map[reflect.Type]uint64{}}
	t.tracks = append(t.tracks, k)
	return k
}

func (t *tracer) intern(name string) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.number[name]
	if !ok {
		n = uint64(len(t.names))
		t.names = append(t.names, name)
		t.number[name] = n
	}
	return n
}

// Track is a line of the timeline: an actor's, or one made by Runtime.Track for anything else that takes turns (the engine's steps, a
// reader thread). A nil Track records nothing, so that its user need not ask whether there is a trace.
type Track struct {
	tracer *tracer
	name   string
	args   []string // names of Span's arguments
	ring   *ring

	// Numbers of names, known to the one writer.
	names map[string]uint64
	types map[reflect.Type]uint64
}

// Track makes a track beside those of the actors; args name the arguments of its spans, four at most. It is nil if nothing is traced.
func (r *Runtime) Track(name string, args ...string) *Track {
	if r.tracer == nil {
		return nil
	}
	return r.tracer.track(name, args[:min(len(args), maxArgs)]...)
}

// Now is the time on the trace's clock, in nanoseconds; 0 if nothing is traced.
func (t *Track) Now() int64 {
	if t == nil {
		return 0
	}
	return t.tracer.now()
}

// Span records that something lasted from start to end, which are Now's. Spans, messages and tracks with the same flow, unless it is 0,
// are joined by arrows in the order of their starts; a message carries the flow in its header. The args are those that Track named.
// Spans of one track may enclose each other but not overlap. Span allocates nothing once it knows the name, and may be called by one
// goroutine at a time.
func (t *Track) Span(name string, start, end int64, flow uint64, args [4]int64) {
	if t == nil {
		return
	}
	n, ok := t.names[name]
	if !ok {
		n = t.tracer.intern(name)
		t.names[name] = n
	}
	t.ring.put(record{kind: kindSpan, name: n, start: start, end: end, flow: flow, args: args})
}

// join gives a message a flow of its own if it has none. Called by senders.
func (t *Track) join(h *messages.Header) {
	if h.Flow == 0 {
		h.Flow = ownFlow | t.tracer.flows.Add(1)
	}
}

// message is what is known of a message before it is handled.
type message struct {
	record
	panicked bool
}

const (
	argEnqueued = iota // of kindMessage's arguments: when it was enqueued
	argQueue           // and how many were behind it when it was handled
)

func (t *Track) open(m any, queued int, start int64) message {
	typ := reflect.TypeOf(m)
	n, ok := t.types[typ]
	if !ok {
		n = t.tracer.intern(messageName(m))
		t.types[typ] = n
	}
	span := message{record: record{kind: kindOther, name: n, start: start}}
	if msg, ok := m.(messages.Message); ok {
		h := msg.Head()
		span.kind, span.flow = kindMessage, h.Flow
		span.args[argEnqueued], span.args[argQueue] = h.Enqueued, int64(queued)
	}
	return span
}

func (t *Track) close(m message, end int64) {
	m.end = end
	if m.panicked {
		m.kind = kindPanic
	}
	t.ring.put(m.record)
}

// Kinds of records.
const (
	kindSpan    = iota // of Runtime.Track
	kindMessage        // handled by an actor
	kindPanic          // the same, ended by a panic
	kindOther          // what the runtime itself sends an actor
)

const maxArgs = 4

type record struct {
	kind, name uint64
	start, end int64
	flow       uint64
	args       [maxArgs]int64
}

// ring holds the newest records of one writer. Any number of goroutines may read while it writes.
type ring struct {
	head  atomic.Uint64 // records written so far
	slots []slot
}

type slot [8]atomic.Uint64

func newRing(size int) *ring { return &ring{slots: make([]slot, size)} }

func (r *ring) put(e record) {
	h := r.head.Load()
	s := &r.slots[h&uint64(len(r.slots)-1)]
	s[0].Store(e.kind<<32 | e.name)
	s[1].Store(uint64(e.start))
	s[2].Store(uint64(e.end))
	s[3].Store(e.flow)
	for i, a := range e.args {
		s[4+i].Store(uint64(a))
	}
	r.head.Store(h + 1)
}

// records returns what the ring holds, oldest first, and how many records are lost because newer ones took their place. Of a full ring
// the oldest record counts as lost: the writer may be at it.
func (r *ring) records() (all []record, lost uint64) {
	size, head := uint64(len(r.slots)), r.head.Load()
	first := head - min(head, size)
	for i := first; i < head; i++ {
		s := &r.slots[i&(size-1)]
		e := record{kind: s[0].Load() >> 32, name: s[0].Load() & (1<<32 - 1), start: int64(s[1].Load()), end: int64(s[2].Load()), flow: s[3].Load()}
		for k := range e.args {
			e.args[k] = int64(s[4+k].Load())
		}
		if r.head.Load() >= i+size {
			continue
		}
		all = append(all, e)
	}
	return all, head - uint64(len(all))
}
