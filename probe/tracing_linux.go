//go:build linux && (amd64 || arm64)

package probe

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

//go:generate go tool bpf2go -tags linux -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -mcpu=v3" -type ops block bpf/block.c

// The sizes of the programs' arrays: DRIVES and SETS of bpf/block.c.
const (
	maxDrives = 16
	tableSets = 1024
)

// initPidNS is the inode of the machine's own pid namespace (PROC_PID_INIT_INO of include/linux/proc_ns.h).
const initPidNS = 0xeffffffc

// A request counts as lost when it has been with the drive for overdue, or for idleOverdue if it is a read while the program, whose
// reads are observed, has none outstanding.
const (
	overdue     = 2 * time.Second
	idleOverdue = 250 * time.Millisecond
)

var errTracepoint = errors.New("no tracepoint")

// tracing is the programs of bpf/block.c at work, and their memory. The owner's lock is held around its methods.
type tracing struct {
	programs []*ebpf.Program
	at       []string    // their tracepoints, the first of a request first
	links    []link.Link // closing one detaches its program, as does losing it to the garbage collector
	maps     [2]*ebpf.Map
	mapped   [2][]byte

	table     *[tableSets]blockSet
	drives    *[maxDrives]blockDrive
	untracked *uint64
	stats     []blockStat // by processor and drive

	disks   [maxDrives]Disk      // known once the programs have named them
	overdue [maxDrives][2]uint64 // reads and writes that were counted as lost for their age
}

// programSets are the programs to attach, newest kernels first, and in each what makes entries last, so that whatever has one is seen to its
// end.
var programSets = [...][]string{
	{blockProgDone, blockProgIssue, blockProgMerge, blockProgStart},
	{blockProgComplete, blockProgMerge, blockProgIssueFirst, blockProgInsert}, // before Linux 6.5
}

func attachTracing() (*tracing, error) {
	spec, err := loadBlock()
	if err != nil {
		return nil, err
	}
	return attachSpec(spec)
}

func attachSpec(spec *ebpf.CollectionSpec) (_ *tracing, err error) {
	if err := identify(spec); err != nil {
		return nil, err
	}
	programs, err := choose(spec)
	if err != nil {
		return nil, err
	}
	processors, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("number of processors: %v", err)
	}
	spec.Maps[blockMapStats].MaxEntries = uint32(processors * maxDrives)
	all, err := ebpf.NewCollection(spec)
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("bpf: %w", os.ErrPermission) // the library's own text suspects RLIMIT_MEMLOCK, which no longer matters
	} else if err != nil {
		return nil, err
	}
	defer all.Close()
	t := &tracing{}
	defer func() {
		if err != nil {
			_ = t.close()
		}
	}()
	for i, name := range []string{".bss", blockMapStats} {
		t.maps[i] = all.DetachMap(name)
		size := int(t.maps[i].ValueSize()*t.maps[i].MaxEntries()+uint32(os.Getpagesize())-1) &^ (os.Getpagesize() - 1)
		if t.mapped[i], err = unix.Mmap(t.maps[i].FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			return nil, fmt.Errorf("map %s: %w", name, err)
		}
	}
	globals := func(name string) unsafe.Pointer { return unsafe.Pointer(&t.mapped[0][spec.Variables[name].Offset]) }
	t.table = (*[tableSets]blockSet)(globals(blockVarTable))
	t.drives = (*[maxDrives]blockDrive)(globals(blockVarDrives))
	t.untracked = (*uint64)(globals(blockVarUntracked))
	t.stats = unsafe.Slice((*blockStat)(unsafe.Pointer(&t.mapped[1][0])), processors*maxDrives)

	for _, name := range programs {
		t.programs = append(t.programs, all.DetachProgram(name))
		t.at = append([]string{spec.Programs[name].AttachTo}, t.at...)
	}
	return t, t.attach()
}

func (t *tracing) attach() error {
	for _, p := range t.programs {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return err
		}
		t.links = append(t.links, l)
	}
	return nil
}

func (t *tracing) detach() error {
	var errs []error
	for _, l := range t.links {
		errs = append(errs, l.Close())
	}
	t.links = nil
	return errors.Join(errs...)
}

// choose leaves in spec the first set of programs that the kernel has the tracepoints for, and returns their names.
func choose(spec *ebpf.CollectionSpec) (programs []string, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, err
	}
	var missing string
	for _, programs := range programSets {
		if missing = missingTracepoint(kernel, spec, programs); missing == "" {
			maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(programs, name) })
			return programs, nil
		}
	}
	return nil, fmt.Errorf("%w %s", errTracepoint, missing)
}

// missingTracepoint looks for the types that the kernel has for programs at tracepoints.
func missingTracepoint(kernel *btf.Spec, spec *ebpf.CollectionSpec, programs []string) string {
	for _, name := range programs {
		at := spec.Programs[name].AttachTo
		if _, err := kernel.AnyTypesByName("btf_trace_" + at); err != nil {
			return at
		}
	}
	return ""
}

// identify tells the programs which process is this one. In a container its number is the namespace's, which the kernel compares if it is
// told the namespace; outside, the plain number is cheaper.
func identify(spec *ebpf.CollectionSpec) error {
	var ns unix.Stat_t // of zeros on a kernel without namespaces
	if err := unix.Stat("/proc/self/ns/pid", &ns); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("/proc/self/ns/pid: %w", err)
	}
	dev, ino := uint64(unix.Major(ns.Dev))<<20|uint64(unix.Minor(ns.Dev)), ns.Ino
	if ino == initPidNS {
		ino = 0
	}
	return errors.Join(
		spec.Variables[blockVarTgid].Set(uint32(os.Getpid())),
		spec.Variables[blockVarPidnsDev].Set(dev),
		spec.Variables[blockVarPidnsIno].Set(ino),
	)
}

func (t *tracing) describe() string {
	return "block I/O of this process is measured by eBPF (" + strings.Join(t.at, ", ") + ")"
}

// read fills in devices and Untracked; s.Own is there.
func (t *tracing) read(s *Snapshot) {
	s.Devices, s.Untracked = s.Devices[:0], atomic.LoadUint64(t.untracked)
	var flying int64
	for i := range t.drives {
		if atomic.LoadUint32(&t.drives[i].Dev) == 0 {
			break
		}
		d := s.next(i)
		*d = Device{Disk: t.disk(i)}
		for cpu := 0; cpu < len(t.stats); cpu += maxDrives {
			stat := &t.stats[cpu+i]
			collect(&d.Read, &stat.Read)
			collect(&d.Write, &stat.Write)
		}
		for way, o := range [...]*Ops{&d.Read, &d.Write} {
			o.Lost += t.overdue[i][way]
			o.InFlight = int64(o.Requests - o.Completed - o.Lost)
			flying += max(o.InFlight, 0)
		}
	}
	if flying > 0 {
		t.dropOverdue(s)
	}
	for i := range s.Devices {
		// The processors' figures are not of one moment: a request that came between may be complete in one and not begun in another.
		d := &s.Devices[i]
		d.Read.InFlight, d.Write.InFlight = max(d.Read.InFlight, 0), max(d.Write.InFlight, 0)
	}
}

// collect adds a processor's figures.
func collect(o *Ops, from *blockOps) {
	o.Requests += from.Requests
	o.Bytes += from.Bytes
	o.Completed += from.Completed
	o.CompletedBytes += from.CompletedBytes
	o.Lost += from.Lost
	for i, n := range from.Queue {
		o.Queue.Buckets[i] += n
		o.Queue.Count += n
	}
	o.Queue.Sum += from.QueueSum
	for i, n := range from.Device {
		o.Device.Buckets[i] += n
		o.Device.Count += n
	}
	o.Device.Sum += from.DeviceSum
}

// dropOverdue counts entries that are too old as lost. Swapping an entry's issued for 0 gives the right to count it, as in the programs; the
// entry itself stays until they see its request again.
func (t *tracing) dropOverdue(s *Snapshot) {
	var clock unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock) != nil {
		return
	}
	now := uint64(clock.Nano())
	idle := s.Own.Reads > 0 && s.Own.InFlight == 0
	for i := range t.table {
		set := &t.table[i]
		for w := range set.Key {
			if set.Key[w] == 0 {
				continue
			}
			e := &set.Entry[w]
			issued := atomic.LoadUint64(&e.Issued)
			limit := overdue
			if idle && e.Write == 0 {
				limit = idleOverdue
			}
			drive, way := int(e.Drive), int(e.Write&1)
			if issued == 0 || issued+uint64(limit) > now || drive >= len(s.Devices) || !atomic.CompareAndSwapUint64(&e.Issued, issued, 0) {
				continue
			}
			t.overdue[drive][way]++
			o := [...]*Ops{&s.Devices[drive].Read, &s.Devices[drive].Write}[way]
			o.Lost++
			o.InFlight--
		}
	}
}

// disk describes drive i: by /sys if it is there, by its name in any case.
func (t *tracing) disk(i int) Disk {
	d := &t.disks[i]
	if d.Name != "" {
		return *d
	}
	dev := atomic.LoadUint32(&t.drives[i].Dev)
	major, minor := dev>>20, dev&(1<<20-1)
	name := make([]byte, 0, len(t.drives[i].Name))
	for _, c := range t.drives[i].Name {
		if c == 0 {
			break
		}
		name = append(name, byte(c))
	}
	d.Major, d.Minor = major, minor
	if dir, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", major, minor)); err == nil {
		*d = diskIn(dir)
	}
	if d.Name == "" {
		d.Name = string(name) // still empty if the program is about to write it
	}
	return *d
}

func (t *tracing) close() error {
	errs := []error{t.detach()}
	for _, p := range t.programs {
		errs = append(errs, p.Close())
	}
	for i := range t.maps {
		if t.mapped[i] != nil {
			errs = append(errs, unix.Munmap(t.mapped[i]))
		}
		if t.maps[i] != nil {
			errs = append(errs, t.maps[i].Close())
		}
	}
	return errors.Join(errs...)
}

// explain says in one clause what keeps the programs from running and what to do about it.
func explain(err error) string {
	var rejected *ebpf.VerifierError
	switch {
	case errors.Is(err, os.ErrPermission):
		return notPermitted()
	case errors.Is(err, errTracepoint):
		return "Linux " + release() + " has " + err.Error() + "; the probe needs those of Linux 5.15 or newer"
	case errors.As(err, &rejected):
		return "Linux " + release() + " rejects the programs: " + firstLine(err)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, os.ErrNotExist):
		return "Linux " + release() + " lacks /sys/kernel/btf/vmlinux or tracing by BPF; use one built with CONFIG_DEBUG_INFO_BTF and CONFIG_BPF_EVENTS"
	}
	return firstLine(err)
}

func notPermitted() string {
	switch {
	case len(missingCapabilities()) == 0:
		return "the kernel refuses eBPF in spite of CAP_BPF and CAP_PERFMON: by lockdown, a seccomp filter, or as those of a user namespace only"
	case os.Getuid() == 0:
		return "root has no CAP_BPF and CAP_PERFMON here; add them to the container (--cap-add BPF --cap-add PERFMON)"
	}
	return "eBPF needs CAP_BPF and CAP_PERFMON; run as root or `" + setcap() + "`"
}
