package device

import "slices"

// alignment of every buffer. What shaders ask for is less: 16 bytes for vectors.
const alignment = 256

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// span is a range of a block.
type span struct{ off, size int64 }

// block is memory that is handed out in parts.
type block struct {
	size int64
	free []span // by offset; neighbours are joined
	chunk
}

// heap hands out ranges of its blocks: of the smallest free range that is large enough. It knows nothing of Vulkan.
type heap struct{ blocks []*block }

// take finds n bytes, a multiple of alignment; b is nil if no block has them.
func (h *heap) take(n int64) (b *block, off int64) {
	best, size := -1, int64(0)
	for _, x := range h.blocks {
		for i, s := range x.free {
			if s.size >= n && (best < 0 || s.size < size) {
				b, best, size = x, i, s.size
			}
		}
	}
	if b == nil {
		return nil, 0
	}
	s := &b.free[best]
	off = s.off
	if s.off, s.size = s.off+n, s.size-n; s.size == 0 {
		b.free = slices.Delete(b.free, best, best+1)
	}
	return b, off
}

// add makes a block's memory available.
func (h *heap) add(b *block) {
	b.free = []span{{0, b.size}}
	h.blocks = append(h.blocks, b)
}

// give takes a range back and says whether its block is empty now.
func (h *heap) give(b *block, off, n int64) (empty bool) {
	i, _ := slices.BinarySearchFunc(b.free, off, func(s span, off int64) int { return int(min(max(s.off-off, -1), 1)) })
	b.free = slices.Insert(b.free, i, span{off, n})
	if i+1 < len(b.free) && off+n == b.free[i+1].off {
		b.free[i].size += b.free[i+1].size
		b.free = slices.Delete(b.free, i+1, i+2)
	}
	if i > 0 && b.free[i-1].off+b.free[i-1].size == off {
		b.free[i-1].size += b.free[i].size
		b.free = slices.Delete(b.free, i, i+1)
	}
	return len(b.free) == 1 && b.free[0].size == b.size
}

// remove forgets a block.
func (h *heap) remove(b *block) {
	h.blocks = slices.DeleteFunc(h.blocks, func(x *block) bool { return x == b })
}
