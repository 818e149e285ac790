//go:build !linux

package prefetcher

import (
	"errors"
	"os"
)

type osFile struct{ *os.File }

func openFile(path string, direct bool) (File, error) {
	if direct {
		return nil, &os.PathError{Op: "open", Path: path, Err: errors.ErrUnsupported}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (f osFile) Stat() (Stamp, error) {
	st, err := f.File.Stat()
	if err != nil {
		return Stamp{}, err
	}
	return Stamp{Size: st.Size(), ModifiedNanos: st.ModTime().UnixNano()}, nil
}

// Drop leaves the page cache to the system.
func (f osFile) Drop(int64, int64) {}

func statPath(path string) (Stamp, error) {
	st, err := os.Stat(path)
	if err != nil {
		return Stamp{}, err
	}
	return Stamp{Size: st.Size(), ModifiedNanos: st.ModTime().UnixNano()}, nil
}

func refused(err error) bool { return errors.Is(err, errors.ErrUnsupported) }

// interrupted is false: package os repeats such reads itself.
func interrupted(error) bool { return false }

// mapFile is for systems that this package knows how to map files on.
func mapFile(File, int64) (data []byte, unmap func() error, err error) {
	return nil, nil, errors.ErrUnsupported
}
