package actors

import (
	"os"

	"golang.org/x/sys/unix"
)

// LowTimerSlack lets short sleeps of the process's threads end on time. A goroutine that is woken while its waker computes on is taken
// over by another thread only after a sleep of 3 µs, which Linux stretches by the timer slack, 50 µs by default: with the slack at 1 ns it
// starts after 19 µs instead of 71. New threads inherit the slack of the thread that makes them. Failing is harmless and not reported.
func LowTimerSlack() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // the thread this runs on, where /proc is not to be written
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		_ = os.WriteFile("/proc/self/task/"+t.Name()+"/timerslack_ns", []byte("1"), 0)
	}
}
