//go:build !linux

package engine

func defaultThreads() (n int, why string) { return fallbackThreads() }
