//go:build !linux

package engine

// ResidentBytes is this process's resident memory; 0 where unknown.
func ResidentBytes() int64 { return 0 }
