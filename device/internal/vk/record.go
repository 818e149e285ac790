package vk

import (
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Commands is a command buffer that is recorded, by one goroutine at a time. A frame is many commands: what their calls are made of lies
// here, since the arguments of call are allocated each time.
type Commands struct {
	d *Device
	h CommandBuffer

	args    [10]uintptr
	push    [128]byte
	barrier MemoryBarrier
	region  BufferCopy
}

// Handle is what is submitted.
func (c *Commands) Handle() CommandBuffer { return c.h }

// do calls f with the command buffer and the first n-1 of c.args after it.
func (c *Commands) do(f proc, n int) {
	c.args[0] = uintptr(c.h)
	purego.SyscallN(uintptr(f), c.args[:n]...)
	runtime.KeepAlive(c)
}

// Begin begins the recording.
func (c *Commands) Begin(info *CommandBufferBeginInfo) error {
	return check("vkBeginCommandBuffer", call(c.d.beginCommandBuffer, uintptr(c.h), uintptr(unsafe.Pointer(info))))
}

// End ends the recording.
func (c *Commands) End() error {
	return check("vkEndCommandBuffer", call(c.d.endCommandBuffer, uintptr(c.h)))
}

// BindPipeline records the compute pipeline of the dispatches that follow.
func (c *Commands) BindPipeline(p Pipeline) {
	c.args[1], c.args[2] = PipelineBindPointCompute, uintptr(p)
	c.do(c.d.cmdBindPipeline, 3)
}

// PushConstants records the values of the compute stage's push constants, at most 128 bytes.
func (c *Commands) PushConstants(l PipelineLayout, values []byte) {
	n := copy(c.push[:], values)
	c.args[1], c.args[2], c.args[3], c.args[4], c.args[5] = uintptr(l), ShaderStageComputeBit, 0, uintptr(n), uintptr(unsafe.Pointer(&c.push))
	c.do(c.d.cmdPushConstants, 6)
}

// Dispatch records workgroups.
func (c *Commands) Dispatch(x, y, z uint32) {
	c.args[1], c.args[2], c.args[3] = uintptr(x), uintptr(y), uintptr(z)
	c.do(c.d.cmdDispatch, 4)
}

// Barrier records a memory barrier between stages, for all memory.
func (c *Commands) Barrier(srcStages, dstStages, srcAccess, dstAccess uint32) {
	c.barrier.SrcAccessMask, c.barrier.DstAccessMask = srcAccess, dstAccess
	c.args = [10]uintptr{1: uintptr(srcStages), 2: uintptr(dstStages), 4: 1, 5: uintptr(unsafe.Pointer(&c.barrier))}
	c.do(c.d.cmdPipelineBarrier, 10)
}

// CopyBuffer records a copy of n bytes.
func (c *Commands) CopyBuffer(dst Buffer, dstOff uint64, src Buffer, srcOff, n uint64) {
	c.region = BufferCopy{SrcOffset: srcOff, DstOffset: dstOff, Size: n}
	c.args[1], c.args[2], c.args[3], c.args[4] = uintptr(src), uintptr(dst), 1, uintptr(unsafe.Pointer(&c.region))
	c.do(c.d.cmdCopyBuffer, 5)
}

// FillBuffer records the filling of n bytes with zeros.
func (c *Commands) FillBuffer(b Buffer, off, n uint64) {
	c.args[1], c.args[2], c.args[3], c.args[4] = uintptr(b), uintptr(off), uintptr(n), 0
	c.do(c.d.cmdFillBuffer, 5)
}

// ResetQueryPool records the reset of a pool's first n queries.
func (c *Commands) ResetQueryPool(p QueryPool, n uint32) {
	c.args[1], c.args[2], c.args[3] = uintptr(p), 0, uintptr(n)
	c.do(c.d.cmdResetQueryPool, 4)
}

// WriteTimestamp records the time at which all commands before it have passed the stage.
func (c *Commands) WriteTimestamp(stage uint32, p QueryPool, query uint32) {
	c.args[1], c.args[2], c.args[3] = uintptr(stage), uintptr(p), uintptr(query)
	c.do(c.d.cmdWriteTimestamp, 4)
}
