package device

import (
	"context"
	"fmt"
	"sync"

	"github.com/coli-moe/coli/device/internal/vk"
)

// stagingBytes is what one copy between host and device carries.
const stagingBytes = 16 << 20

// transfers copies between the host and memory that it cannot see, through a staging buffer each way.
type transfers struct {
	mu       sync.Mutex
	up, down *chunk
}

// Write copies src into the buffer at an offset. Frames in flight may not use the range; the next ones see it.
func (d *Device) Write(b *Buffer, off int64, src []byte) error {
	if err := d.check(b, off, len(src)); err != nil || len(src) == 0 {
		return err
	}
	if b.Bytes != nil {
		copy(b.Bytes[off:], src)
		return nil
	}
	t := &d.transfers
	t.mu.Lock()
	defer t.mu.Unlock()
	stage, err := t.stage(d, &t.up, HostWrites)
	for err == nil && len(src) > 0 {
		n := copy(stage.mapped, src)
		err = t.once(d, func(f *Frame) { f.copy(b.block.buffer, b.off+off, stage.buffer, 0, int64(n)) })
		src, off = src[n:], off+int64(n)
	}
	return err
}

// Read copies from the buffer at an offset into dst: what the frames that were waited for have written.
func (d *Device) Read(dst []byte, b *Buffer, off int64) error {
	if err := d.check(b, off, len(dst)); err != nil || len(dst) == 0 {
		return err
	}
	if b.Bytes != nil && typeFlags(&d.memory.types, b.block.kind)&vk.MemoryPropertyHostCachedBit != 0 {
		copy(dst, b.Bytes[off:])
		return nil
	}
	t := &d.transfers
	t.mu.Lock()
	defer t.mu.Unlock()
	stage, err := t.stage(d, &t.down, HostReads)
	for err == nil && len(dst) > 0 {
		n := min(len(dst), stagingBytes)
		err = t.once(d, func(f *Frame) { f.copy(stage.buffer, 0, b.block.buffer, b.off+off, int64(n)) })
		copy(dst[:n], stage.mapped)
		dst, off = dst[n:], off+int64(n)
	}
	return err
}

func (d *Device) check(b *Buffer, off int64, n int) error {
	if err := d.usable(); err != nil {
		return err
	}
	if b == nil || b.block == nil {
		return fmt.Errorf("a buffer that is freed")
	}
	if off < 0 || off+int64(n) > b.Size {
		return fmt.Errorf("bytes %d to %d of buffer %s, which has %d", off, off+int64(n), b.name, b.Size)
	}
	return nil
}

// stage makes a staging buffer when it is first needed. It is the device's own, not in Usage.
func (t *transfers) stage(d *Device, c **chunk, use Use) (*chunk, error) {
	if *c == nil {
		x, err := newChunk(d, use, d.memory.order[use][0], stagingBytes)
		if err != nil {
			return nil, fmt.Errorf("a staging buffer: %w", d.failed(err))
		}
		*c = &x
	}
	return *c, nil
}

// once runs a frame of its own.
func (t *transfers) once(d *Device, record func(f *Frame)) error {
	f := d.NewFrame()
	f.internal = true
	defer f.Free()
	record(f)
	if err := f.End(); err != nil {
		return err
	}
	return f.Run(context.Background())
}

// zero fills a fresh chunk.
func (t *transfers) zero(d *Device, c *chunk, size int64) error {
	return t.once(d, func(f *Frame) {
		if f.begin() {
			d.vk.CmdFillBuffer(f.cb, c.buffer, 0, uint64(size))
		}
	})
}

func (t *transfers) destroy(d *Device) {
	for _, c := range []*chunk{t.up, t.down} {
		if c != nil {
			c.destroy(d)
		}
	}
}
