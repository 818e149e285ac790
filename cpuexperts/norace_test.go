//go:build !race

package cpuexperts

const raceEnabled = false
