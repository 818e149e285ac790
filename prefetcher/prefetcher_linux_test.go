package prefetcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coli-moe/coli/internal/hugemem"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/weights"
)

// systemErrors are injected by TestFaults.
var systemErrors = map[string]error{"EINTR": unix.EINTR, "EAGAIN": unix.EAGAIN, "EINVAL": unix.EINVAL, "EOPNOTSUPP": unix.EOPNOTSUPP}

// TestPopulate takes an arena's pages while some of it is in use.
func TestPopulate(t *testing.T) {
	m, err := Arena(3, populateStep)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.Slot(1)[5] = 7
	if err := m.Populate(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	in := make([]byte, len(m.Data)/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, sliceAddress(m.Data), uintptr(len(m.Data)), sliceAddress(in)); errno != 0 {
		t.Fatal(errno)
	}
	if absent := bytes.Count(in, []byte{0}); absent > 0 && kernelPopulates() {
		t.Errorf("%d of %d pages are not there", absent, len(in))
	}
	if m.Slot(1)[5] != 7 || m.Slot(2)[5] != 0 {
		t.Error("bytes have changed")
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Populate(stopped, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// kernelPopulates tries the advice on a page of its own.
func kernelPopulates() bool {
	m, err := Arena(1, blockSize)
	if err != nil {
		return false
	}
	defer m.Close()
	return hugemem.Populate(m.Data)
}

// TestArenaOfHugePages: a slot larger than a huge page gets some, where the system has them.
func TestArenaOfHugePages(t *testing.T) {
	mode, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if len(mode) == 0 || strings.Contains(string(mode), "[never]") {
		t.Skip("no transparent huge pages")
	}
	m, err := Arena(1, 4*hugemem.HugePage)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	clear(m.Slot(0))
	start := fmt.Sprintf("%x-", sliceAddress(m.Slot(0)))
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	_, of, ok := strings.Cut(string(smaps), start)
	if !ok {
		t.Fatal("the arena does not begin a mapping")
	}
	_, of, _ = strings.Cut(of, "AnonHugePages:")
	var kib int
	fmt.Sscan(of, &kib)
	if kib == 0 { // memory may be too fragmented for some, hardly for all
		t.Error("no huge page")
	}
}

// BenchmarkReads reads experts of several sizes and compares with the drive's raw rate at the same size.
func BenchmarkReads(b *testing.B) {
	path := filepath.Join(b.TempDir(), "model.bin")
	const size = 512 << 20
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	chunk := make([]byte, 8<<20)
	for i := range chunk {
		chunk[i] = byte(i * i >> 7)
	}
	for range size / len(chunk) {
		if _, err := f.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	f.Close()
	for _, each := range []int64{304 << 10, 2636 << 10, 16 << 20} {
		for _, readers := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("%dKiB/readers=%d", each>>10, readers), func(b *testing.B) {
				tier := make(inbox, 64)
				s := &table{path: path}
				for at := int64(0); at+each <= size; at += each {
					s.records = append(s.records, weights.Record{Bytes: each, Extents: []weights.RecordExtent{{Offset: at, Size: each}}})
				}
				p, err := New(Config{Source: s, Tier: tier, Readers: readers})
				if err != nil {
					b.Fatal(err)
				}
				defer p.Close()
				slots := int(rawMemory / each)
				mem, err := Arena(slots, each)
				if err != nil {
					b.Fatal(err)
				}
				defer mem.Close()
				clear(mem.Data)
				raw, err := RawRate(b.Context(), s.Files(), each, readers, 300*time.Millisecond)
				if err != nil {
					b.Skip(err)
				}
				b.SetBytes(each)
				b.ReportAllocs()
				b.ResetTimer()
				next := 0
				ask := func(slot int32) {
					m := messages.Reads.Get()
					m.Key, m.Slot, m.Dst = messages.Key{Expert: int32(next * 7919 % len(s.records))}, slot, mem.Slot(int(slot))
					next++
					p.Receive(m)
				}
				sent := 0
				for range min(slots, b.N) {
					ask(int32(sent))
					sent++
				}
				for range b.N {
					l := <-tier
					if l.Err != nil {
						b.Fatal(l.Err)
					}
					if sent < b.N {
						ask(l.Slot)
						sent++
					}
					messages.Landeds.Put(l)
				}
				st := p.Stats()
				b.ReportMetric(float64(st.Bytes)/st.Busy.Seconds()/raw*100, "%ofraw")
				b.ReportMetric(raw/1e9, "rawGB/s")
			})
		}
	}
}
