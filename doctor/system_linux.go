package doctor

import (
	"os"

	"golang.org/x/sys/unix"
)

// fill adds what Linux tells.
func (s *System) fill() {
	s.Root = os.DirFS("/")
	s.Processors = func() (cpus []int, err error) {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			return nil, err
		}
		for cpu := range 64 * len(set) {
			if set.IsSet(cpu) {
				cpus = append(cpus, cpu)
			}
		}
		return cpus, nil
	}
	limit := func(resource int) func() (uint64, error) {
		return func() (uint64, error) {
			var r unix.Rlimit
			err := unix.Getrlimit(resource, &r)
			return r.Cur, err
		}
	}
	s.Locked, s.OpenFiles = limit(unix.RLIMIT_MEMLOCK), limit(unix.RLIMIT_NOFILE)
}
