package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coli-moe/coli/device/internal/vk"
)

// Frame is a list of dispatches and copies that is recorded once and submitted as often as needed. It belongs to one goroutine at a time.
type Frame struct {
	d    *Device
	pool vk.CommandPool
	cb   vk.CommandBuffer
	err  error // of the recording

	began, ended, internal bool
	bound                  *Pipeline

	push    [MaxPush]byte // what Vulkan reads while it records
	barrier vk.MemoryBarrier
	region  vk.BufferCopy

	submission
}

// NewFrame begins a frame. Errors come from End.
func (d *Device) NewFrame() *Frame { return &Frame{d: d} }

// What a barrier orders, inside a frame and at its beginning after the frames before it.
const (
	stages = vk.PipelineStageComputeShaderBit | vk.PipelineStageTransferBit
	writes = vk.AccessShaderWriteBit | vk.AccessTransferWriteBit
	reads  = vk.AccessShaderReadBit | vk.AccessTransferReadBit
)

// begin starts the recording when the first command comes, and says whether there is one.
func (f *Frame) begin() bool {
	if f.err == nil && f.ended {
		f.err = errors.New("a frame that has ended takes no more commands")
	}
	if f.err != nil || f.began {
		return f.err == nil
	}
	if f.err = f.start(); f.err == nil {
		f.began = true
		f.Barrier()
	}
	return f.err == nil
}

func (f *Frame) start() error {
	d := f.d
	if err := d.usable(); err != nil {
		return err
	}
	if !f.internal && d.faults.frame.hit() {
		return d.failed(injected(vk.ErrorOutOfHostMemory))
	}
	pool := &vk.CommandPoolCreateInfo{QueueFamilyIndex: d.family}
	vk.Chain(pool)
	var err error
	if f.pool, err = d.vk.CreateCommandPool(pool); err != nil {
		return d.failed(err)
	}
	alloc := &vk.CommandBufferAllocateInfo{CommandPool: f.pool, CommandBufferCount: 1}
	vk.Chain(alloc)
	if f.cb, err = d.vk.AllocateCommandBuffer(alloc); err != nil {
		return d.failed(err)
	}
	begin := new(vk.CommandBufferBeginInfo)
	vk.Chain(begin, &f.barrier)
	begin.Next = nil
	return d.failed(d.vk.BeginCommandBuffer(f.cb, begin))
}

// Dispatch records x·y·z workgroups of a pipeline with its push constants. The label, the op's name, is for Times.
func (f *Frame) Dispatch(p *Pipeline, push []byte, x, y, z uint32, label string) {
	if !f.begin() {
		return
	}
	if len(push) != p.push {
		f.err = fmt.Errorf("%s: %d bytes of push constants for shader %s, which has %d", label, len(push), p.name, p.push)
		return
	}
	d := f.d.vk
	if f.bound != p {
		d.CmdBindPipeline(f.cb, p.h)
		f.bound = p
	}
	if len(push) > 0 {
		copy(f.push[:], push)
		d.CmdPushConstants(f.cb, p.layout, uint32(len(push)), &f.push[0])
	}
	d.CmdDispatch(f.cb, x, y, z)
}

// Barrier makes what was recorded before it visible to what is recorded after it.
func (f *Frame) Barrier() {
	if f.begin() {
		f.order(stages, stages, reads|writes)
	}
}

func (f *Frame) order(src, dst, access uint32) {
	f.barrier.SrcAccessMask, f.barrier.DstAccessMask = writes, access
	f.d.vk.CmdPipelineBarrier(f.cb, src, dst, &f.barrier)
}

// Copy records a copy of n bytes.
func (f *Frame) Copy(dst *Buffer, dstOff int64, src *Buffer, srcOff, n int64) {
	if !f.begin() {
		return
	}
	if f.err = errors.Join(f.d.check(dst, dstOff, int(n)), f.d.check(src, srcOff, int(n))); f.err == nil && n > 0 {
		f.copy(dst.block.buffer, dst.off+dstOff, src.block.buffer, src.off+srcOff, n)
	}
}

func (f *Frame) copy(dst vk.Buffer, dstOff int64, src vk.Buffer, srcOff, n int64) {
	if f.begin() {
		f.region = vk.BufferCopy{SrcOffset: uint64(srcOff), DstOffset: uint64(dstOff), Size: uint64(n)}
		f.d.vk.CmdCopyBuffer(f.cb, src, dst, &f.region)
	}
}

// End ends the recording; the error is that of the first command that could not be recorded.
func (f *Frame) End() error {
	if !f.begin() {
		return f.err
	}
	f.order(stages, vk.PipelineStageHostBit, vk.AccessHostReadBit)
	if err := f.d.vk.EndCommandBuffer(f.cb); err != nil {
		f.err = f.d.failed(err)
		return f.err
	}
	f.ended = true
	f.submission.init(f.d, f.cb)
	return nil
}

// Run submits the frame and waits for it.
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

// Submit queues the frame behind everything submitted before. A frame must be waited for before it is submitted again.
func (f *Frame) Submit() (Point, error) {
	if f.err != nil {
		return Point{}, f.err
	}
	if !f.ended {
		return Point{}, errors.New("a frame without End")
	}
	if err := f.d.usable(); err != nil {
		return Point{}, err
	}
	if f.point > f.d.reached.Load() {
		return Point{}, errors.New("a frame that was not waited for is submitted again")
	}
	if err := f.d.submit(f); err != nil {
		return Point{}, err
	}
	return Point{f, f.point}, nil
}

// Point is a place in the device's order of work.
type Point struct {
	f     *Frame
	value uint64
}

// Wait returns when the frame has run, and its results are visible to the host. When ctx ends first, its error is returned and the frame
// goes on; it must be waited for again. A frame that takes longer than Options.MaxWait loses the device.
func (p Point) Wait(ctx context.Context) error { return p.f.waiter.waitContext(ctx, p.f.d, p.value) }

// Free ends the frame, waiting for it if it runs.
func (f *Frame) Free() {
	if f.pool == 0 {
		return
	}
	if f.point > f.d.reached.Load() {
		if f.waiter.wait(f.d, f.point) != nil {
			return // the lost device may be at work on it; Close frees what it made
		}
	}
	f.d.vk.DestroyCommandPool(f.pool)
	f.pool, f.ended = 0, false
	f.err = cmpErr(f.err, errors.New("a frame that is freed"))
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// Timing is the device time of one label.
type Timing struct {
	Label string
	Time  time.Duration
	Count int
}
