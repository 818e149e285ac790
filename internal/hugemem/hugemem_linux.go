package hugemem

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

func mapBlock(size int64) (*Block, error) {
	if size < 0 || size > math.MaxInt-2*HugePage {
		return nil, fmt.Errorf("reserving %d bytes: no address space is that large", size)
	}
	whole := (size + HugePage - 1) / HugePage * HugePage
	mapped, err := unix.Mmap(-1, 0, int(whole+HugePage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of address space: %w; check ulimit -v", whole, err)
	}
	skip := int(-address(mapped) & (HugePage - 1))
	data := mapped[skip:][:whole]
	_ = unix.Madvise(data, unix.MADV_HUGEPAGE) // before the first touch; kernels without huge pages do with small ones
	return &Block{Data: data[:size:size], mapped: mapped}, nil
}

// Populate takes the pages of b, part of a block, now; kernels before 5.14 refuse.
func Populate(b []byte) bool { return unix.Madvise(b, unix.MADV_POPULATE_WRITE) == nil }

// Close gives the memory back; no slice of it must be used any more.
func (b *Block) Close() error {
	if b.mapped == nil {
		return nil
	}
	err := unix.Munmap(b.mapped)
	b.Data, b.mapped = nil, nil
	return err
}
