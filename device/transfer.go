package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

const (
	slotBytes = 4 << 20 // what one copy between host and device carries
	slotCount = 4       // copies on their way up
)

// transfers copies between the host and memory that it does not see.
type transfers struct {
	mu    sync.Mutex
	up    *chunk // slotCount slots
	slots [slotCount]*Frame
	next  int
	down  *chunk // one slot

	lastMu sync.Mutex
	last   uint64 // the point of the last copy up
}

// Write copies src into the buffer at an offset. No frame in flight may use the range; frames submitted afterwards see it.
func (d *Device) Write(b *Buffer, off int64, src []byte) error {
	if err := d.check(b, off, int64(len(src))); err != nil || len(src) == 0 {
		return err
	}
	if b.Bytes != nil {
		copy(b.Bytes[off:], src)
		return nil
	}
	t := &d.transfers
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.prepare(d, &t.up, HostWrites, slotCount); err != nil {
		return err
	}
	for len(src) > 0 {
		n := min(len(src), slotBytes)
		if err := t.send(d, b, off, src[:n]); err != nil {
			return fmt.Errorf("writing %s: %w", b.name, err)
		}
		src, off = src[n:], off+int64(n)
	}
	return nil
}

// send copies a piece through the next slot, and does not wait for the copy: what is submitted later comes after it.
func (t *transfers) send(d *Device, b *Buffer, off int64, src []byte) error {
	i := t.next
	t.next = (i + 1) % slotCount
	f := t.slots[i]
	if f == nil {
		f = d.NewFrame()
		t.slots[i] = f
	} else if err := f.restart(); err != nil {
		return err
	}
	at := int64(i) * slotBytes
	copy(t.up.mapped[at:], src)
	f.copy(b.block.buffer, b.off+off, t.up.buffer, at, int64(len(src)))
	err := f.End()
	if err == nil {
		_, err = f.Submit()
	}
	if err != nil {
		f.Free()
		t.slots[i] = nil
		return err
	}
	t.lastMu.Lock()
	t.last = f.point
	t.lastMu.Unlock()
	return nil
}

// settle waits for the copies up.
func (t *transfers) settle(d *Device) error {
	t.lastMu.Lock()
	last := t.last
	t.lastMu.Unlock()
	if d.reached.Load() >= last {
		return nil
	}
	w := new(waiter)
	w.init(d)
	return w.wait(context.Background(), d, last)
}

// Read copies from the buffer at an offset into dst: what the frames that were waited for have written.
func (d *Device) Read(dst []byte, b *Buffer, off int64) error {
	if err := d.check(b, off, int64(len(dst))); err != nil || len(dst) == 0 {
		return err
	}
	if b.Bytes != nil && d.memory.layout.flags(b.block.kind)&cached != 0 {
		copy(dst, b.Bytes[off:])
		return nil
	}
	t := &d.transfers
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.prepare(d, &t.down, HostReads, 1); err != nil {
		return err
	}
	for len(dst) > 0 {
		n := min(len(dst), slotBytes)
		err := d.once(func(f *Frame) { f.copy(t.down.buffer, 0, b.block.buffer, b.off+off, int64(n)) })
		if err != nil {
			return fmt.Errorf("reading %s: %w", b.name, err)
		}
		copy(dst[:n], t.down.mapped)
		dst, off = dst[n:], off+int64(n)
	}
	return nil
}

// check says what is wrong with a range of a buffer.
func (d *Device) check(b *Buffer, off, n int64) error {
	if err := d.usable(); err != nil {
		return err
	}
	if b == nil || b.block == nil {
		return errors.New("a buffer that is freed")
	}
	if off < 0 || n < 0 || off > b.Size-n {
		return fmt.Errorf("%d bytes from %d on of buffer %s, which has %d", n, off, b.name, b.Size)
	}
	return nil
}

// prepare makes a staging buffer when it is first needed. It is the device's own, and not in Usage.
func (t *transfers) prepare(d *Device, c **chunk, use Use, slots int64) error {
	if *c != nil {
		return nil
	}
	kinds := slices.Clone(d.memory.order[use])
	if use == HostWrites { // RAM first, and the window last: the copy reads it once
		slices.Reverse(kinds)
	}
	d.memory.mu.Lock() // newChunk's
	defer d.memory.mu.Unlock()
	for i, kind := range kinds {
		x, err := newChunk(d, use, kind, slots*slotBytes)
		if err == nil {
			*c = &x
			return nil
		}
		if err = d.failed(err); !errors.Is(err, ErrNoMemory) || i == len(kinds)-1 {
			return fmt.Errorf("a staging buffer: %w", err)
		}
	}
	return nil
}

// chunks are the staging buffers.
func (t *transfers) chunks() (out []chunk) {
	for _, c := range []*chunk{t.up, t.down} {
		if c != nil {
			out = append(out, *c)
		}
	}
	return out
}
