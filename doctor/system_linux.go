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
	s.Free = func(dir string) (int64, error) {
		var st unix.Statfs_t
		err := unix.Statfs(existing(dir), &st)
		return int64(st.Bavail) * st.Bsize, err //nolint:unconvert // the types differ between architectures
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
