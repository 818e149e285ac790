//go:build unix

package router

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockWait bounds the wait for another process, which holds the lock while it writes a file of some kilobytes.
const lockWait = 5 * time.Second

// lock keeps other processes from writing the file, which is made, empty, where there is none, until unlock is called. The lock is on what
// the name leads to: since a writer replaces the file, whoever got the lock looks whether the name still leads there.
func lock(path string) (unlock func(), err error) {
	for deadline := time.Now().Add(lockWait); ; {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			held, err := f.Stat()
			if err != nil {
				f.Close() //nolint:errcheck // nothing was written
				return nil, err
			}
			if now, err := os.Stat(path); err == nil && os.SameFile(held, now) {
				return func() { f.Close() }, nil //nolint:errcheck // closing unlocks
			}
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			f.Close() //nolint:errcheck // nothing was written
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		f.Close() //nolint:errcheck // nothing was written
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s: another process has had it locked for %v", path, lockWait)
		}
		time.Sleep(time.Millisecond)
	}
}
