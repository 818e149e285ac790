package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func drive(sys, path string) (Location, error) {
	var l Location
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &st); err != nil {
		return l, fmt.Errorf("%s: %w", path, err)
	}
	major, minor := st.Dev_major, st.Dev_minor
	var source string
	if table, err := os.ReadFile("/proc/self/mountinfo"); err == nil && st.Mask&unix.STATX_MNT_ID != 0 {
		l.Filesystem, source = mount(string(table), st.Mnt_id)
	}
	if major == 0 && strings.HasPrefix(source, "/") { // btrfs and others give their files numbers of their own
		var of unix.Stat_t
		if unix.Stat(source, &of) == nil && of.Mode&unix.S_IFMT == unix.S_IFBLK {
			major, minor = unix.Major(of.Rdev), unix.Minor(of.Rdev)
		}
	}
	return below(sys, path, major, minor, l)
}

// mount finds the line of /proc/self/mountinfo with an id: "36 35 98:0 /root /mount options [optional …] - type source superoptions".
func mount(table string, id uint64) (filesystem, source string) {
	prefix := fmt.Sprintf("%d ", id)
	for line := range strings.Lines(table) {
		if _, after, ok := strings.Cut(line, " - "); ok && strings.HasPrefix(line, prefix) {
			if f := strings.Fields(after); len(f) >= 2 {
				return f[0], f[1]
			}
		}
	}
	return "", ""
}

// below completes l with the drives below a block device.
func below(sys, path string, major, minor uint32, l Location) (Location, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(sys, "dev", "block", fmt.Sprintf("%d:%d", major, minor)))
	if errors.Is(err, os.ErrNotExist) {
		return l, fmt.Errorf("%s (file system %s, device %d:%d): %w", path, l.Filesystem, major, minor, ErrNoDrive)
	} else if err != nil {
		return l, fmt.Errorf("%s: %w", path, err)
	}
	seen := map[string]bool{}
	l.Disks = leaves(nil, dir, seen)
	if len(l.Disks) == 0 {
		return l, fmt.Errorf("%s (device %s): %w", path, filepath.Base(dir), ErrNoDrive)
	}
	l.Disk = l.Disks[0]
	if whole := wholeDisk(dir); len(slaves(whole)) > 0 {
		l.Volume = filepath.Base(whole)
	}
	return l, nil
}

// leaves appends the whole drives below the device of a folder in /sys.
func leaves(disks []Disk, dir string, seen map[string]bool) []Disk {
	dir = wholeDisk(dir)
	if seen[dir] {
		return disks
	}
	seen[dir] = true
	lower := slaves(dir)
	if len(lower) == 0 {
		return append(disks, diskIn(dir))
	}
	for _, dir := range lower {
		disks = leaves(disks, dir, seen)
	}
	return disks
}

// wholeDisk is the folder of the drive that a partition is of.
func wholeDisk(dir string) string {
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		return filepath.Dir(dir)
	}
	return dir
}

func slaves(dir string) (dirs []string) {
	entries, _ := os.ReadDir(filepath.Join(dir, "slaves"))
	for _, e := range entries {
		if to, err := filepath.EvalSymlinks(filepath.Join(dir, "slaves", e.Name())); err == nil {
			dirs = append(dirs, to)
		}
	}
	return dirs
}
