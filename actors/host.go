package actors

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/coli-moe/coli/messages"
)

// host is the actor that Proto.Actor sees, and its supervisor. It outlives its receivers. Everything here runs on the actor's goroutine:
// Proto.Actor calls a guardian's strategy where the failure was recovered.
type host struct {
	spec     Spec
	runtime  *Runtime
	receiver Receiver // nil between two lives
	failure  *Failure // of the last life, until the next has begun
	closeErr error    // of the last Close
	stopped  bool
	restarts atomic.Uint64
}

// Receive implements actor.Actor.
func (h *host) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case messages.Message:
		h.receiver.Receive(m)
	case *actor.Restarting:
		h.close()
	case *actor.Started:
		if h.receiver == nil && !h.rebuild() {
			c.Stop(c.Self()) // overtakes the queue
		}
	case *actor.Stopped:
		h.close()
		h.stopped = true
		if h.failure != nil {
			h.runtime.event(&h.spec, Event{GaveUp, h.failure})
		}
	}
}

// HandleFailure implements actor.SupervisorStrategy.
func (h *host) HandleFailure(_ *actor.ActorSystem, s actor.Supervisor, child *actor.PID, rs *actor.RestartStatistics, reason, _ any) {
	h.failure = reason.(*Failure)
	if h.spec.Policy == GiveUp {
		s.StopChildren(child)
		return
	}
	rs.Fail()
	if limit := cmp.Or(h.spec.MaxRestarts, defaultMaxRestarts); rs.NumberOfFailures(restartWindow) > limit {
		h.failure.What += fmt.Sprintf(", after %d restarts within %v", limit, restartWindow)
		s.StopChildren(child)
		return
	}
	s.RestartChildren(child)
}

// rebuild makes the receiver of the next life; if that fails the actor cannot go on.
func (h *host) rebuild() bool {
	receiver, err := create(h.spec.New)
	if err = errors.Join(err, h.closeErr); receiver == nil {
		h.failure.What = oneLine(fmt.Sprintf("%s; it cannot be started again: %v", h.failure.What, err))
		h.failure.Err = errors.Join(h.failure.Err, err)
		return false
	}
	h.receiver = receiver
	h.restarts.Add(1)
	if err != nil {
		h.failure.What = oneLine(fmt.Sprintf("%s; closing it: %v", h.failure.What, err))
	}
	h.runtime.event(&h.spec, Event{Restarted, h.failure})
	h.failure = nil
	return true
}

func (h *host) close() {
	h.closeErr = closeReceiver(h.receiver)
	h.receiver = nil
}

// create calls New; a panic in it is its error.
func create(makeNew func() (Receiver, error)) (r Receiver, err error) {
	defer func() {
		if v := recover(); v != nil {
			r, err = nil, fmt.Errorf("making the receiver panicked: %v", v)
		}
	}()
	r, err = makeNew()
	if r == nil && err == nil {
		err = errors.New("making the receiver gave none")
	}
	if err != nil {
		r = nil
	}
	return r, err
}

// closeReceiver closes r if it can be closed; a panic in Close is its error.
func closeReceiver(r Receiver) (err error) {
	c, ok := r.(io.Closer)
	if !ok {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("close panicked: %v", v)
		}
	}()
	return c.Close()
}
