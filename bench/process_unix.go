//go:build unix

package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is the processor time that this process has taken, 0 if the system does not tell.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
