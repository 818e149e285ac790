// Package ledger knows how much RAM there is to use and who has been granted how much of it. A plan and the run that follows it ask the
// same ledger, so that what the plan grants the run gets.
//
// What the system and its control groups allow comes from a Probe, read once. What the memory is used for is its holders' matter.
package ledger

import (
	"cmp"
	"errors"
	"fmt"
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
const (
	keepShare = 8
	keepLeast = 256 << 20
	keepMost  = 4 << 30
)

// Ledger grants leases. Its methods are safe for concurrent use.
type Ledger struct {
	free, kept int64  // free: the system's answer; kept for it
	source     string // which of the system's answers free is
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
	l := &Ledger{known: m.Known, free: m.Available, source: "MemAvailable"}
	for _, lim := range m.Limits {
		if f := lim.free(); !l.known || f < l.free {
			l.known, l.free, l.source = true, f, lim.Name
		}
	}
	l.kept = min(max(l.free/keepShare, keepLeast), keepMost, l.free/2)
	return l, nil
}

// Budget is what leases may hold together; known is false where the system does not tell.
func (l *Ledger) Budget() (bytes int64, known bool) { return l.free - l.kept, l.known }

// Free is what can still be granted; known as in Budget.
func (l *Ledger) Free() (bytes int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.free - l.kept - l.granted(), l.known
}

func (l *Ledger) granted() (sum int64) {
	for _, x := range l.leases {
		sum += x.bytes
	}
	return sum
}

// ErrNoRoom is why a lease is refused.
var ErrNoRoom = errors.New("not enough memory")

// Grant reserves bytes of RAM under a name for the report. The error, which wraps ErrNoRoom, gives the numbers.
func (l *Ledger) Grant(name string, bytes int64) (*Lease, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("a lease of %d bytes for %s", bytes, name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.granted()
	if free := l.free - l.kept - held; l.known && bytes > free {
		less := fmt.Sprintf("%s %s less %s kept for the system", l.source, FormatSize(l.free), FormatSize(l.kept))
		if held > 0 {
			less += fmt.Sprintf(" and %s granted already", FormatSize(held))
		}
		return nil, fmt.Errorf("%w for %s: %s needed, %s free (%s); free some memory",
			ErrNoRoom, name, FormatSize(bytes), FormatSize(max(free, 0)), less)
	}
	x := &Lease{ledger: l, name: name, bytes: bytes}
	l.leases = append(l.leases, x)
	return x, nil
}

// Lease is memory granted to somebody.
type Lease struct {
	ledger *Ledger
	name   string
	bytes  int64
}

// Bytes returns what was granted.
func (x *Lease) Bytes() int64 { return x.bytes }

// Release gives the memory back. It may be called more than once.
func (x *Lease) Release() {
	x.ledger.mu.Lock()
	defer x.ledger.mu.Unlock()
	x.ledger.leases = slices.DeleteFunc(x.ledger.leases, func(y *Lease) bool { return y == x })
}

// Entry is a line of a report.
type Entry struct {
	Name  string
	Bytes int64
}

// Report lists the leases, the largest first.
func (l *Ledger) Report() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Entry
	for _, x := range l.leases {
		out = append(out, Entry{x.name, x.bytes})
	}
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
