//go:build amd64 || arm64

package probe

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// need skips the test for want of something, unless it runs in CI, as root, where nothing may be wanting.
func need(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("COLI_CI") != "" && os.Getuid() == 0 {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// measuring opens a probe that measures the block layer.
func measuring(t testing.TB) *Probe {
	t.Helper()
	return opened(t, Options{Strict: true})
}

// measuringBy makes do with programs that an older kernel might have.
func measuringBy(t testing.TB, programs []string) *Probe {
	t.Helper()
	return opened(t, Options{Strict: true, attach: func() (*tracing, error) {
		spec, err := loadBlock()
		if err != nil {
			return nil, err
		}
		for name, p := range spec.Programs {
			if !slices.Contains(programs, name) {
				p.AttachTo = "none"
			}
		}
		return attachSpec(spec)
	}})
}

func opened(t testing.TB, o Options) *Probe {
	t.Helper()
	p, err := Open(o)
	if err != nil {
		need(t, "%v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// directFile makes a file that is on a drive and takes direct reads.
func directFile(t testing.TB, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data")
	data := make([]byte, size)
	for i := 0; i < size; i += 512 {
		data[i] = byte(i>>9) | 1 // no holes
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o755); err != nil { // for children with fewer rights
		t.Fatal(err)
	}
	if _, err := Drive(path); err != nil {
		need(t, "temporary files are on no drive: %v", err)
	}
	if _, err := readWhole(path); err != nil {
		need(t, "temporary files take no direct reads: %v", err)
	}
	return path
}

func snapshot(t testing.TB, p *Probe) *Snapshot {
	t.Helper()
	s := &Snapshot{}
	if err := p.Read(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// settled waits until nothing is in flight; a completion that was missed takes as long as it is looked for.
func settled(t testing.TB, p *Probe) *Snapshot {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s := snapshot(t, p)
		if s.Reads().InFlight == 0 {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d reads are in flight for ever", s.Reads().InFlight)
		}
	}
}

// load is direct reads at random places of a file.
type load struct {
	path    string
	size    int // of the file
	reads   int // of each reader
	bytes   int // of a read
	readers int
}

// run returns the time that the reads took, summed, and of the longest.
func (l *load) run(t testing.TB) (sum, longest time.Duration) {
	t.Helper()
	var total, most atomic.Int64
	var all sync.WaitGroup
	for r := range l.readers {
		all.Go(func() {
			f, err := os.OpenFile(l.path, os.O_RDONLY|unix.O_DIRECT, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			buf := directBuffer(l.bytes)
			random := rand.New(rand.NewPCG(1, uint64(r)))
			for range l.reads {
				begin := time.Now()
				if n, err := f.ReadAt(buf, 4096*random.Int64N(int64(l.size-l.bytes)/4096+1)); n != l.bytes {
					t.Errorf("read %d bytes: %v", n, err)
					return
				}
				took := int64(time.Since(begin))
				total.Add(took)
				for m := most.Load(); took > m && !most.CompareAndSwap(m, took); m = most.Load() {
				}
			}
		})
	}
	all.Wait()
	return time.Duration(total.Load()), time.Duration(most.Load())
}

func (l *load) total() uint64 { return uint64(l.reads * l.bytes * l.readers) }

func TestBytesCountedAreBytesRead(t *testing.T) {
	for i, name := range []string{"at the start", "at the insertion"} {
		t.Run(name, func(t *testing.T) { bytesAreCounted(t, measuringBy(t, programSets[i]), i == 0) })
	}
}

// bytesAreCounted reads and compares. Programs that are not exact may miss a hundredth on a device without a scheduler: docs/probe.md.
func bytesAreCounted(t *testing.T, p *Probe, exact bool) {
	const size = 64 << 20
	path := directFile(t, size)
	at, err := Drive(path)
	if err != nil {
		t.Fatal(err)
	}
	exact = exact || !strings.Contains(readLine("/sys/block", at.Name, "queue/scheduler"), "[none]")
	var all Ops
	for _, bytes := range []int{4 << 10, 64 << 10, 1 << 20, 3<<20 + 4<<10} {
		for _, readers := range []int{1, 2, 4, 8} {
			t.Run(fmt.Sprintf("%dKiB/readers=%d", bytes>>10, readers), func(t *testing.T) {
				l := load{path: path, size: size, reads: max(2, min(200, 16<<20/bytes/readers)), bytes: bytes, readers: readers}
				// The kernel counts what the process reads, too. Should it be more than these reads (a page of the program was paged in),
				// the next try may be without.
				var d Snapshot
				var sum, longest time.Duration
				for range 5 {
					begin := settled(t, p)
					sum, longest = l.run(t)
					end := settled(t, p)
					if d = end.Since(begin); d.Own.ReadBytes == l.total() {
						break
					}
				}
				if d.Own.ReadBytes != l.total() {
					t.Fatalf("the process read %d bytes, %d of them the test's, five times", d.Own.ReadBytes, l.total())
				}
				o := d.Reads()
				least := l.total()
				if !exact {
					least -= least / 100
				}
				if o.Bytes > l.total() || o.Bytes < least || d.Untracked != 0 {
					t.Errorf("counted %d bytes of %d; %d requests not tracked", o.Bytes, l.total(), d.Untracked)
				}
				if on := d.device(at.Major, at.Minor); len(at.Disks) == 1 && (on == nil || on.Read.Bytes != o.Bytes || on.Name != at.Name) {
					t.Errorf("not all of it on %s: %+v", at.Name, on)
				}
				if o.Queue.Count != o.Requests || o.Device.Count != o.Completed || o.Requests != o.Completed+o.Lost {
					t.Errorf("%d requests, %d completed and %d lost; histograms of %d and %d", o.Requests, o.Completed, o.Lost, o.Queue.Count, o.Device.Count)
				}
				if (o.CompletedBytes == o.Bytes) != (o.Lost == 0) || o.CompletedBytes > o.Bytes {
					t.Errorf("%d bytes of %d complete, %d requests lost", o.CompletedBytes, o.Bytes, o.Lost)
				}
				all.add(&o)
				// A request is under way while the read that it belongs to is; a read of a page is one request at most.
				if q, d := o.Queue.Mean(), o.Device.Mean(); d < 500*time.Nanosecond || q+d > longest {
					t.Errorf("a request waited %v and took %v, the longest read %v", q, d, longest)
				}
				if waited := time.Duration(o.Queue.Sum + o.Device.Sum); bytes == 4<<10 && waited > sum {
					t.Errorf("requests took %v, the reads that they were made for %v", waited, sum)
				}
			})
		}
	}
	// Completions go missing by the hundred at times (docs/probe.md), but only at times.
	if all.Lost > all.Requests/4 {
		t.Errorf("of %d requests %d lost", all.Requests, all.Lost)
	}
}

func TestOthersAreNotCounted(t *testing.T) {
	p := measuring(t)
	const size = 32 << 20
	path := directFile(t, size)
	begin := settled(t, p)
	r := inChild(t, "read", path, nil)
	d := settled(t, p).Since(begin)
	if r.ReadBytes != size || r.Mode != Timed {
		t.Fatalf("the other process read %d bytes in mode %v", r.ReadBytes, r.Mode)
	}
	// What the kernel says of this process has the other's reads in it, since it waited for it, and what starting that took.
	if o := d.Reads(); o.Bytes > d.Own.ReadBytes-size {
		t.Errorf("counted %d bytes; this process and the other read %d, the other %d", o.Bytes, d.Own.ReadBytes, size)
	}
}

func TestRequestsAreInFlightWhileTheyAre(t *testing.T) {
	p := measuring(t)
	const size = 64 << 20
	l := load{path: directFile(t, size), size: size, reads: 40, bytes: 4 << 20, readers: 4}
	done := make(chan struct{})
	var most int64
	var s Snapshot
	go func() {
		defer close(done)
		l.run(t)
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
			if err := p.Read(&s); err != nil {
				t.Fatal(err)
			}
			most = max(most, s.Reads().InFlight)
		}
	}
	if most < 1 || most > 4*size/4096 {
		t.Errorf("at most %d requests in flight during reads of 4 MiB", most)
	}
	settled(t, p)
}

// The process of a container has another number than the machine knows it by.
func TestContainersProcessIsFound(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may make a pid namespace")
	}
	measuring(t)
	const size = 16 << 20
	r := inChild(t, "measure", directFile(t, size), &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
	if r.Pid != 1 || r.Mode != EBPF || r.ReadBytes != size || r.Counted.Bytes < size || r.Counted.Bytes > 2*size {
		t.Errorf("in a pid namespace: %+v", r)
	}
}

func TestReadDoesNotAllocate(t *testing.T) {
	p := measuring(t)
	const size = 4 << 20
	l := load{path: directFile(t, size), size: size, reads: 4, bytes: 1 << 20, readers: 1}
	l.run(t)
	s := snapshot(t, p)
	if len(s.Devices) == 0 {
		t.Fatal("no device")
	}
	if n := testing.AllocsPerRun(100, func() { _ = p.Read(s) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

var driftFor = flag.Duration("drift", 2*time.Second, "how long the drift test loads the drive")

// Under a load of mixed sizes nothing drifts: in the end no read is in flight, and what was issued is complete or known to be lost.
func TestNoDrift(t *testing.T) {
	p := measuring(t)
	const size = 64 << 20
	path := directFile(t, size)
	begin := settled(t, p)
	var read uint64
	var s Snapshot
	for deadline := time.Now().Add(*driftFor); time.Now().Before(deadline); {
		for _, bytes := range []int{4 << 10, 256 << 10, 4 << 20, 1<<20 + 4<<10} {
			l := load{path: path, size: size, reads: max(4, min(200, 16<<20/bytes)), bytes: bytes, readers: 2}
			l.run(t)
			read += l.total()
			time.Sleep(30 * time.Millisecond) // the drive runs dry
		}
		if err := p.Read(&s); err != nil {
			t.Fatal(err)
		}
		if o := s.Reads(); o.InFlight > 64+int64(o.Requests/10) {
			t.Fatalf("%d requests in flight: %+v", o.InFlight, o)
		}
	}
	d := settled(t, p).Since(begin)
	o := d.Reads()
	t.Logf("%d bytes read, %d by the process; %d requests of %d bytes, %d completed, %d lost, %d in flight; waited %v, took %v",
		read, d.Own.ReadBytes, o.Requests, o.Bytes, o.Completed, o.Lost, o.InFlight, o.Queue.Mean(), o.Device.Mean())
	if o.InFlight != 0 || o.Requests != o.Completed+o.Lost || o.Bytes < read || o.Bytes != d.Own.ReadBytes || d.Untracked != 0 {
		t.Error("the figures do not agree")
	}
}
