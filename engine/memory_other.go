//go:build !linux

package engine

// ResidentBytes is this process's resident memory; 0 where unknown.
func ResidentBytes() int64 { return 0 }

// availableBytes is the memory that can be used without swapping; 0 where unknown.
func availableBytes() int64 { return 0 }
