//go:build unix

package weights

import (
	"math"
	"sync"

	"golang.org/x/sys/unix"
)

// mapping maps a whole file on first use.
type mapping struct {
	once sync.Once
	data []byte
	err  error
}

// bytes returns a range of the file, which must lie inside it.
func (f *file) bytes(off, size int64) ([]byte, error) {
	f.once.Do(func() {
		if f.size > math.MaxInt {
			f.err = unix.EFBIG
			return
		}
		f.data, f.err = unix.Mmap(int(f.f.Fd()), 0, int(f.size), unix.PROT_READ, unix.MAP_SHARED)
	})
	if f.err != nil {
		return nil, f.err
	}
	return f.data[off : off+size : off+size], nil
}

func (f *file) unmap() error {
	if f.data == nil {
		return nil
	}
	err := unix.Munmap(f.data)
	f.data = nil
	return err
}
