package ledger

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// FS probes a Linux system through its /proc and /sys/fs/cgroup below fsys; os.DirFS("/") is the running one.
func FS(fsys fs.FS) Probe { return fsProbe{fsys} }

type fsProbe struct{ fsys fs.FS }

func (p fsProbe) Memory() (Memory, error) {
	data, err := fs.ReadFile(p.fsys, "proc/meminfo")
	if err != nil {
		return Memory{}, err
	}
	kib, ok := fields(data, ":")["MemAvailable"]
	if !ok {
		return Memory{}, fmt.Errorf("no MemAvailable in /proc/meminfo")
	}
	return Memory{Known: true, Available: kib << 10, Limits: p.limits()}, nil
}

// hierarchy is a mounted hierarchy of control groups with a memory controller.
type hierarchy struct {
	dir   string // of the process's own group
	mount string // the topmost that can be seen
	v1    bool
}

// limits returns every limit of the groups the process is in, from its own upwards. A system without control groups has none, and
// whatever cannot be read is no limit.
func (p fsProbe) limits() []Limit {
	var out []Limit
	for _, h := range p.hierarchies() {
		files, used, reclaim := []string{"memory.max", "memory.high"}, "memory.current", []string{"inactive_file", "active_file"}
		if h.v1 {
			files, used = []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes"
			reclaim = []string{"total_inactive_file", "total_active_file"}
		}
		for dir := h.dir; ; dir = path.Dir(dir) {
			for _, name := range files {
				limit, ok := p.number(path.Join(dir, name))
				if !ok || limit >= 1<<60 { // v1 writes "no limit" as a huge number
					continue
				}
				current, ok := p.number(path.Join(dir, used))
				if !ok {
					continue
				}
				group := strings.TrimPrefix(strings.TrimPrefix(dir, h.mount), "/")
				l := Limit{Name: fmt.Sprintf("%s of control group /%s", name, group), Max: limit, Used: current}
				data, _ := fs.ReadFile(p.fsys, path.Join(dir, "memory.stat"))
				stat := fields(data, " ")
				for _, key := range reclaim {
					l.Reclaimable += stat[key]
				}
				out = append(out, l)
			}
			if dir == h.mount || dir == "." {
				break
			}
		}
	}
	return out
}

// hierarchies finds the process's groups: /proc/self/cgroup names them from the root of each hierarchy, /proc/self/mountinfo says which
// part of a hierarchy is mounted where.
func (p fsProbe) hierarchies() []hierarchy {
	groups := map[bool]string{} // by v1
	data, _ := fs.ReadFile(p.fsys, "proc/self/cgroup")
	for line := range strings.SplitSeq(string(data), "\n") {
		id, rest, _ := strings.Cut(line, ":")
		controllers, group, ok := strings.Cut(rest, ":")
		switch {
		case !ok:
		case id == "0" && controllers == "":
			groups[false] = group
		case hasWord(controllers, "memory"):
			groups[true] = group
		}
	}
	var out []hierarchy
	data, _ = fs.ReadFile(p.fsys, "proc/self/mountinfo")
	for line := range strings.SplitSeq(string(data), "\n") {
		// 36 35 98:0 ROOT MOUNTPOINT OPTIONS [TAGS] - TYPE SOURCE SUPEROPTIONS
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		v1 := r[0] == "cgroup" && hasWord(r[2], "memory")
		group, member := groups[v1]
		if !member || !v1 && r[0] != "cgroup2" {
			continue
		}
		mount := strings.TrimPrefix(path.Clean(l[4]), "/")
		h := hierarchy{dir: mount, mount: mount, v1: v1}
		if inside, ok := below(group, l[3]); ok {
			h.dir = path.Join(mount, inside)
		}
		if _, err := fs.Stat(p.fsys, h.dir); err != nil {
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

// number reads a file that holds one number; "max" and nonsense are none.
func (p fsProbe) number(name string) (int64, bool) {
	data, err := fs.ReadFile(p.fsys, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return int64(min(n, math.MaxInt64)), err == nil
}

// fields reads lines of a key, a separator, spaces and a number.
func fields(data []byte, sep string) map[string]int64 {
	out := map[string]int64{}
	for line := range strings.SplitSeq(string(data), "\n") {
		key, rest, ok := strings.Cut(line, sep)
		values := strings.Fields(rest)
		if !ok || len(values) == 0 {
			continue
		}
		if n, err := strconv.ParseUint(values[0], 10, 52); err == nil { // a number of KiB whose bytes an int64 holds
			out[key] = int64(n)
		}
	}
	return out
}

func hasWord(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }
