package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coli-moe/coli/device/internal/vk"
)

// Frame is a list of dispatches and copies that is recorded once and submitted as often as needed. It belongs to one goroutine at a time.
//
// A frame begins after everything submitted before it, and sees what that has written. Within it nothing is ordered but by Barrier.
type Frame struct {
	d    *Device
	pool vk.CommandPool
	cb   *vk.Commands
	err  error // why nothing more can be recorded

	began, ended bool
	bound        *Pipeline
	order        order

	stamps     stamps
	submission submission
	point      uint64 // of the last submission
	waiter     waiter
}

// NewFrame begins a frame. Errors come from End. It must be freed.
func (d *Device) NewFrame() *Frame { return &Frame{d: d} }

var (
	errEnded      = errors.New("the frame has ended and takes no more commands")
	errNotEnded   = errors.New("a frame is submitted without End")
	errStillRuns  = errors.New("the frame was not waited for after it was submitted")
	errFrameFreed = errors.New("the frame is freed")
)

// begin starts the recording when the first command comes, and says whether commands can be recorded.
func (f *Frame) begin() bool {
	if f.err == nil && f.ended {
		f.err = errEnded
	}
	if f.err != nil || f.began {
		return f.err == nil
	}
	if f.err = f.start(); f.err != nil {
		return false
	}
	f.began = true
	f.order.begin()
	f.stamp("")
	return true
}

// start makes the command buffer, unless there is one, and begins it.
func (f *Frame) start() error {
	d := f.d
	if err := d.usable(); err != nil {
		return err
	}
	if d.faults.frame.hit() {
		return fmt.Errorf("%w for a frame: %w", ErrNoMemory, ErrFault)
	}
	if f.pool == 0 {
		pool := &vk.CommandPoolCreateInfo{QueueFamilyIndex: d.family}
		vk.Chain(pool)
		var err error
		if f.pool, err = d.vk.CreateCommandPool(pool); err != nil {
			return d.failed(err)
		}
		d.framesMu.Lock()
		d.frames[f] = struct{}{}
		d.framesMu.Unlock()
		alloc := &vk.CommandBufferAllocateInfo{CommandPool: f.pool, CommandBufferCount: 1}
		vk.Chain(alloc)
		if f.cb, err = d.vk.AllocateCommandBuffer(alloc); err != nil {
			return d.failed(err)
		}
	}
	begin := new(vk.CommandBufferBeginInfo)
	vk.Chain(begin)
	return d.failed(f.cb.Begin(begin))
}

// restart waits for a frame that has ended and makes it empty.
func (f *Frame) restart() error {
	if err := f.waiter.wait(context.Background(), f.d, f.point); err != nil {
		return err
	}
	if err := f.d.vk.ResetCommandPool(f.pool); err != nil {
		return f.d.failed(err)
	}
	f.began, f.ended, f.bound, f.err = false, false, nil, nil
	f.stamps.labels = f.stamps.labels[:0]
	return nil
}

// Dispatch records x·y·z workgroups of a pipeline with its push constants. The label, the op's name, is for Times.
func (f *Frame) Dispatch(p *Pipeline, push []byte, x, y, z uint32, label string) {
	if !f.begin() {
		return
	}
	most := &f.d.info.MaxGroups
	switch {
	case len(push) != p.push:
		f.err = fmt.Errorf("%s: %d bytes of push constants for shader %s, which has %d", label, len(push), p.name, p.push)
		return
	case x > most[0] || y > most[1] || z > most[2]:
		f.err = fmt.Errorf("%s: %d·%d·%d workgroups of shader %s; %s takes %v", label, x, y, z, p.name, f.d.info.Name, *most)
		return
	}
	if f.bound != p {
		f.cb.BindPipeline(p.h)
		f.bound = p
	}
	if len(push) > 0 {
		f.cb.PushConstants(p.layout, push)
	}
	f.behind(dispatches)
	f.cb.Dispatch(x, y, z)
	f.stamp(label)
}

// Barrier makes what was recorded before it visible to what is recorded after it.
func (f *Frame) Barrier() {
	if f.begin() {
		f.order.barrier()
	}
}

// behind records the barrier that the next command, which is of kind k, needs.
func (f *Frame) behind(k kind) {
	if wait := f.order.command(k); wait != 0 {
		f.barrier(wait, k.stage())
	}
}

// barrier records that commands of some stages see, and do not disturb, what those of others before them do.
func (f *Frame) barrier(from, to uint32) {
	_, written := access(from)
	reads, writes := access(to)
	f.cb.Barrier(from, to, written, reads|writes)
}

// Copy records a copy of n bytes.
func (f *Frame) Copy(dst *Buffer, dstOff int64, src *Buffer, srcOff, n int64) {
	if !f.begin() {
		return
	}
	if f.err = cmp.Or(f.d.check(dst, dstOff, n), f.d.check(src, srcOff, n)); f.err == nil && n > 0 {
		f.copy(dst.block.buffer, dst.off+dstOff, src.block.buffer, src.off+srcOff, n)
	}
}

func (f *Frame) copy(dst vk.Buffer, dstOff int64, src vk.Buffer, srcOff, n int64) {
	if f.begin() {
		f.behind(copies)
		f.cb.CopyBuffer(dst, uint64(dstOff), src, uint64(srcOff), uint64(n))
		f.stamp("copy")
	}
}

// zero records the filling of n bytes with zeros.
func (f *Frame) zero(b vk.Buffer, n int64) {
	if f.begin() {
		f.behind(copies)
		f.cb.FillBuffer(b, 0, uint64(n))
	}
}

// End ends the recording; the error is that of the first command that could not be recorded.
func (f *Frame) End() error {
	if !f.begin() {
		return f.err
	}
	if used := f.order.used; used != 0 {
		_, written := access(used)
		f.cb.Barrier(used, vk.PipelineStageHostBit, written, vk.AccessHostReadBit)
	}
	if err := f.cb.End(); err != nil {
		f.err = f.d.failed(err)
		return f.err
	}
	f.ended = true
	if f.submission.f == nil {
		f.submission.init(f)
		f.waiter.init(f.d)
	}
	return nil
}

// Run submits the frame and waits for it, as Submit and Point.Wait do. The time from one to the other is the device's.
func (f *Frame) Run(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p, err := f.Submit()
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Submit queues the frame behind everything submitted before, through the queue's actor where one is attached (Device.Attach). A frame
// must be waited for before it is submitted again.
func (f *Frame) Submit() (Point, error) {
	switch {
	case f.err != nil:
		return Point{}, f.err
	case !f.ended:
		return Point{}, errNotEnded
	case f.point > f.d.reached.Load():
		return Point{}, cmp.Or(f.d.usable(), errStillRuns)
	}
	if err := f.d.submit(f); err != nil {
		if errors.Is(err, ErrLost) {
			f.point = ^uint64(0) // the driver may have the frame, or get it yet: it is Close's to destroy
		}
		return Point{}, err
	}
	return Point{f, f.point}, nil
}

// Point is a place in the order of the device's work: behind a submission of a frame.
type Point struct {
	f     *Frame
	value uint64
}

// Wait returns when the frame has run; what it has written is visible to the host then. When ctx ends first its error is returned and the
// frame goes on: it must be waited for again before it is used. A wait longer than Options.MaxWait loses the device. Wait belongs to the
// frame's goroutine.
func (p Point) Wait(ctx context.Context) error { return p.f.waiter.wait(ctx, p.f.d, p.value) }

// Free ends the frame, waiting for it if it runs. It may be called more than once.
func (f *Frame) Free() {
	f.err = errFrameFreed
	if f.pool == 0 || f.d.closed.Load() || f.point > f.d.reached.Load() && f.waiter.wait(context.Background(), f.d, f.point) != nil {
		return // Close destroys what is left of a lost device's frames
	}
	f.d.framesMu.Lock()
	delete(f.d.frames, f)
	f.d.framesMu.Unlock()
	f.destroy()
}

func (f *Frame) destroy() {
	f.d.vk.DestroyCommandPool(f.pool)
	for _, p := range f.stamps.pools {
		f.d.vk.DestroyQueryPool(p)
	}
	f.pool, f.stamps.pools = 0, nil
}

// clock turns the device's timestamps into time.
type clock struct {
	period float64 // nanoseconds of a tick; 0 if there are no timestamps
	mask   uint64  // of the bits that count
}

func newClock(period float64, bits uint32) clock {
	if bits == 0 {
		return clock{}
	}
	return clock{period, ^uint64(0) >> (64 - min(bits, 64))}
}

func (c clock) between(from, to uint64) time.Duration {
	return time.Duration(float64((to-from)&c.mask) * c.period)
}

// stampsPerPool is how many timestamps a query pool has; a long frame has several pools.
const stampsPerPool = 512

// stamps are the times at which the commands of a frame ended.
type stamps struct {
	labels []string // of the command that ended; the first is the frame's beginning
	pools  []vk.QueryPool
}

// stamp records the time at which everything before it has ended.
func (f *Frame) stamp(label string) {
	d, s := f.d, &f.stamps
	if !d.opts.Profile || d.clock.period == 0 {
		return
	}
	pool, query := len(s.labels)/stampsPerPool, uint32(len(s.labels)%stampsPerPool)
	if pool == len(s.pools) {
		info := &vk.QueryPoolCreateInfo{QueryType: vk.QueryTypeTimestamp, QueryCount: stampsPerPool}
		vk.Chain(info)
		p, err := d.vk.CreateQueryPool(info)
		if err != nil {
			f.err = d.failed(err)
			return
		}
		s.pools = append(s.pools, p)
	}
	if query == 0 {
		f.cb.ResetQueryPool(s.pools[pool], stampsPerPool)
	}
	f.cb.WriteTimestamp(vk.PipelineStageBottomOfPipeBit, s.pools[pool], query)
	s.labels = append(s.labels, label)
}

// Timing is the device time of the dispatches of one label.
type Timing struct {
	Label string
	Time  time.Duration
	Count int
}

// Times says where the time of the frame's last run went, the most first: what lies between the ends of a command and of the one before
// it, barriers included, counts for its label. It is empty unless the device was opened with Options.Profile.
func (f *Frame) Times() ([]Timing, error) {
	s := &f.stamps
	if len(s.labels) == 0 || f.point == 0 {
		return nil, nil
	}
	if f.point > f.d.reached.Load() {
		return nil, errStillRuns
	}
	ends := make([]uint64, 0, len(s.pools)*stampsPerPool)
	for len(ends) < len(s.labels) {
		n := min(len(s.labels)-len(ends), stampsPerPool)
		ends = ends[:len(ends)+n]
		if err := f.d.vk.QueryResults(s.pools[(len(ends)-1)/stampsPerPool], ends[len(ends)-n:]); err != nil {
			return nil, f.d.failed(err)
		}
	}
	var out []Timing
	for i, label := range s.labels[1:] {
		n := slices.IndexFunc(out, func(t Timing) bool { return t.Label == label })
		if n < 0 {
			n = len(out)
			out = append(out, Timing{Label: label})
		}
		out[n].Time += f.d.clock.between(ends[i], ends[i+1])
		out[n].Count++
	}
	slices.SortStableFunc(out, func(a, b Timing) int { return cmp.Compare(b.Time, a.Time) })
	return out, nil
}
