package prefetcher

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func reserve(size, slotBytes int64) (*Memory, error) {
	whole := (size + hugePage - 1) / hugePage * hugePage
	mapped, err := unix.Mmap(-1, 0, int(whole+hugePage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of address space for experts: %w; check ulimit -v", whole, err)
	}
	skip := int(-sliceAddress(mapped) & (hugePage - 1))
	data := mapped[skip:][:whole]
	_ = unix.Madvise(data, unix.MADV_HUGEPAGE) // before the first touch; kernels without huge pages do with small ones
	return &Memory{data: data[:size:size], mapped: mapped, slotBytes: slotBytes}, nil
}

// populate takes the pages of b; kernels before 5.14 refuse.
func populate(b []byte) bool { return unix.Madvise(b, unix.MADV_POPULATE_WRITE) == nil }

// Close gives the memory back; slots must not be used any more.
func (m *Memory) Close() error {
	if m.mapped == nil {
		return nil
	}
	err := unix.Munmap(m.mapped)
	m.data, m.mapped = nil, nil
	return err
}
