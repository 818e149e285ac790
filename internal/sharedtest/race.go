//go:build race

package sharedtest

// Race says that the race detector is on: it makes sync.Pool forget, so that what allocates nothing without it does with it.
const Race = true
