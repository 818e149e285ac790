//go:build !linux

package kernels

// systemCaches is not asked of these systems.
func systemCaches() int64 { return 0 }
