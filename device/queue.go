package device

import (
	"context"
	"fmt"
	"time"

	"github.com/coli-moe/coli/device/internal/vk"
	"github.com/coli-moe/coli/messages"
)

// submission is what Vulkan reads when a frame is submitted, made once.
type submission struct {
	point    uint64 // of the last submission
	command  vk.CommandBuffer
	signal   vk.Semaphore
	timeline vk.TimelineSemaphoreSubmitInfo
	info     vk.SubmitInfo
	waiter   waiter
}

func (s *submission) init(d *Device, cb vk.CommandBuffer) {
	s.command, s.signal = cb, d.timeline
	s.timeline = vk.TimelineSemaphoreSubmitInfo{SignalSemaphoreValueCount: 1, PSignalSemaphoreValues: &s.point}
	s.info = vk.SubmitInfo{CommandBufferCount: 1, PCommandBuffers: &s.command, SignalSemaphoreCount: 1, PSignalSemaphores: &s.signal}
	vk.Chain(&s.info, &s.timeline)
	s.waiter.init(d)
}

// submit gives a frame to the queue: through the actor where one is attached, else here.
func (d *Device) submit(f *Frame) error {
	return d.submitNow(f)
}

func (d *Device) submitNow(f *Frame) error {
	d.submitMu.Lock()
	defer d.submitMu.Unlock()
	if err := d.usable(); err != nil {
		return err
	}
	if !f.internal {
		if d.faults.lost.hit() {
			return d.lose(injected(vk.ErrorDeviceLost))
		}
		if d.faults.submit.hit() {
			return d.failed(injected(vk.ErrorOutOfHostMemory))
		}
	}
	previous := f.point
	f.point = d.last + 1
	if err := d.vk.QueueSubmit(d.queue, &f.info); err != nil {
		f.point = previous
		return d.failed(err)
	}
	d.last++
	return nil
}

// Attach gives submissions to the queue's actor from now on.
func (d *Device) Attach(to messages.Address) { d.address.Store(&to) }

// waiter waits for points of the timeline; its fields are what Vulkan reads, on the heap.
type waiter struct {
	semaphore vk.Semaphore
	value     uint64
	counter   uint64
	info      vk.SemaphoreWaitInfo
}

func newWaiter(d *Device) *waiter {
	w := new(waiter)
	w.init(d)
	return w
}

func (w *waiter) init(d *Device) {
	w.semaphore = d.timeline
	w.info = vk.SemaphoreWaitInfo{SemaphoreCount: 1, PSemaphores: &w.semaphore, PValues: &w.value}
	vk.Chain(&w.info)
}

const (
	spinTime  = 2 * time.Millisecond  // how long a wait looks at the timeline before it parks
	waitSlice = 50 * time.Millisecond // how long it then takes to notice the end of its context
)

func (w *waiter) wait(d *Device, point uint64) error {
	return w.waitContext(context.Background(), d, point)
}

// waitContext waits for a point, at most Options.MaxWait.
func (w *waiter) waitContext(ctx context.Context, d *Device, point uint64) error {
	if d.reached.Load() >= point {
		return nil
	}
	if err := d.usable(); err != nil {
		return err
	}
	began := time.Now()
	w.value = point
	for {
		if err := d.vk.SemaphoreCounterValue(w.semaphore, &w.counter); err != nil {
			return d.failed(err)
		}
		if w.counter == ^uint64(0) { // what the timeline of a lost device says
			return d.lose(vk.ErrorDeviceLost)
		}
		if w.counter >= point {
			d.pass(w.counter)
			return nil
		}
		waited := time.Since(began)
		if waited < spinTime {
			continue
		}
		if waited > d.opts.MaxWait {
			return d.lose(fmt.Errorf("work on it was not done after %v", d.opts.MaxWait))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := d.vk.WaitSemaphores(&w.info, uint64(waitSlice)); err != nil {
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
