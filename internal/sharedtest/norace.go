//go:build !race

package sharedtest

// Race says that the race detector is on.
const Race = false
