//go:build linux || darwin

package disk

import "golang.org/x/sys/unix"

// Free returns the bytes that this user may still write to the file system of dir; ok is false if the system does not tell.
func Free(dir string) (bytes int64, ok bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true //nolint:unconvert // the types differ between systems
}
