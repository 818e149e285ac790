package engine

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// ResidentBytes is this process's resident memory, mapped file pages included; 0 where unknown.
func ResidentBytes() int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(data))
	if len(f) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// availableBytes is the kernel's estimate of memory that can be used without swapping (MemAvailable); 0 where unknown.
func availableBytes() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	_, rest, ok := bytes.Cut(data, []byte("MemAvailable:"))
	if !ok {
		return 0
	}
	f := bytes.Fields(rest)
	if len(f) == 0 {
		return 0
	}
	kib, err := strconv.ParseInt(string(f[0]), 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}
