package engine

import "runtime"

// MaxThreads is more than any machine has. Idle threads watch for work before they park, so a mistyped number would stall the machine.
const MaxThreads = 1024

// fallbackThreads is used where the operating system does not tell more.
func fallbackThreads() (n int, why string) {
	return runtime.GOMAXPROCS(0), "processors the runtime sees"
}

// DefaultThreads is how many threads a model computes with unless Options say another number, and what decided it.
func DefaultThreads() (n int, why string) { return defaultThreads() }
