// Package messages holds the typed messages that coli's actors exchange, one file per conversation: moe (a MoE step), io (reads of
// expert bytes), tier (predictions and figures), policy (how experts are read) and kv (the device's copy of the KV cache).
//
// A message is data and a join, never a function, and the package imports nothing of the project but internal/loghist, data too, so that
// an actor may one day sit on another machine. Messages on the hot path are pointers to pooled structs: the sender takes one from its
// pool, the last receiver puts it back. A message belongs to its receiver from Send on.
package messages

import (
	"errors"
	"sync/atomic"
)

// Header is embedded in every message; the mailbox stamps it when tracing is on.
type Header struct {
	Enqueued int64  // nanoseconds on the trace's clock
	Flow     uint64 // joins the message's enqueueing, handling and effects in a trace
}

// Head returns the header.
func (h *Header) Head() *Header { return h }

// Message is any message.
type Message interface{ Head() *Header }

// Address is where messages are sent: an actor's mailbox. Send never blocks and is safe for concurrent use. A message to an actor that
// has stopped is failed if it can be (see Failer).
type Address interface{ Send(Message) }

// Failer is a message that somebody waits for. The mailbox calls Fail when the actor panics while handling it, or stops before it does.
type Failer interface{ Fail(error) }

// ErrStopped is what messages to a stopped actor fail with.
var ErrStopped = errors.New("the actor has stopped")

// Key names an expert of a layer.
type Key struct{ Layer, Expert int32 }

// Join is completed once and waited for once; Reset makes it ready again. The zero value needs Reset first. Done and Fail may be called
// any number of times from any goroutine; the first call counts.
type Join struct {
	ch   chan error
	done atomic.Bool
}

// Reset prepares the join for the next use. Nobody may hold it from the last one: after a wait that ended in ErrStopped a join must not
// be used again, since a late Done could land in it.
func (j *Join) Reset() {
	if j.ch == nil {
		j.ch = make(chan error, 1)
	}
	j.done.Store(false)
}

// Done completes the join.
func (j *Join) Done() { j.complete(nil) }

// Fail completes the join with an error.
func (j *Join) Fail(err error) { j.complete(err) }

func (j *Join) complete(err error) {
	if !j.done.Swap(true) {
		j.ch <- err
	}
}

// Wait returns when the join is completed, or with ErrStopped when dead is closed first.
func (j *Join) Wait(dead <-chan struct{}) error {
	select {
	case err := <-j.ch:
		return err
	case <-dead:
		select {
		case err := <-j.ch:
			return err
		default:
			return ErrStopped
		}
	}
}

// C is the channel Wait receives from, for callers that wait for something else too.
func (j *Join) C() <-chan error { return j.ch }
