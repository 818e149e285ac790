// Package ledger knows how much memory there is to use, RAM or a device's, and who has been granted how much of it. A plan and the run
// that follows it ask the same ledger, so that what the plan grants the run gets.
//
// What the system and its control groups allow comes from a Probe, read once; what a device has, from who opened it. What the memory is
// used for is its holders' matter.
package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Probe reads the state of the system's memory.
type Probe interface{ Memory() (Memory, error) }

// Memory is the state of the system's memory, in bytes.
type Memory struct {
	Known     bool // the system tells Available
	Available int64
	Limits    []Limit // of the control groups the process is in
}

// Limit is what a control group allows.
type Limit struct {
	Name        string // "memory.max of /user.slice"
	Max         int64
	Used        int64
	Reclaimable int64 // part of Used that the kernel gives up first: pages of files
}

// free is what may still be used under the limit.
func (l *Limit) free() int64 { return max(l.Max-max(l.Used-l.Reclaimable, 0), 0) }

// Memory kept for the system and for what has no lease (the Go heap, activations, page tables): an eighth of what is free, within bounds.
// A device's driver, pipelines and other programs get less.
const (
	keepShare = 8
	keepLeast = 256 << 20
	keepMost  = 4 << 30

	deviceKeepShare = 16
	deviceKeepLeast = 64 << 20
	deviceKeepMost  = 1 << 30
)

// Ledger grants leases. Its methods are safe for concurrent use.
type Ledger struct {
	free, kept int64   // free: the system's answer; kept for it
	source     string  // which of the system's answers free is
	keeper     string  // whom it is kept for
	advice     string  // what to do when there is not enough
	host       *Ledger // of the same memory, granted there too; nil for none
	known      bool

	mu     sync.Mutex
	leases []*Lease
}

// New reads the probe. Where the system does not tell, every lease is granted: the user's --ram is then the only bound.
func New(p Probe) (*Ledger, error) {
	m, err := p.Memory()
	if err != nil {
		return nil, fmt.Errorf("how much memory is free: %w", err)
	}
	l := &Ledger{known: m.Known, free: m.Available, source: "MemAvailable", keeper: "the system", advice: "free some memory"}
	for _, lim := range m.Limits {
		if f := lim.free(); !l.known || f < l.free {
			l.known, l.free, l.source, l.advice = true, f, lim.Name, "free some memory, or raise that limit"
		}
	}
	l.kept = min(max(l.free/keepShare, keepLeast), keepMost, l.free/2)
	return l, nil
}

// Device returns the ledger of a device's memory: free bytes, or total where the driver does not tell what is free (free 0). A device
// whose memory is the machine's RAM is given the ledger of that as well: what it grants is granted there too.
func Device(name string, total, free int64, ram *Ledger) *Ledger {
	l := &Ledger{
		known: true, free: free, source: "free on " + name, keeper: "the driver", host: ram,
		advice: "end other programs that use the device, or give it less with --gpu-layers",
	}
	if free <= 0 {
		l.free, l.source = max(total, 0), "the memory of "+name
	}
	l.kept = min(max(l.free/deviceKeepShare, deviceKeepLeast), deviceKeepMost, l.free/2)
	return l
}

// Budget is what leases may hold together; known is false where the system does not tell.
func (l *Ledger) Budget() (bytes int64, known bool) { return l.free - l.kept, l.known }

// Free is what can still be granted; known as in Budget.
func (l *Ledger) Free() (bytes int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes, known = l.free-l.kept-l.granted(), l.known
	if l.host != nil {
		if free, ok := l.host.Free(); ok {
			bytes = min(bytes, free)
		}
	}
	return bytes, known
}

func (l *Ledger) granted() (sum int64) {
	for _, x := range l.leases {
		sum += x.bytes
	}
	return sum
}

// ErrNoRoom is why a lease is refused.
var ErrNoRoom = errors.New("not enough memory")

// Grant reserves bytes under a name for the report. The error, which wraps ErrNoRoom, gives the numbers.
func (l *Ledger) Grant(name string, bytes int64) (*Lease, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("a lease of %d bytes for %s", bytes, name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.granted()
	if free := l.free - l.kept - held; l.known && bytes > free {
		less := fmt.Sprintf("%s %s less %s kept for %s", l.source, FormatSize(l.free), FormatSize(l.kept), l.keeper)
		if held > 0 {
			less += fmt.Sprintf(" and %s granted already", FormatSize(held))
		}
		return nil, fmt.Errorf("%w for %s: %s needed, %s free (%s); %s",
			ErrNoRoom, name, FormatSize(bytes), FormatSize(max(free, 0)), less, l.advice)
	}
	x := &Lease{ledger: l, name: name, bytes: bytes, held: bytes}
	if l.host != nil {
		var err error
		if x.host, err = l.host.Grant(name, bytes); err != nil {
			return nil, err
		}
	}
	l.leases = append(l.leases, x)
	return x, nil
}

// Lease is memory granted to somebody.
type Lease struct {
	ledger *Ledger
	host   *Lease // of the same memory; nil for none
	name   string
	bytes  int64
	held   int64 // guarded by ledger.mu
}

// Bytes returns what was granted.
func (x *Lease) Bytes() int64 { return x.bytes }

// Hold says how much memory the holder has really taken: all that was granted until it is called. It is for the report alone.
func (x *Lease) Hold(bytes int64) {
	x.ledger.mu.Lock()
	defer x.ledger.mu.Unlock()
	x.held = bytes
}

// Release gives the memory back. It may be called more than once.
func (x *Lease) Release() {
	x.ledger.mu.Lock()
	defer x.ledger.mu.Unlock()
	x.ledger.leases = slices.DeleteFunc(x.ledger.leases, func(y *Lease) bool { return y == x })
	if x.host != nil {
		x.host.Release()
	}
}

// Entry is a line of a report.
type Entry struct {
	Name  string
	Bytes int64 // granted
	Held  int64 // really taken
}

// Account is who has been granted how much of what.
type Account struct {
	Of      string // "RAM", or a device's name
	Budget  int64  // what all may hold together
	Known   bool   // the system tells Budget
	Entries []Entry
}

// Report lists what is granted by name, the largest first.
func (l *Ledger) Report() []Entry {
	l.mu.Lock()
	sums := map[string]Entry{}
	for _, x := range l.leases {
		e := sums[x.name]
		sums[x.name] = Entry{x.name, e.Bytes + x.bytes, e.Held + x.held}
	}
	l.mu.Unlock()
	out := slices.Collect(maps.Values(sums))
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name)) })
	return out
}

// String describes the budget and the leases in one line.
func (l *Ledger) String() string {
	var b strings.Builder
	if l.known {
		fmt.Fprintf(&b, "%s of %s %s", FormatSize(l.free-l.kept), l.source, FormatSize(l.free))
	} else {
		b.WriteString("the system does not tell how much memory is free")
	}
	for i, x := range l.Report() {
		b.WriteString([]string{": ", ", "}[min(i, 1)])
		fmt.Fprintf(&b, "%s %s", x.Name, FormatSize(x.Bytes))
	}
	return b.String()
}
