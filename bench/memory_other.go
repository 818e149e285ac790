//go:build !linux

package bench

func resetPeak() {}

func peakResident() int64 { return 0 }
