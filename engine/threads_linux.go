package engine

import (
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coli-moe/coli/internal/cgroup"
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
	if quota, group := cgroup.CPUs(os.DirFS("/")); quota < float64(n) {
		n, why = max(int(math.Floor(quota)), 1), "the CPU quota of control group "+group
	}
	return n, why
}
