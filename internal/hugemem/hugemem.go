// Package hugemem has memory outside Go's heap, made of huge pages where the system has them.
package hugemem

import "unsafe"

// HugePage is what one page-table entry of a transparent huge page maps on x86-64 and arm64 (with 4 KiB pages).
const HugePage = 2 << 20

// Block is a piece of memory. Its pages are taken when they are first written; until then they read as zeros.
type Block struct {
	Data   []byte // nil after Close
	mapped []byte
}

// Map reserves size bytes, aligned to a huge page on Linux and to 4 KiB elsewhere.
func Map(size int64) (*Block, error) { return mapBlock(size) }

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
