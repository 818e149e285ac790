package ledger

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/coli-moe/coli/internal/cgroup"
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

// limits returns every limit of the groups the process is in, from its own upwards. A system without control groups has none, and
// whatever cannot be read is no limit.
func (p fsProbe) limits() []Limit {
	var out []Limit
	for _, dir := range cgroup.Dirs(p.fsys, "memory") {
		files, used, reclaim := []string{"memory.max", "memory.high"}, "memory.current", []string{"inactive_file", "active_file"}
		if dir.V1 {
			files, used = []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes"
			reclaim = []string{"total_inactive_file", "total_active_file"}
		}
		for _, name := range files {
			limit, ok := cgroup.Number(p.fsys, path.Join(dir.Path, name))
			if !ok || limit >= 1<<60 { // v1 writes "no limit" as a huge number
				continue
			}
			current, ok := cgroup.Number(p.fsys, path.Join(dir.Path, used))
			if !ok {
				continue
			}
			l := Limit{Name: fmt.Sprintf("%s of control group %s", name, dir.Name), Max: limit, Used: current}
			data, _ := fs.ReadFile(p.fsys, path.Join(dir.Path, "memory.stat"))
			stat := fields(data, " ")
			for _, key := range reclaim {
				l.Reclaimable += stat[key]
			}
			out = append(out, l)
		}
	}
	return out
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
