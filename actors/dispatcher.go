package actors

import (
	"runtime"
	"time"
)

// dispatcher runs one actor on a goroutine of its own, which is the fastest way measured to wake one, and need not allocate. The goroutine
// is not locked to a thread: a locked one costs 10 µs a wake-up instead of 0.4.
type dispatcher struct {
	runtime *Runtime
	wake    chan func()
	exited  chan struct{} // closed at the end of the goroutine
	spin    time.Duration
}

func newDispatcher(r *Runtime, spin time.Duration) *dispatcher {
	d := &dispatcher{runtime: r, wake: make(chan func(), 1), exited: make(chan struct{}), spin: spin}
	go d.loop()
	return d
}

// Schedule implements actor.Dispatcher. A mailbox schedules itself again only after it was run, so that this never blocks.
func (d *dispatcher) Schedule(run func()) { d.wake <- run }

// Throughput implements actor.Dispatcher: after so many messages the mailbox yields the processor.
func (d *dispatcher) Throughput() int { return 300 }

// close ends the goroutine. The mailbox calls it once, and schedules nothing afterwards.
func (d *dispatcher) close() { close(d.wake) }

func (d *dispatcher) loop() {
	defer close(d.exited)
	if d.spin > 0 {
		d.runtime.spinners.Add(1)
		defer d.runtime.spinners.Add(-1)
	}
	for {
		run, ok := d.next()
		if !ok {
			return
		}
		run()
	}
}

// next waits for work: looking for it for the spin time, if there is a processor to spare, then parked. It yields after the first
// microsecond, since whoever waited for the last message is in line for this very processor (without it a round trip takes 6 µs instead
// of 1.6), and every few microseconds from then on, so that nobody is kept from the processor for long.
func (d *dispatcher) next() (run func(), ok bool) {
	if d.spin == 0 || int(d.runtime.spinners.Load()) >= d.runtime.procs {
		run, ok = <-d.wake
		return run, ok
	}
	began := time.Now()
	for i := 1; ; i++ {
		select {
		case run, ok = <-d.wake:
			return run, ok
		default:
		}
		if i%64 != 0 {
			continue
		}
		if i%512 == 64 {
			runtime.Gosched()
		}
		if time.Since(began) > d.spin {
			run, ok = <-d.wake
			return run, ok
		}
	}
}
