package prefetcher

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// osFile is a file of the system. The raw descriptor is used because os.File's ReadAt goes on after a short read at an offset that
// direct reads refuse.
type osFile struct {
	f  *os.File
	fd int
}

func openFile(path string, direct bool) (File, error) {
	flags := os.O_RDONLY
	if direct {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	return &osFile{f, int(f.Fd())}, nil
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := unix.Pread(f.fd, p, off)
	return max(n, 0), err
}

func (f *osFile) Stat() (Stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return Stamp{}, err
	}
	return stamp(&st), nil
}

func (f *osFile) Drop(off, size int64) { _ = unix.Fadvise(f.fd, off, size, unix.FADV_DONTNEED) }

func (f *osFile) Close() error { return f.f.Close() }

// statPath returns the state of what path names now.
func statPath(path string) (Stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Stamp{}, err
	}
	return stamp(&st), nil
}

func stamp(st *unix.Stat_t) Stamp {
	return Stamp{Size: st.Size, ModifiedNanos: st.Mtim.Nano(), Dev: uint64(st.Dev), Inode: st.Ino}
}

// refused reports whether err means that the file system does not take direct reads (of this alignment).
func refused(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, errors.ErrUnsupported)
}

func interrupted(err error) bool { return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) }

// mapFile maps the first size bytes of a file of openFile's.
func mapFile(f File, size int64) (data []byte, unmap func() error, err error) {
	data, err = unix.Mmap(f.(*osFile).fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	return data, func() error { return unix.Munmap(data) }, err
}
