//go:build !race

package prefetcher

const raceEnabled = false
