// Package cgroup finds the Linux control groups that a process is in, of version 1 and 2, and reads what they say. What their limits mean
// for memory is package ledger's matter.
package cgroup

import (
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Dir is the folder of a group.
type Dir struct {
	Path string // in the file system
	Name string // of the group, from the topmost that can be seen: "/user.slice", "/"
	V1   bool
}

// Dirs returns the groups of the process with a controller ("memory", "cpu"), from its own upwards, hierarchy by hierarchy. fsys is the root of
// the system; without control groups there are none.
func Dirs(fsys fs.FS, controller string) (out []Dir) {
	for _, h := range hierarchies(fsys, controller) {
		for dir := h.dir; ; dir = path.Dir(dir) {
			out = append(out, Dir{dir, "/" + strings.TrimPrefix(strings.TrimPrefix(dir, h.mount), "/"), h.v1})
			if dir == h.mount || dir == "." {
				break
			}
		}
	}
	return out
}

// hierarchy is a mounted hierarchy of control groups with the controller.
type hierarchy struct {
	dir   string // of the process's own group
	mount string // the topmost that can be seen
	v1    bool
}

// hierarchies finds the process's groups: /proc/self/cgroup names them from the root of each hierarchy, /proc/self/mountinfo says which
// part of a hierarchy is mounted where.
func hierarchies(fsys fs.FS, controller string) []hierarchy {
	groups := map[bool]string{} // by v1
	data, _ := fs.ReadFile(fsys, "proc/self/cgroup")
	for line := range strings.SplitSeq(string(data), "\n") {
		id, rest, _ := strings.Cut(line, ":")
		controllers, group, ok := strings.Cut(rest, ":")
		switch {
		case !ok:
		case id == "0" && controllers == "":
			groups[false] = group
		case hasWord(controllers, controller):
			groups[true] = group
		}
	}
	var out []hierarchy
	data, _ = fs.ReadFile(fsys, "proc/self/mountinfo")
	for line := range strings.SplitSeq(string(data), "\n") {
		// 36 35 98:0 ROOT MOUNTPOINT OPTIONS [TAGS] - TYPE SOURCE SUPEROPTIONS
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		v1 := r[0] == "cgroup" && hasWord(r[2], controller)
		group, member := groups[v1]
		if !member || !v1 && r[0] != "cgroup2" {
			continue
		}
		mount := strings.TrimPrefix(path.Clean(l[4]), "/")
		h := hierarchy{dir: mount, mount: mount, v1: v1}
		if inside, ok := below(group, l[3]); ok {
			h.dir = path.Join(mount, inside)
		}
		if _, err := fs.Stat(fsys, h.dir); err != nil {
			h.dir = mount
		}
		out = append(out, h)
	}
	return out
}

// below returns group relative to root.
func below(group, root string) (string, bool) {
	group, root = path.Clean(group), path.Clean(root)
	if root == "/" {
		return strings.TrimPrefix(group, "/"), true
	}
	rest, ok := strings.CutPrefix(group, root)
	return strings.TrimPrefix(rest, "/"), ok && (rest == "" || rest[0] == '/')
}

func hasWord(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }

// Number reads a file that holds one number; "max" and nonsense are none.
func Number(fsys fs.FS, name string) (int64, bool) {
	data, err := fs.ReadFile(fsys, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return int64(min(n, math.MaxInt64)), err == nil
}

// CPUs is the tightest quota of processor time that the process's groups have, in processors, and the group's name; +Inf without one.
func CPUs(fsys fs.FS) (quota float64, group string) {
	quota = math.Inf(1)
	for _, d := range Dirs(fsys, "cpu") {
		var text string
		if d.V1 {
			runs, ok1 := Number(fsys, path.Join(d.Path, "cpu.cfs_quota_us")) // -1 for none
			period, ok2 := Number(fsys, path.Join(d.Path, "cpu.cfs_period_us"))
			if !ok1 || !ok2 {
				continue
			}
			text = strconv.FormatInt(runs, 10) + " " + strconv.FormatInt(period, 10)
		} else {
			data, _ := fs.ReadFile(fsys, path.Join(d.Path, "cpu.max"))
			text = string(data)
		}
		if q := parseQuota(text); q < quota {
			quota, group = q, d.Name
		}
	}
	return quota, group
}

// parseQuota reads quota and period in microseconds, "max 100000" or "150000 100000".
func parseQuota(s string) float64 {
	f := strings.Fields(s)
	if len(f) != 2 {
		return math.Inf(1)
	}
	q, err1 := strconv.ParseFloat(f[0], 64)
	p, err2 := strconv.ParseFloat(f[1], 64)
	if err1 != nil || err2 != nil || !(p > 0) || !(q > 0) {
		return math.Inf(1)
	}
	return q / p
}
