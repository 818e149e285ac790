package engine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultThreads is the number of physical cores this process may use at once, with the reason: the affinity mask, one thread a core,
// limited by the cgroup's CPU quota.
func defaultThreads() (n int, why string) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return fallbackThreads()
	}
	cores := map[string]bool{}
	for cpu := range 8 * len(set) * 8 {
		if !set.IsSet(cpu) {
			continue
		}
		siblings, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
		if err != nil {
			siblings = []byte(strconv.Itoa(cpu))
		}
		cores[string(siblings)] = true
	}
	n, why = max(len(cores), 1), "physical cores in the affinity mask"
	if quota := cgroupCPUs(); quota < float64(n) {
		n, why = max(int(math.Floor(quota)), 1), "the cgroup's CPU quota"
	}
	return n, why
}

// cgroupCPUs is the tightest cgroup v2 CPU quota on the path to this process's group, in CPUs; +Inf without one.
func cgroupCPUs() float64 {
	quota := math.Inf(1)
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return quota
	}
	for line := range strings.Lines(string(data)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for dir := filepath.Join("/sys/fs/cgroup", group); ; dir = filepath.Dir(dir) {
			if limit, err := os.ReadFile(filepath.Join(dir, "cpu.max")); err == nil {
				quota = min(quota, parseCPUMax(string(limit)))
			}
			if dir == "/sys/fs/cgroup" || dir == "/" || dir == "." {
				break
			}
		}
	}
	return quota
}

// parseCPUMax reads a cpu.max file, "max 100000" or "150000 100000": quota and period in microseconds.
func parseCPUMax(s string) float64 {
	f := strings.Fields(s)
	if len(f) != 2 {
		return math.Inf(1)
	}
	q, err1 := strconv.ParseFloat(f[0], 64)
	p, err2 := strconv.ParseFloat(f[1], 64)
	if err1 != nil || err2 != nil || p <= 0 || q <= 0 {
		return math.Inf(1)
	}
	return q / p
}
