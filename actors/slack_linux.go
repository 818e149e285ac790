package actors

import (
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// LowTimerSlack lets short sleeps of the process's threads end on time. A goroutine that is woken while its waker computes on is taken
// over by another thread only after a sleep of 3 µs, which Linux stretches by the timer slack, 50 µs by default: with a slack of 1 ns it
// starts after 19 µs instead of 71. New threads inherit the slack of the thread that makes them, so once in a process is enough; more
// calls do nothing. Failing is harmless and not reported.
func LowTimerSlack() { lowTimerSlack() }

var lowTimerSlack = sync.OnceFunc(func() {
	threads, err := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		if e := os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", []byte("1"), 0); e != nil {
			err = e
		}
	}
	if err != nil {
		eachThread(len(threads), func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) })
	}
})

// eachThread calls f on n threads at least: without CAP_SYS_NICE a thread sets only its own slack. A goroutine that is locked to a thread
// keeps it while it waits for the others, so that n of them take all n threads of the runtime that run nothing else. The first to lock is
// the caller, after f: that makes the thread from which all threads come that the runtime needs while a locked one asks for them.
func eachThread(n int, f func()) {
	f()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var called, left sync.WaitGroup
	called.Add(n)
	all := make(chan struct{})
	for range n {
		left.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			f()
			called.Done()
			<-all
		})
	}
	called.Wait()
	close(all)
	left.Wait()
}
