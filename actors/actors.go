// Package actors is the runtime of coli's actors: it spawns them, carries their messages, supervises them, records what they do and stops
// them in order. It stands on Proto.Actor, which the resource packages know nothing of: they implement Receiver. What an actor decides
// belongs to its resource's package, what actors say to each other to package messages.
//
// Proto.Actor gives the life cycle and the supervision. Three things it lacks are here. It drops the message in hand when an actor panics,
// and the queue when one stops: here every message that somebody waits for (messages.Failer) is handled or failed. Its mailbox allocates
// at each wake-up: this one does not. And it does not end what it started: Stop does, in the order of the data flow.
package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/coli-moe/coli/messages"
)

// Receiver is the code of an actor: the only code that touches its resource. Receive is called with one message at a time. The message is
// the receiver's; putting it back in its pool is the last thing done with it, since a panic fails the message in hand.
//
// A receiver that is an io.Closer is closed when the actor stops and before it is started again. Close frees what the receiver holds and
// fails the messages it has accepted and not yet answered.
type Receiver interface{ Receive(m messages.Message) }

// Policy says what follows a panic in Receive.
type Policy uint8

// The policies.
const (
	Restart Policy = iota // close the receiver, make a new one, go on with the queue
	GiveUp                // stop the actor: coli goes on without its resource
)

const (
	defaultMaxRestarts = 5
	restartWindow      = time.Minute
	maxSpin            = 100 * time.Microsecond
)

// Spec describes an actor.
type Spec struct {
	Name     string // unique in its runtime
	Resource string // what the actor owns, for messages to the user: "expert RAM"

	// New makes the receiver: by Spawn on the caller's goroutine, and again by the actor after a panic.
	New func() (Receiver, error)

	Policy      Policy
	MaxRestarts int // within a minute, then the actor is given up; 0 means 5

	OnEvent func(Event) // told instead of the runtime's; see Options

	// Spin is how long an idle actor looks for the next message before it parks; 0 parks at once, 100 µs is the most. A parked actor
	// starts about 20 µs after the Send if the sender goes on computing, a spinning one after 1.5 µs. Actors spin only while there are
	// fewer of them than processors.
	Spin time.Duration
}

// Options of a runtime. The zero value traces nothing, measures nothing and reports nothing.
type Options struct {
	Trace   bool
	Measure bool        // take the times of messages, for Stats: three looks at the clock for each
	OnEvent func(Event) // called by the actors' goroutines, one call at a time; must not block, nor stop the runtime
}

// Runtime runs actors.
type Runtime struct {
	system   *actor.ActorSystem
	onEvent  func(Event)
	eventMu  sync.Mutex
	tracer   *tracer      // nil if nothing is traced
	clock    func() int64 // nanoseconds since Start; nil if nothing is traced nor measured
	measure  bool
	procs    int
	spinners atomic.Int32

	mu      sync.Mutex
	refs    []*Ref // in the order of Declare and Spawn
	stopped bool
}

// Start makes a runtime without actors, and sets the process's timer slack (see LowTimerSlack).
func Start(opts Options) *Runtime {
	LowTimerSlack()
	r := &Runtime{
		system: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
			return slog.New(slog.DiscardHandler)
		})),
		onEvent: opts.OnEvent,
		procs:   runtime.GOMAXPROCS(0),
		measure: opts.Measure,
	}
	if opts.Trace || opts.Measure {
		began := time.Now()
		r.clock = func() int64 { return int64(time.Since(began)) }
	}
	if opts.Trace {
		r.tracer = newTracer(r.clock)
	}
	return r
}

// Ref is an actor's address. It is valid for as long as anybody holds it, also when the actor is gone.
type Ref struct {
	name string
	box  *mailbox
}

// Name returns the actor's name.
func (r *Ref) Name() string { return r.name }

// Send queues a message. It never blocks, allocates nothing unless the queue is longer than ever before, and may be called by anyone at
// any time. When the actor has stopped the message fails at once if it can (messages.Failer), with an error that wraps
// messages.ErrStopped, and is dropped otherwise.
func (r *Ref) Send(m messages.Message) {
	if r.box.now != nil {
		r.box.stamp(m.Head())
	}
	r.box.PostUserMessage(m)
}

// Stop ends this actor alone, as Runtime.Stop ends all: after what is queued. It may be called more than once.
func (r *Ref) Stop(ctx context.Context) error { return r.box.stop(ctx, r.name) }

// Dead is closed when the actor is gone for good and its queue has been failed.
func (r *Ref) Dead() <-chan struct{} { return r.box.dead }

// Err says why the actor takes no more messages; it is nil while it does.
func (r *Ref) Err() error { return r.box.refusal() }

// Declare gives the address of an actor that is spawned later, for actors that send to each other. Messages wait until then.
func (r *Runtime) Declare(name string) (*Ref, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.declare(name)
}

func (r *Runtime) declare(name string) (*Ref, error) {
	switch {
	case r.stopped:
		return nil, fmt.Errorf("actor %s: the runtime has stopped", name)
	case r.find(name) != nil:
		return nil, fmt.Errorf("actor %s: there is one of this name already", name)
	}
	ref := &Ref{name: name, box: newMailbox()}
	ref.box.now = r.clock
	if r.tracer != nil {
		ref.box.track = r.tracer.track(name)
	}
	if r.measure {
		ref.box.times = new(times)
	}
	r.refs = append(r.refs, ref)
	return ref, nil
}

func (r *Runtime) find(name string) *Ref {
	i := slices.IndexFunc(r.refs, func(ref *Ref) bool { return ref.name == name })
	if i < 0 {
		return nil
	}
	return r.refs[i]
}

// Spawn makes a receiver and starts its actor, under a declared address or a new one. The error is New's, or says that the name is taken.
func (r *Runtime) Spawn(spec Spec) (*Ref, error) {
	receiver, err := create(spec.New)
	if err != nil {
		return nil, fmt.Errorf("actor %s (%s): %w", spec.Name, spec.Resource, err)
	}
	ref, err := r.spawn(spec, receiver)
	if err != nil {
		return nil, errors.Join(err, closeReceiver(receiver))
	}
	return ref, nil
}

func (r *Runtime) spawn(spec Spec, receiver Receiver) (*Ref, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref := r.find(spec.Name)
	if ref == nil || r.stopped || ref.box.host != nil {
		var err error
		if ref, err = r.declare(spec.Name); err != nil {
			return nil, err
		}
	}
	h := &host{spec: spec, runtime: r, receiver: receiver}
	ref.box.host = h
	// The name is for Proto.Actor a number: names are unique here already, and some are its own.
	r.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return h },
		actor.WithMailbox(func() actor.Mailbox { return ref.box }),
		actor.WithDispatcher(newDispatcher(r, min(spec.Spin, maxSpin))),
		actor.WithGuardian(h)))
	return ref, nil
}

// Stop ends the actors: the given ones in the given order, which is that of the data flow (who issues before who serves), then all
// others in the order of their spawning. Each handles what is queued when its turn comes; then its receiver is closed, and what was sent
// later is failed. No goroutine of the runtime is left.
//
// When ctx ends first, the actors still running are told to stop after the message in hand and all their waiters are freed; the error
// names those that did not come back. The errors of Close are joined to it. An actor must not call Stop.
func (r *Runtime) Stop(ctx context.Context, order ...*Ref) error {
	r.mu.Lock()
	r.stopped = true
	refs := slices.Clone(order)
	for _, ref := range r.refs {
		if !slices.Contains(order, ref) {
			refs = append(refs, ref)
		}
	}
	r.mu.Unlock()
	var errs []error
	for _, ref := range refs {
		errs = append(errs, ref.box.stop(ctx, ref.name))
	}
	return errors.Join(errs...)
}

func (r *Runtime) event(spec *Spec, e Event) {
	tell := r.onEvent
	if spec.OnEvent != nil {
		tell = spec.OnEvent
	}
	if tell == nil {
		return
	}
	r.eventMu.Lock()
	defer r.eventMu.Unlock()
	tell(e)
}
