package gpu

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/coli-moe/coli/device"
)

// What addresses are multiples of: those of tensors, and those of what the host or the device reads in one go, the closer the better.
const (
	align = 256
	tight = 16
)

func aligned(n int64) int64 { return (n + align - 1) &^ (align - 1) }

// bump gives out memory one piece after the other and takes all of it back at once: the same requests in the same order get the same
// addresses. It grows by whole blocks and never moves.
type bump struct {
	alloc  func(size int64) (*device.Buffer, error)
	first  int64 // size of the first block, at least
	dense  bool  // pieces lie close to each other
	shadow bool  // pieces have a copy, by which write sees what changes
	blocks []*device.Buffer
	copies [][]byte // of the blocks, with shadow
	block  int      // in use
	off    int64    // in the block
}

// piece is memory that a bump gave out.
type piece struct {
	buf  *device.Buffer
	off  int64
	size int64
}

// at is the piece's device address.
func (p piece) at() uint64 { return p.buf.Addr + uint64(p.off) }

// bytes is the piece in host memory.
func (p piece) bytes() []byte { return p.buf.Bytes[p.off : p.off+p.size : p.off+p.size] }

// write writes a whole piece of b's. Memory that the host writes for the device may lie behind a slow bus, which nothing that has not changed
// since the last step is sent over.
func (b *bump) write(p piece, src []byte) {
	if b.shadow {
		last := b.copies[slices.Index(b.blocks, p.buf)][p.off : p.off+p.size]
		if bytes.Equal(last, src) {
			return
		}
		copy(last, src)
	}
	copy(p.bytes(), src)
}

func (b *bump) reset() { b.block, b.off = 0, 0 }

func (b *bump) take(size int64) (piece, error) {
	for ; b.block < len(b.blocks); b.block, b.off = b.block+1, 0 {
		if buf := b.blocks[b.block]; b.off+size <= buf.Size {
			p := piece{buf, b.off, size}
			b.off += b.aligned(size)
			return p, nil
		}
	}
	const least = 1 << 20
	grow := cmp.Or(b.first, least)
	if n := len(b.blocks); n > 0 {
		grow = max(least, b.blocks[n-1].Size)
	}
	buf, err := b.alloc(aligned(max(size, grow)))
	if err != nil {
		return piece{}, err
	}
	b.blocks = append(b.blocks, buf)
	if b.shadow {
		clear(buf.Bytes)
		b.copies = append(b.copies, make([]byte, buf.Size))
	}
	b.off = b.aligned(size)
	return piece{buf, 0, size}, nil
}

func (b *bump) aligned(n int64) int64 {
	if b.dense {
		return (n + tight - 1) &^ (tight - 1)
	}
	return aligned(n)
}

// position is where the last piece lies in what appendTo appends.
func (b *bump) position(p piece) (at int64) {
	for _, buf := range b.blocks[:b.block] {
		at += buf.Size
	}
	return at + p.off
}

// appendTo appends what has been given out: one copy, since the host reads memory that the device has written slowly.
func (b *bump) appendTo(all []byte) []byte {
	for i, buf := range b.blocks[:min(b.block+1, len(b.blocks))] {
		n := buf.Size
		if i == b.block {
			n = min(b.off, n)
		}
		all = append(all, buf.Bytes[:n]...)
	}
	return all
}

func (b *bump) free() {
	for _, buf := range b.blocks {
		buf.Free()
	}
	b.blocks, b.copies, b.block, b.off = nil, nil, 0, 0
}

// arena holds the activations of a step. Tensors outside the layers live until Reset; those of a layer until the second layer after it
// begins, whose tensors take their place: what passes from layer to layer besides the former is read in the next one at the latest.
type arena struct {
	kept  bump
	turns [2]bump
	layer [2]int // whose tensors turns holds
	epoch [2]int32
}

func newArena(alloc func(size int64) (*device.Buffer, error), kept, layer int64) arena {
	a := arena{kept: bump{alloc: alloc, first: kept}, layer: [2]int{-1, -1}}
	for i := range a.turns {
		a.turns[i] = bump{alloc: alloc, first: layer}
	}
	return a
}

// reset takes everything back.
func (a *arena) reset() {
	a.kept.reset()
	for i := range a.turns {
		a.turns[i].reset()
		a.layer[i] = -1
		a.epoch[i]++
	}
}

// take returns memory for something of a layer, -1 for outside the layers, and the epoch in which it is valid.
func (a *arena) take(layer int, size int64) (piece, int32, error) {
	if layer < 0 {
		p, err := a.kept.take(size)
		return p, 0, err
	}
	i := layer & 1
	if a.layer[i] != layer {
		a.turns[i].reset()
		a.layer[i] = layer
		a.epoch[i]++
	}
	p, err := a.turns[i].take(size)
	return p, a.epoch[i], err
}

// check panics if what was taken for a layer has been given to another.
func (a *arena) check(name string, layer, epoch int32) {
	if layer >= 0 && a.epoch[layer&1] != epoch {
		panic(fmt.Sprintf("gpu: %s of layer %d is used after layer %d began", name, layer, a.layer[layer&1]))
	}
}

func (a *arena) free() {
	a.kept.free()
	for i := range a.turns {
		a.turns[i].free()
	}
}
