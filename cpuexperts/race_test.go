//go:build race

package cpuexperts

// raceEnabled: the race detector makes sync.Pool forget.
const raceEnabled = true
