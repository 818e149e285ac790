// Package probe tells what drives did for this process: requests and bytes of the block layer, how long requests waited before a drive had
// them and how long they were in it. eBPF programs at the kernel's block tracepoints count that, per drive and for this process alone.
// Where the kernel or the user's rights do not allow them, Open falls back to what can be had without: the program's own reads, timed by
// itself, and the counters of the whole machine in /sys. docs/probe.md has the particulars.
//
// It also says which drive a file is on (Drive), what keeps the probe from measuring (Check), and answers messages.Sample (Actor).
//
// What does not live here: what is concluded from the figures (package balancer), how they are shown (bench, metrics, doctor), and the reads
// themselves (package prefetcher).
package probe

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coli-moe/coli/internal/loghist"
)

// Mode says how block I/O is measured.
type Mode uint8

// The modes.
const (
	Timed Mode = iota // the program times its own reads; drives are known by the machine's counters only
	EBPF              // the block layer is measured, for this process
)

func (m Mode) String() string {
	if m == EBPF {
		return "ebpf"
	}
	return "timed"
}

// Options say how a probe is opened. The zero value measures as well as it can.
type Options struct {
	Timed  bool // do not try eBPF
	Strict bool // fail with what eBPF lacks, rather than fall back

	// For tests.
	sys    string                   // stands for /sys
	attach func() (*tracing, error) // stands for attachTracing
}

// Device is a whole drive, never a partition, and what was asked of it since the probe was opened (Machine: since the machine was started).
type Device struct {
	Disk
	// Machine says that the figures are everybody's and not this process's: the kernel's own counters, which have no histograms, nothing
	// lost, and count requests when they are complete. So it is in Timed mode.
	Machine     bool
	Read, Write Ops
}

// Ops are requests to a drive in one direction.
type Ops struct {
	Requests, Bytes           uint64 // handed to the drive
	Completed, CompletedBytes uint64 // of them
	// Lost requests were handed to the drive, and nobody saw them complete: the kernel used their memory again, or they were out for too
	// long. They are neither in Completed nor in Device. Requests is Completed, Lost and InFlight.
	Lost     uint64
	InFlight int64        // in the drive now
	Queue    loghist.Hist // from the request's making until the drive had it
	Device   loghist.Hist // in the drive
}

// Own is what the program itself saw of its reads, by Begin and Observe, in either mode.
type Own struct {
	Reads, Bytes, Failed uint64 // Failed reads count in Reads and Took too
	InFlight             int64  // begun and not ended, now
	Took                 loghist.Hist
	// ReadBytes is what the kernel read from storage for this process, page cache misses and readahead included (read_bytes of
	// /proc/self/io); 0 where it does not say.
	ReadBytes uint64
}

// Snapshot is the state of a probe at a moment. The zero value is ready for Read.
type Snapshot struct {
	At      time.Time
	Devices []Device // EBPF: those this process has used, in the order of their first use. Timed: the machine's drives
	Own     Own
	// Untracked requests of this process found no room in the probe's tables and are in no other figure: more than 16 drives, or
	// some thousand requests at a time.
	Untracked uint64
}

// Since returns what happened after begin, an earlier snapshot of the same probe. InFlight stays that of s. It shares no memory with them.
func (s *Snapshot) Since(begin *Snapshot) Snapshot {
	d := *s
	d.Devices = slices.Clone(s.Devices)
	for i := range d.Devices {
		now := &d.Devices[i]
		if was := begin.device(now.Major, now.Minor); was != nil {
			now.Read.since(&was.Read)
			now.Write.since(&was.Write)
		}
	}
	d.Own.Reads -= begin.Own.Reads
	d.Own.Bytes -= begin.Own.Bytes
	d.Own.Failed -= begin.Own.Failed
	d.Own.ReadBytes -= begin.Own.ReadBytes
	d.Own.Took = d.Own.Took.Since(begin.Own.Took)
	d.Untracked -= begin.Untracked
	return d
}

// Reads sums up the reads of all devices.
func (s *Snapshot) Reads() (sum Ops) {
	for i := range s.Devices {
		sum.add(&s.Devices[i].Read)
	}
	return sum
}

func (s *Snapshot) device(major, minor uint32) *Device {
	for i := range s.Devices {
		if d := &s.Devices[i]; d.Major == major && d.Minor == minor {
			return d
		}
	}
	return nil
}

func (o *Ops) since(begin *Ops) {
	o.Requests -= begin.Requests
	o.Bytes -= begin.Bytes
	o.Completed -= begin.Completed
	o.CompletedBytes -= begin.CompletedBytes
	o.Lost -= begin.Lost
	o.Queue = o.Queue.Since(begin.Queue)
	o.Device = o.Device.Since(begin.Device)
}

func (o *Ops) add(x *Ops) {
	o.Requests += x.Requests
	o.Bytes += x.Bytes
	o.Completed += x.Completed
	o.CompletedBytes += x.CompletedBytes
	o.Lost += x.Lost
	o.InFlight += x.InFlight
	o.Queue.Merge(&x.Queue)
	o.Device.Merge(&x.Device)
}

// Probe measures from Open to Close. Its methods may be called by any goroutine.
type Probe struct {
	mode Mode
	why  string

	reads, bytes, failed atomic.Uint64
	inFlight             atomic.Int64
	took                 loghist.Atomic

	mu      sync.Mutex
	closed  bool
	tracing *tracing // nil in Timed mode
	machine *machine // nil in EBPF mode
	io      *procIO
}

// Open begins to measure. Where eBPF is not to be had it falls back to Timed mode, and Why says the reason; that is an error only if the
// options are Strict.
func Open(o Options) (*Probe, error) {
	attach := attachTracing
	if o.attach != nil {
		attach = o.attach
	}
	p := &Probe{io: openProcIO()}
	reason := "asked for"
	if !o.Timed {
		t, err := attach()
		if err == nil {
			p.mode, p.tracing, p.why = EBPF, t, t.describe()
			return p, nil
		}
		if o.Strict {
			p.io.close()
			return nil, fmt.Errorf("block I/O cannot be measured: %s: %w", explain(err), err)
		}
		reason = explain(err)
	}
	p.machine = openMachine(cmp.Or(o.sys, "/sys"))
	p.why = "block I/O is not measured, reads are timed by the program: " + reason
	return p, nil
}

// Mode says how block I/O is measured.
func (p *Probe) Mode() Mode { return p.mode }

// Why says in one line what is measured, or why the block layer is not and what to do about it.
func (p *Probe) Why() string { return p.why }

// Begin is called when a read of an expert begins. Exactly one Observe must follow.
func (p *Probe) Begin() { p.inFlight.Add(1) }

// Observe is called when a read ends that Begin was called for: bytes read, how long it took, whether it failed. It does not allocate.
func (p *Probe) Observe(bytes int64, took time.Duration, failed bool) {
	p.took.Add(took)
	p.bytes.Add(uint64(max(bytes, 0)))
	if failed {
		p.failed.Add(1)
	}
	p.reads.Add(1)
	p.inFlight.Add(-1)
}

// Read fills s with the figures as they are now. It takes microseconds, and does not allocate once s has been filled and as long as no
// device is new. After Close it fails with os.ErrClosed.
func (p *Probe) Read(s *Snapshot) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return os.ErrClosed
	}
	s.At = time.Now()
	s.Own = Own{
		Reads: p.reads.Load(), Bytes: p.bytes.Load(), Failed: p.failed.Load(),
		InFlight: p.inFlight.Load(),
		Took:     p.took.Load(), ReadBytes: p.io.readBytes(),
	}
	if p.tracing != nil {
		p.tracing.read(s)
	} else {
		p.machine.read(s)
	}
	return nil
}

// Close ends the measurement; more calls do nothing.
func (p *Probe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.io.close()
	if p.tracing != nil {
		return p.tracing.close()
	}
	p.machine.close()
	return nil
}

// next returns the place of device i in the snapshot, which has those below i.
func (s *Snapshot) next(i int) *Device {
	if i == len(s.Devices) {
		s.Devices = append(s.Devices, Device{})
	}
	return &s.Devices[i]
}
