//go:build linux || darwin

package convert

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// allocated returns the bytes the file at path takes on disk.
func allocated(path string) int64 {
	if st, err := os.Stat(path); err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			return sys.Blocks * 512
		}
	}
	return 0
}

// lock makes f this process's until it is closed, and fails if it is another's.
func lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// syncDir makes the names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
