package weights

import "golang.org/x/sys/unix"

// populate reads a range of the file into the page cache and maps it. Kernels before 5.14 do not know the advice; pages then come in
// when they are touched.
func (f *file) populate(off, size int64) {
	data, err := f.bytes(off, size)
	if err != nil {
		return
	}
	_ = unix.Madvise(data, unix.MADV_POPULATE_READ)
}
