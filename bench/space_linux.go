package bench

import "golang.org/x/sys/unix"

// freeSpace returns how many bytes a file in dir may have; ok is false if the system does not tell.
func freeSpace(dir string) (bytes int64, ok bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, false
	}
	return int64(st.Bavail) * st.Bsize, true
}
