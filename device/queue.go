package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coli-moe/coli/device/internal/vk"
	"github.com/coli-moe/coli/messages"
)

// submission is the message that submits a frame, and what Vulkan reads then. A frame has one, made by its first End, so that submitting
// allocates nothing.
type submission struct {
	messages.Header
	messages.Join
	f     *Frame
	timer *time.Timer // bounds the wait for the actor

	command  vk.CommandBuffer
	signal   vk.Semaphore
	value    uint64
	timeline vk.TimelineSemaphoreSubmitInfo
	info     vk.SubmitInfo
	submit   *vk.Prepared
}

func (s *submission) init(f *Frame) {
	s.f, s.command, s.signal = f, f.cb.Handle(), f.d.timeline
	s.timeline = vk.TimelineSemaphoreSubmitInfo{SignalSemaphoreValueCount: 1, PSignalSemaphoreValues: &s.value}
	s.info = vk.SubmitInfo{CommandBufferCount: 1, PCommandBuffers: &s.command, SignalSemaphoreCount: 1, PSignalSemaphores: &s.signal}
	vk.Chain(&s.info, &s.timeline)
	s.submit = f.d.vk.QueueSubmit(f.d.queue, &s.info)
}

// Queue is the actor of the device's queue: the one that submits. The engine spawns it in its runtime and attaches its address; without
// one, as in tests and tools, the goroutine that has a frame to submit does it itself.
type Queue struct{ d *Device }

// Queue returns the receiver of the queue's actor, which is the same after a restart.
func (d *Device) Queue() *Queue { return &Queue{d} }

// Receive submits the frame of a message.
func (q *Queue) Receive(m messages.Message) {
	if s, ok := m.(*submission); ok {
		if err := q.d.submitNow(s); err != nil {
			s.Fail(err)
		} else {
			s.Done()
		}
	}
}

// Attach sends submissions to the queue's actor from now on; nil to no actor.
func (d *Device) Attach(queue messages.Address) {
	if queue == nil {
		d.actor.Store(nil)
	} else {
		d.actor.Store(&queue)
	}
}

// submit submits a frame and notes its point.
func (d *Device) submit(f *Frame) error {
	s := &f.submission
	queue := d.actor.Load()
	if queue == nil {
		if err := d.submitNow(s); err != nil {
			return err
		}
		f.point = s.value
		return nil
	}
	if err := d.usable(); err != nil {
		return err
	}
	s.Reset()
	if s.timer == nil {
		s.timer = time.NewTimer(d.opts.MaxWait)
	} else {
		s.timer.Reset(d.opts.MaxWait)
	}
	defer s.timer.Stop()
	(*queue).Send(s)
	select {
	case err := <-s.C():
		switch {
		case err == nil:
			f.point = s.value
		case !errors.Is(err, ErrLost) && !errors.Is(err, ErrNoMemory):
			err = d.lose(err) // the actor is gone, or the driver has failed of what it never should
		}
		return err
	case <-s.timer.C:
		return d.lose(fmt.Errorf("its queue took no submission for %v", d.opts.MaxWait))
	}
}

// submitNow gives a frame to the driver with the timeline's next point.
func (d *Device) submitNow(s *submission) error {
	d.submitMu.Lock()
	defer d.submitMu.Unlock()
	if err := d.usable(); err != nil {
		return err
	}
	if d.faults.lost.hit() {
		return d.lose(fmt.Errorf("%w: %w", vk.ErrorDeviceLost, ErrFault))
	}
	if d.faults.submit.hit() {
		return fmt.Errorf("%w for a submission: %w", ErrNoMemory, ErrFault)
	}
	s.value = d.last + 1
	if err := s.submit.Do(); err != nil {
		return d.failed(err)
	}
	d.last = s.value
	return nil
}

// waiter waits for points of the timeline, for one goroutine at a time. Vulkan reads its fields: it must be on the heap.
type waiter struct {
	semaphore vk.Semaphore
	value     uint64
	counter   uint64
	info      vk.SemaphoreWaitInfo
	read      *vk.Prepared // the timeline, into counter
	park      *vk.Prepared // until the timeline has reached value, or for a slice
}

func (w *waiter) init(d *Device) {
	w.semaphore = d.timeline
	w.info = vk.SemaphoreWaitInfo{SemaphoreCount: 1, PSemaphores: &w.semaphore, PValues: &w.value}
	vk.Chain(&w.info)
	w.read = d.vk.SemaphoreCounterValue(w.semaphore, &w.counter)
	w.park = d.vk.WaitSemaphores(&w.info, uint64(min(waitSlice, d.opts.MaxWait)))
}

const (
	spinTime  = 2 * time.Millisecond  // how long a wait looks at the timeline before it parks
	waitSlice = 50 * time.Millisecond // and how late it then notices the end of its context
)

// wait returns when the timeline has reached a point, at once if it has already.
func (w *waiter) wait(ctx context.Context, d *Device, point uint64) error {
	if d.reached.Load() >= point {
		return nil
	}
	if err := d.usable(); err != nil {
		return err
	}
	if d.faults.wait.hit() {
		return d.lose(fmt.Errorf("work on it was not done in time: %w", ErrFault))
	}
	began := time.Now()
	w.value = point
	for {
		if err := w.read.Do(); err != nil {
			return d.failed(err)
		}
		if w.counter == ^uint64(0) { // so some drivers end all waits for a lost device
			return d.lose(vk.ErrorDeviceLost)
		}
		if w.counter >= point {
			d.pass(w.counter)
			return nil
		}
		waited := time.Since(began)
		if waited < d.opts.Spin {
			continue
		}
		if waited > d.opts.MaxWait {
			return d.lose(fmt.Errorf("work on it was not done after %v", d.opts.MaxWait))
		}
		if err := cmp.Or(d.Lost(), ctx.Err()); err != nil { // lost in another call, perhaps
			return err
		}
		if err := w.park.Do(); err != nil {
			return d.failed(err)
		}
	}
}

// pass notes that the timeline has reached a point.
func (d *Device) pass(point uint64) {
	for {
		old := d.reached.Load()
		if old >= point || d.reached.CompareAndSwap(old, point) {
			return
		}
	}
}
