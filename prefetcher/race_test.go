//go:build race

package prefetcher

// raceEnabled: the race detector makes sync.Pool forget.
const raceEnabled = true
