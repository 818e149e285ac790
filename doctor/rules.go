package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/internal/cgroup"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
)

const noTell = "%s does not tell"

// size prints bytes.
func size(n int64) string { return ledger.FormatSize(n) }

// text is what a small file says, "" if it cannot be read.
func (s *System) text(name string) string {
	if s.Root == nil {
		return ""
	}
	data, err := fs.ReadFile(s.Root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// meminfo is a line of /proc/meminfo, in bytes; numbers that are none (pages of HugePages_Total) are counted as they are.
func (s *System) meminfo(key string) (n int64, ok bool) {
	for line := range strings.Lines(s.text("proc/meminfo") + "\n") {
		name, rest, _ := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if name != key || len(f) == 0 {
			continue
		}
		n, err := strconv.ParseInt(f[0], 10, 53)
		if len(f) > 1 && f[1] == "kB" {
			n <<= 10
		}
		return n, err == nil
	}
	return 0, false
}

// processor is about instruction sets.
func (s *System) processor() []Check {
	const name = "processor"
	features := "no features that kernels use"
	if len(s.Features) > 0 {
		features = strings.Join(s.Features, " ")
	}
	found := fmt.Sprintf("%s kernels; %s/%s, %s", s.ISA, s.OS, s.Arch, features)
	switch {
	case s.ISALimit != "":
		return []Check{ok(name, "%s; COLI_CPU=%s", found, s.ISALimit)}
	case s.ISA == "generic" && s.Arch == "amd64":
		return []Check{no(name, "a processor with AVX2, FMA and F16C is ten times as fast; a virtual machine may have to be told to show them", "%s", found)}
	case s.ISA == "generic":
		return []Check{no(name, "there is assembly for amd64 alone yet", "%s", found)}
	}
	return []Check{ok(name, "%s", found)}
}

// cores is about where threads may run.
func (s *System) cores() []Check {
	const name = "cores"
	if s.Threads == nil {
		return []Check{unknown(name, noTell, s.OS)}
	}
	n, why := s.Threads()
	found := fmt.Sprintf("threads: %d (%s)", n, why)
	if s.Processors == nil || s.Root == nil {
		return []Check{unknown(name, "%s; where they may run is not known", found)}
	}
	mine, err := s.Processors()
	if err != nil {
		return []Check{unknown(name, "%s; where they may run: %v", found, err)}
	}
	all := online(s.text("sys/devices/system/cpu/online"))
	cores, told := map[string]bool{}, true
	for _, cpu := range mine {
		siblings := s.text(fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
		told = told && siblings != ""
		cores[cmp.Or(siblings, strconv.Itoa(cpu))] = true
	}
	if told {
		found += fmt.Sprintf("; physical cores: %d", len(cores))
	}
	found += fmt.Sprintf("; processors: %d", len(mine))
	if all > 0 {
		found += fmt.Sprintf(" of %d", all)
	}
	quota, group := cgroup.CPUs(s.Root)
	switch {
	case quota < float64(n):
		return []Check{no(name, fmt.Sprintf("raise the quota, or give --threads %d: threads that wait for their turn slow all others", max(int(quota), 1)),
			"%s; control group %s allows %.3g processors", found, group, quota)}
	case !math.IsInf(quota, 1) && quota < float64(len(cores)):
		return []Check{no(name, "raise the quota to use all cores", "%s; control group %s allows %.3g processors", found, group, quota)}
	case all > len(mine):
		return []Check{no(name, "taskset, numactl or a container's --cpuset-cpus lets coli use the others too", "%s", found)}
	}
	return []Check{ok(name, "%s", found)}
}

// online counts a list of ranges, "0-3,8".
func online(list string) (n int) {
	for r := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(r, "-")
		a, err := strconv.Atoi(from)
		b := a
		if err == nil && ranged {
			b, err = strconv.Atoi(to)
		}
		if err != nil || b < a {
			return 0
		}
		n += b - a + 1
	}
	return n
}

// leastMemory is what the built-in model needs, with layer state and experts in memory.
const leastMemory = 48 << 20

// memory is about what may be used of it.
func (s *System) memory() []Check {
	const name = "memory"
	if s.Root == nil {
		return []Check{unknown(name, noTell, s.OS)}
	}
	l, err := ledger.New(ledger.FS(s.Root))
	if err != nil {
		return []Check{no(name, "mount /proc", "%v", err).stops()}
	}
	total, _ := s.meminfo("MemTotal")
	budget, _ := l.Budget()
	found := fmt.Sprintf("%s in all; models may use %v", size(total), l)
	if budget < leastMemory {
		return []Check{no(name, "end other programs, or raise the limit of the control group", "%s", found).stops()}
	}
	return []Check{ok(name, "%s", found)}
}

// limits are those of control groups.
func (s *System) limits() []Check {
	const name = "memory limits"
	if s.Root == nil {
		return []Check{unknown(name, noTell, s.OS)}
	}
	m, err := ledger.FS(s.Root).Memory()
	switch {
	case err != nil && s.text("proc/self/cgroup") == "":
		return []Check{unknown(name, "no /proc tells of control groups")}
	case len(m.Limits) == 0:
		return []Check{ok(name, "no control group limits memory")}
	}
	total, _ := s.meminfo("MemTotal")
	var all []string
	tight := false
	for _, x := range m.Limits {
		all = append(all, fmt.Sprintf("%s is %s, %s used, of it %s pages of files", x.Name, size(x.Max), size(x.Used), size(x.Reclaimable)))
		tight = tight || x.Max < total
	}
	found := strings.Join(all, "; ")
	if tight {
		return []Check{no(name, "coli stays below it; raise it (systemd's MemoryMax, docker's --memory) to hold more experts", "%s", found)}
	}
	return []Check{ok(name, "%s", found)}
}

// swap is about memory that is none.
func (s *System) swap() []Check {
	const name = "swap"
	total, known := s.meminfo("SwapTotal")
	free, _ := s.meminfo("SwapFree")
	switch used := total - free; {
	case !known:
		return []Check{unknown(name, noTell, s.OS)}
	case total == 0:
		return []Check{ok(name, "none")}
	case used > total/2:
		return []Check{no(name, "end other programs: experts that are swapped out are slower than experts on disk", "%s of %s are used", size(used), size(total))}
	default:
		return []Check{ok(name, "%s of %s are used", size(used), size(total))}
	}
}

// hugePages is about pages of 2 MiB, which experts are read into.
func (s *System) hugePages() []Check {
	const name, dir = "huge pages", "sys/kernel/mm/transparent_hugepage/"
	mode := chosen(s.text(dir + "enabled"))
	var out Check
	switch mode {
	case "always", "madvise":
		out = ok(name, "transparent: %s", mode)
		if defrag := chosen(s.text(dir + "defrag")); defrag != "" {
			out.Found += ", defrag " + defrag
		}
	case "never":
		out = no(name, "echo madvise | sudo tee /"+dir+"enabled: reads from disk cost a half to an eighth of the processor time then", "transparent: never")
	default:
		out = unknown(name, "the system does not tell")
	}
	pages, _ := s.meminfo("HugePages_Total")
	each, _ := s.meminfo("Hugepagesize")
	if bytes := pages * each; bytes > 0 {
		out.Found += fmt.Sprintf("; %s are reserved for explicit ones", size(bytes))
		out.Todo = cmp.Or(out.Todo, "coli uses none of the reserved ones: sudo sysctl vm.nr_hugepages=0 gives them back, unless another program needs them")
	}
	return []Check{out}
}

// chosen is the word in brackets: "always [madvise] never".
func chosen(list string) string {
	_, rest, _ := strings.Cut(list, "[")
	word, _, ok := strings.Cut(rest, "]")
	if !ok {
		return ""
	}
	return word
}

func (s *System) memoryRate(ctx context.Context, o Options) []Check {
	const name = "memory rate"
	switch {
	case o.Quick:
		return []Check{unknown(name, "not measured (--quick)")}
	case s.MemoryRate == nil || s.Threads == nil:
		return []Check{unknown(name, noTell, s.OS)}
	}
	n, _ := s.Threads()
	rate, err := s.MemoryRate(ctx, n)
	if err != nil {
		return []Check{unknown(name, "%v", err)}
	}
	return []Check{ok(name, "%.1f GB/s, read with %d threads", rate/1e9, n)}
}

// files is about where coli writes, and about the model that was asked about.
func (s *System) files() []Check {
	var out []Check
	if s.Model != "" && s.Files != nil {
		files, err := s.Files(s.Model)
		if err != nil {
			out = append(out, no("model", "name one that is there and whole", "%v", err).stops())
		} else {
			out = append(out, ok("model", "%s: %d file(s)", s.Model, len(files)))
		}
	}
	const name = "cache folder"
	if s.CacheDir == nil {
		return append(out, unknown(name, noTell, s.OS))
	}
	dir, err := s.CacheDir()
	if err == nil && s.Writable != nil {
		err = s.Writable(dir)
	}
	const todo = "set COLI_CACHE_DIR to a folder that coli may write to: the built-in model, pipelines of devices and histories go there"
	if err != nil {
		return append(out, no(name, todo, "%v", err))
	}
	found := dir
	if s.Free != nil {
		if free, told := s.Free(dir); told {
			found += ", " + size(free) + " free"
			if free < 64<<20 {
				return append(out, no(name, "free some space, or "+todo, "%s", found))
			}
		}
	}
	return append(out, ok(name, "%s", found))
}

// where is the path that the drive is looked for below, and what it is.
func (s *System) where() (at, what string) {
	if s.Model != "" {
		return s.Model, "the model"
	}
	if s.CacheDir != nil {
		if dir, err := s.CacheDir(); err == nil {
			return dir, "the cache folder"
		}
	}
	return "", ""
}

// drive is about what is below the model.
func (s *System) drive() []Check {
	const name = "drive"
	at, what := s.where()
	if at == "" || s.Drive == nil {
		return []Check{unknown(name, noTell, s.OS)}
	}
	l, err := s.Drive(at)
	system := cmp.Or(l.Filesystem, "of unknown type")
	if err != nil {
		if errors.Is(err, probe.ErrNoDrive) {
			c := unknown(name, "below %s: file system %s, and no drive is known below it", what, system)
			if l.Filesystem != "" {
				c.Todo = "experts stream best from a local NVMe drive; a network's or a container's file system may be slower than the rate below says"
			}
			return []Check{c}
		}
		return []Check{unknown(name, "below %s: %v", what, err)}
	}
	var all []string
	rotates := false
	for _, d := range l.Disks {
		text := d.Name
		if d.Model != "" {
			text += " (" + d.Model + ")"
		}
		queue := path.Join("sys/block", d.Name, "queue")
		if x := chosen(s.text(path.Join(queue, "scheduler"))); x != "" {
			text += ", scheduler " + x
		}
		if x := s.text(path.Join(queue, "read_ahead_kb")); x != "" {
			text += ", read-ahead " + x + " KiB"
		}
		all = append(all, text)
		rotates = rotates || d.Rotational && !strings.HasPrefix(d.Model, "virtio") // a virtual drive says so whatever is below it
	}
	found := fmt.Sprintf("below %s: %s, file system %s", what, strings.Join(all, "; "), system)
	if rotates {
		return []Check{no(name, "move the model to a solid-state drive: a drive that seeks reads some MB/s of experts", "%s; it rotates", found)}
	}
	return []Check{ok(name, "%s", found)}
}

// The reads that a drive's rate is measured with: about an expert's.
const readSize = 2 << 20

// driveRate is about how fast experts can come, and whether past the page cache.
func (s *System) driveRate(ctx context.Context, o Options) []Check {
	const name = "drive rate"
	switch {
	case o.Quick:
		return []Check{unknown(name, "not measured (--quick)")}
	case s.DriveRate == nil || s.Files == nil:
		return []Check{unknown(name, noTell, s.OS)}
	}
	files, err := s.Files(s.Model)
	if err != nil || len(files) == 0 {
		c := unknown(name, "there is no file to read")
		if s.Model == "" {
			c.Todo = "give a model with -m to have its drive measured"
		}
		return []Check{c}
	}
	const readers = prefetcher.DefaultReaders
	rate, err := s.DriveRate(ctx, files, readSize, readers)
	switch {
	case errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported):
		return []Check{no(name, "experts are read through the page cache, at half the rate and more; put the model on a file system with direct I/O (ext4, xfs, btrfs)",
			"the file system refuses direct reads")}
	case err != nil:
		return []Check{unknown(name, "%v", err)}
	}
	found := fmt.Sprintf("%.2f GB/s by direct reads of %s at random places, %d at a time", rate/1e9, size(readSize), readers)
	if rate < 200e6 {
		return []Check{no(name, "put the model on an NVMe drive: a model whose experts stream waits for this one", "%s", found)}
	}
	return []Check{ok(name, "%s", found)}
}

// rlimits are those of the process.
func (s *System) rlimits() []Check {
	var out []Check
	const locked, open = "locked memory", "open files"
	if s.Locked == nil {
		out = append(out, unknown(locked, noTell, s.OS))
	} else if n, err := s.Locked(); err != nil {
		out = append(out, unknown(locked, "%v", err))
	} else {
		out = append(out, ok(locked, "at most %s; coli locks none, device drivers may", limit(n, func(n uint64) string { return size(int64(n)) })))
	}
	if s.OpenFiles == nil {
		return append(out, unknown(open, noTell, s.OS))
	}
	n, err := s.OpenFiles()
	const least = 256 // a model in many parts, twice, and the rest
	switch {
	case err != nil:
		return append(out, unknown(open, "%v", err))
	case n < least:
		return append(out, no(open, "ulimit -n 1024: a model may have more than a hundred files, each opened twice", "at most %d", n))
	}
	return append(out, ok(open, "at most %s", limit(n, func(n uint64) string { return strconv.FormatUint(n, 10) })))
}

// limit prints a resource limit.
func limit(n uint64, format func(uint64) string) string {
	if n >= math.MaxInt64 {
		return "unlimited"
	}
	return format(n)
}

// probing passes on what the probe of block I/O says of itself.
func (s *System) probing() (out []Check) {
	if s.Probe == nil {
		return []Check{unknown("block I/O probe", noTell, s.OS)}
	}
	for _, f := range s.Probe() {
		status := map[probe.Status]Status{probe.Yes: OK, probe.No: No}[f.Status]
		out = append(out, Check{Name: f.Name, Status: cmp.Or(status, Unknown), Found: f.Detail, Todo: f.Todo})
	}
	return out
}

// devices is about Vulkan.
func (s *System) devices() []Check {
	const loader, name = "Vulkan", "device"
	if s.Devices == nil {
		return []Check{unknown(loader, noTell, s.OS)}
	}
	all, err := s.Devices()
	switch {
	case errors.Is(err, device.ErrNoLoader) || errors.Is(err, device.ErrNoDevice):
		found, todo, _ := strings.Cut(err.Error(), "; ")
		return []Check{no(loader, cmp.Or(todo, "install the card's driver"), "%s: the CPU runs everything", found)}
	case err != nil:
		return []Check{unknown(loader, "%v", err)}
	}
	out := []Check{ok(loader, "%d device(s)", len(all))}
	for _, d := range all {
		at := fmt.Sprintf("%s %d", name, d.Index)
		found := fmt.Sprintf("%s, %s, %s of memory, Vulkan %s, %s", d.Name, d.Type, size(d.Memory), d.API, d.Driver)
		switch {
		case d.Missing != "":
			out = append(out, no(at, "install a newer driver", "%s; it lacks %s", found, d.Missing))
		case d.Type != device.Discrete:
			c := ok(at, "%s", found)
			c.Todo = fmt.Sprintf("no card of its own: it is used if it is asked for (--device %d)", d.Index)
			out = append(out, c)
		default:
			out = append(out, ok(at, "%s", found))
		}
	}
	if !slices.ContainsFunc(all, func(d device.Info) bool { return d.Missing == "" }) {
		out[0].Status, out[0].Found = No, out[0].Found+", none that coli can use"
	}
	return out
}
