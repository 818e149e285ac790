package shaders

import "unsafe"

// Launch is one dispatch of a kernel: which module, its specialisation constants (constant_id 0, 1, …) and the workgroups.
type Launch struct {
	Kernel    string
	Constants []uint32
	X, Y, Z   uint32
}

// Bytes is the memory of a push-constant block, as a dispatch takes it. It aliases *p.
func Bytes[T any](p *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)) }

// groups is how many groups of size cover n.
func groups(n, size int) uint32 { return uint32((n + size - 1) / size) }

// threads is the size of most workgroups here: Vulkan promises 128, every driver for a GPU has this many.
const threads = 256

func flag(on bool, bit uint32) uint32 {
	if on {
		return bit
	}
	return 0
}
