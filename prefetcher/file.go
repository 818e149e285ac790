package prefetcher

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// File is an open file as the readers use it: safe for concurrent use.
type File interface {
	// ReadAt makes one read call: it may return fewer bytes than asked for, none at the end of the file, and EINTR.
	ReadAt(p []byte, off int64) (int, error)
	// Stat returns the open file's state, wherever its name points now.
	Stat() (Stamp, error)
	// Drop tells the system that a range will not be read again soon.
	Drop(off, size int64)
	Close() error
}

// Stamp tells whether a file has changed. Dev and Inode are zero where the system does not tell.
type Stamp struct {
	Size, ModifiedNanos int64
	Dev, Inode          uint64
}

// Mode says whether reads bypass the page cache.
type Mode uint8

// The modes.
const (
	Auto Mode = iota // where the file system allows it
	On               // an error where it does not
	Off
)

var modeNames = []string{"auto", "on", "off"}

func (m Mode) String() string { return modeNames[m] }

// ParseMode returns the mode called name.
func ParseMode(name string) (Mode, error) {
	for i, n := range modeNames {
		if n == name {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("%q is none of %s", name, strings.Join(modeNames, ", "))
}

// support says whether a file system takes direct reads of a file.
type support uint8

const (
	unknown support = iota
	no
	yes
)

// probeDirect opens path for direct reads and tries one. It returns the file if the answer is yes, and otherwise why it is not.
func probeDirect(open func(string, bool) (File, error), path string, size int64) (File, support, error) {
	f, err := open(path, true)
	switch {
	case refused(err):
		return nil, no, err
	case err != nil:
		return nil, unknown, err
	}
	mem, err := Arena(1, blockSize)
	if err != nil {
		return nil, unknown, errors.Join(err, f.Close())
	}
	defer mem.Close()
	off := min(size/2/blockSize*blockSize, 1<<20)
	for {
		_, err = f.ReadAt(mem.Slot(0), off)
		if !interrupted(err) {
			break
		}
	}
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return f, yes, nil
	case refused(err):
		return nil, no, errors.Join(err, f.Close())
	}
	return nil, unknown, errors.Join(err, f.Close())
}
