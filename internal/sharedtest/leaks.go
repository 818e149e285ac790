package sharedtest

import (
	"runtime"
	"testing"
	"time"
)

// Leaks fails the test if, once all else is cleaned up, there are goroutines that were not there when it was called.
func Leaks(t testing.TB) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<20)
				t.Errorf("%d goroutines are left of %d:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
				return
			}
		}
	})
}
