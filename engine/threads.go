package engine

import "runtime"

// fallbackThreads is used where the operating system does not tell more.
func fallbackThreads() (n int, why string) {
	return runtime.GOMAXPROCS(0), "processors the runtime sees"
}
