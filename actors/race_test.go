//go:build race

package actors

// raceEnabled: the race detector makes sync.Pool forget.
const raceEnabled = true
