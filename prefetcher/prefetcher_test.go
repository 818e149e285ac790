package prefetcher

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/weights"
)

// table is a source of n experts in one file: expert e has an extent in the first half and one in the second.
type table struct {
	path    string
	content []byte
	records []weights.Record
}

const ms = time.Millisecond

const (
	experts   = 8
	partBytes = 3 * blockSize
)

// newTable writes the file. It ends in the middle of a block, which the last expert's second extent includes.
func newTable(t testing.TB) *table {
	t.Helper()
	s := &table{path: filepath.Join(t.TempDir(), "model.bin"), content: make([]byte, 2*experts*partBytes-100)}
	for i := range s.content {
		s.content[i] = byte(i ^ i>>8 ^ i>>14*5)
	}
	if err := os.WriteFile(s.path, s.content, 0o644); err != nil {
		t.Fatal(err)
	}
	for e := range int64(experts) {
		second := (experts + e) * partBytes
		s.records = append(s.records, weights.Record{Bytes: 2 * partBytes, Extents: []weights.RecordExtent{
			{Offset: e * partBytes, Size: partBytes}, {Offset: second, Size: min(partBytes, int64(len(s.content))-second), At: partBytes},
		}})
	}
	return s
}

func (s *table) Files() []string { return []string{s.path} }

func (s *table) Record(layer, expert int) (*weights.Record, error) {
	switch {
	case layer == 99:
		panic("no such layer")
	case layer != 0 || expert >= len(s.records):
		return nil, fmt.Errorf("layer %d has no expert %d", layer, expert)
	}
	return &s.records[expert], nil
}

// holds reports whether mem is what the file has of an expert.
func (s *table) holds(mem []byte, expert int32) bool {
	for _, x := range s.records[expert].Extents {
		if !bytes.Equal(mem[x.At:x.At+x.Size], s.content[x.Offset:x.Offset+x.Size]) {
			return false
		}
	}
	return true
}

// faulty is a file whose reads go wrong: fault may answer a read itself. calls counts the reads of all files that share it.
type faulty struct {
	File
	calls  *atomic.Int64
	direct bool
	fault  faultFunc
}

func (f *faulty) ReadAt(p []byte, off int64) (int, error) {
	return f.fault(f.calls.Add(1), f.direct, p, off, f.File.ReadAt)
}

// inbox is the tier's mailbox.
type inbox chan *messages.Landed

func (b inbox) Send(m messages.Message) { b <- m.(*messages.Landed) }

// rig is a prefetcher under test.
type rig struct {
	*Prefetcher
	*table
	t     *testing.T
	inbox inbox
	slots *Memory
	mu    sync.Mutex
	notes []string
}

type (
	readFunc  = func(p []byte, off int64) (int, error)
	faultFunc = func(call int64, direct bool, p []byte, off int64, read readFunc) (int, error)
)

// start makes a prefetcher over a new table; reads go through fault once it is open, unless fault is nil.
func start(t *testing.T, cfg Config, fault faultFunc) *rig {
	t.Helper()
	before := runtime.NumGoroutine()
	r := &rig{table: newTable(t), t: t, inbox: make(inbox, 1000)}
	cfg.Source, cfg.Tier = r.table, r.inbox
	cfg.Note = func(s string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.notes = append(r.notes, s)
	}
	var opened atomic.Bool
	if fault != nil {
		calls := new(atomic.Int64)
		cfg.Open = func(path string, direct bool) (File, error) {
			f, err := openFile(path, direct)
			if err != nil {
				return nil, err
			}
			return &faulty{f, calls, direct, func(call int64, direct bool, p []byte, off int64, read readFunc) (int, error) {
				if !opened.Load() {
					calls.Add(-1)
					return read(p, off)
				}
				return fault(call, direct, p, off, read)
			}}, nil
		}
	}
	var err error
	if r.Prefetcher, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	opened.Store(true)
	if r.slots, err = Arena(experts, 2*partBytes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		r.slots.Close()
		for deadline := time.Now().Add(2 * time.Second); runtime.NumGoroutine() > before; time.Sleep(ms) {
			if time.Now().After(deadline) {
				t.Errorf("%d goroutines left of %d", runtime.NumGoroutine(), before)
				break
			}
		}
		select {
		case l := <-r.inbox:
			t.Errorf("an answer too many: %+v", l)
		default:
		}
	})
	return r
}

// ask sends a read of an expert of layer 0 into the slot of its number.
func (r *rig) ask(expert int32, p messages.Priority) {
	m := messages.Reads.Get()
	m.Key, m.Slot, m.Dst, m.Priority = messages.Key{Expert: expert}, expert, r.slots.Slot(int(expert)), p
	r.Receive(m)
}

func (r *rig) answer() *messages.Landed {
	r.t.Helper()
	select {
	case l := <-r.inbox:
		return l
	case <-time.After(10 * time.Second):
		r.t.Fatal("no answer")
		return nil
	}
}

// noted waits for a note that contains text.
func (r *rig) noted(text string) bool {
	for range 1000 {
		r.mu.Lock()
		for _, n := range r.notes {
			if strings.Contains(n, text) {
				r.mu.Unlock()
				return true
			}
		}
		r.mu.Unlock()
		time.Sleep(ms)
	}
	return false
}

// TestReads reads every expert in every mode, several times over.
func TestReads(t *testing.T) {
	for _, mode := range []Mode{Auto, Off} {
		for readers := 1; readers <= 4; readers++ {
			t.Run(fmt.Sprintf("%v, %d readers", mode, readers), func(t *testing.T) {
				var traced atomic.Int64
				trace := func(reader int, l *messages.Landed, at Times) {
					if reader >= readers || l.Data == nil || at.End.Sub(at.Begin) != time.Duration(l.Nanos) {
						t.Errorf("reader %d, %+v, %+v", reader, l, at)
					}
					traced.Add(1)
				}
				r := start(t, Config{Readers: readers, Direct: mode, Trace: trace}, nil)
				for round := range 3 {
					clear(r.slots.Data)
					for e := range int32(experts) {
						r.ask(e, messages.Priority(round))
					}
					for range experts {
						l := r.answer()
						if l.Err != nil || l.Slot != l.Key.Expert || l.Priority != messages.Priority(round) || l.Nanos <= 0 || !r.holds(l.Data, l.Key.Expert) {
							t.Errorf("%+v", l)
						}
						if x := &r.records[l.Key.Expert]; l.Bytes != x.ReadBytes() || int64(len(l.Data)) != x.Bytes {
							t.Errorf("expert %d: %d bytes read, %d in memory", l.Key.Expert, l.Bytes, len(l.Data))
						}
					}
				}
				s := r.Stats()
				if traced.Load() != 3*experts || s.Reads != 3*experts || s.Bytes != 3*int64(len(r.content)) || s.Failed != 0 || s.Busy <= 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// TestFaults injects faults into reads. Each read has one answer: the bytes, or an error that names file and offset.
func TestFaults(t *testing.T) {
	eio := errors.New("input/output error")
	type cases struct {
		fault   faultFunc
		cause   error  // nil: the reads succeed
		message string // part of the error
		retried bool
		note    string
	}
	all := map[string]cases{
		"short reads": {fault: func(call int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
			return read(p[:max(blockSize, len(p)/3/blockSize*blockSize)], off)
		}},
		"reads that end inside a block": {fault: func(call int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
			n, err := read(p, off)
			return min(n, 5000), err
		}},
		"an error once": {retried: true, fault: func(call int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
			if call == 2 {
				return 0, eio
			}
			return read(p, off)
		}},
		"an error always": {
			cause: eio, message: "reading 12288 bytes for expert 3 of layer 0", retried: true,
			fault: func(int64, bool, []byte, int64, readFunc) (int, error) {
				return 0, eio
			},
		},
		"an error half-way": {
			cause: eio, message: fmt.Sprintf("byte %d: input/output error", 3*partBytes+blockSize), retried: true,
			fault: func(call int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
				if call == 1 {
					return read(p[:blockSize], off)
				}
				return 0, eio
			},
		},
		"one byte over and over": {
			cause: errNoProgress, message: "byte",
			fault: func(_ int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
				return 1, nil
			},
		},
		"the end comes early": {
			cause: weights.ErrTruncated, message: "restore the file and run again",
			fault: func(call int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
				return 0, nil
			},
		},
		"slow": {fault: func(call int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
			time.Sleep(2 * ms)
			return read(p, off)
		}},
	}
	for name, err := range systemErrors {
		if interrupted(err) {
			all[name] = cases{fault: func(call int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
				if call%3 != 0 {
					return 0, err
				}
				return read(p[:blockSize], off)
			}}
			all[name+" without end"] = cases{cause: err, message: "byte", fault: func(int64, bool, []byte, int64, readFunc) (int, error) {
				return 0, err
			}}
		}
		if refused(err) {
			fault := func(_ int64, direct bool, p []byte, off int64, read readFunc) (int, error) {
				if direct {
					return 0, err
				}
				return read(p, off)
			}
			all["direct reads: "+name] = cases{note: "through the page cache", fault: fault}
		}
	}
	for name, tt := range all {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{Readers: 1}, tt.fault)
			clear(r.slots.Data)
			r.ask(3, messages.Demand)
			l := r.answer()
			switch {
			case tt.cause == nil && (l.Err != nil || !r.holds(l.Data, 3)):
				t.Errorf("%v", l.Err)
			case tt.cause != nil && (!errors.Is(l.Err, tt.cause) || l.Data != nil):
				t.Errorf("%v", l.Err)
			case tt.cause != nil && (!strings.Contains(l.Err.Error(), r.path) || !strings.Contains(l.Err.Error(), tt.message)):
				t.Errorf("%v", l.Err)
			}
			if s := r.Stats(); (s.Retried > 0) != tt.retried || (s.Failed > 0) != (tt.cause != nil) {
				t.Errorf("%+v", s)
			}
			if tt.note != "" && !r.noted(tt.note) {
				t.Errorf("notes %q", r.notes)
			}
			if tt.cause == nil { // and the reader still works
				r.ask(7, messages.Demand)
				if l := r.answer(); l.Err != nil || !r.holds(l.Data, 7) {
					t.Errorf("afterwards: %v", l.Err)
				}
			}
		})
	}
}

// TestBadReads are reads that no file is to blame for.
func TestBadReads(t *testing.T) {
	r := start(t, Config{}, nil)
	for name, tt := range map[string]struct {
		key  messages.Key
		dst  []byte
		want string
	}{
		"no such expert":     {messages.Key{Expert: 100}, r.slots.Slot(0), "layer 0 has no expert 100"},
		"a panicking source": {messages.Key{Layer: 99}, r.slots.Slot(0), "panic: no such layer"},
		"a slot too small":   {messages.Key{Expert: 1}, r.slots.Slot(0)[:100], "needs 24576 bytes of memory, its slot has 100"},
	} {
		m := messages.Reads.Get()
		m.Key, m.Dst = tt.key, tt.dst
		r.Receive(m)
		if l := r.answer(); l.Err == nil || !strings.Contains(l.Err.Error(), tt.want) || l.Key != tt.key {
			t.Errorf("%s: %+v", name, l)
		}
	}
	t.Run("memory that is not aligned", func(t *testing.T) {
		mem := make([]byte, 2*partBytes+1)
		m := messages.Reads.Get()
		m.Key, m.Dst = messages.Key{Expert: 2}, mem[1:]
		r.Receive(m)
		if l := r.answer(); l.Err != nil || !r.holds(l.Data, 2) {
			t.Errorf("%v", l.Err)
		}
	})
	t.Run("refused by the supervisor", func(t *testing.T) {
		m := messages.Reads.Get()
		m.Key, m.Slot = messages.Key{Expert: 2}, 2
		r.Refuse(m, messages.ErrStopped)
		if l := r.answer(); l.Err != messages.ErrStopped || l.Slot != 2 {
			t.Errorf("%+v", l)
		}
	})
}

// TestFileChanges changes the file while it is open.
func TestFileChanges(t *testing.T) {
	t.Run("truncated", func(t *testing.T) {
		r := start(t, Config{}, nil)
		if err := os.Truncate(r.path, 9*partBytes+500); err != nil {
			t.Skip(err)
		}
		r.ask(0, messages.Demand)
		if l := r.answer(); l.Err != nil || !r.holds(l.Data, 0) {
			t.Errorf("what is left of the file: %v", l.Err)
		}
		for _, e := range []int32{1, 5} { // inside the extent, and before it
			r.ask(e, messages.Demand)
			l := r.answer()
			want := fmt.Sprintf("%d bytes when it was opened and has %d now", len(r.content), 9*partBytes+500)
			var at *weights.Error
			if !errors.Is(l.Err, weights.ErrTruncated) || !errors.As(l.Err, &at) || at.File != r.path || !strings.Contains(l.Err.Error(), want) {
				t.Errorf("expert %d: %v", e, l.Err)
			}
		}
		if !r.noted("was written to after it was opened") {
			t.Errorf("notes %q", r.notes)
		}
	})
	t.Run("replaced", func(t *testing.T) {
		r := start(t, Config{}, nil)
		if err := os.WriteFile(r.path+".new", make([]byte, len(r.content)), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(r.path+".new", r.path); err != nil {
			t.Skip(err)
		}
		for e := range int32(experts) {
			r.ask(e, messages.Demand)
			if l := r.answer(); l.Err != nil || !r.holds(l.Data, l.Key.Expert) {
				t.Errorf("%v", l.Err)
			}
		}
	})
	t.Run("removed before", func(t *testing.T) {
		s := newTable(t)
		if err := os.Remove(s.path); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Config{Source: s, Tier: make(inbox)}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), s.path) {
			t.Errorf("%v", err)
		}
	})
}

// TestOrder holds the only reader back and looks at what it does next.
func TestOrder(t *testing.T) {
	gate := make(chan struct{})
	r := start(t, Config{Readers: 1}, func(_ int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
		<-gate
		return read(p, off)
	})
	r.ask(0, messages.Predicted)
	r.ask(1, messages.Warm)
	r.ask(2, messages.Predicted)
	r.ask(3, messages.Predicted)
	r.ask(4, messages.Demand)
	raise, cancel := messages.Raises.Get(), messages.Cancels.Get()
	raise.Key, cancel.Key = messages.Key{Expert: 3}, messages.Key{Expert: 2}
	r.Receive(raise)
	r.Receive(cancel)
	if l := r.answer(); l.Err != messages.ErrCanceled || l.Key.Expert != 2 || l.Slot != 2 {
		t.Errorf("%+v", l)
	}
	close(gate)
	for _, want := range []int32{0, 4, 3, 1} {
		if l := r.answer(); l.Err != nil || l.Key.Expert != want {
			t.Errorf("%+v, not expert %d", l, want)
		}
	}
}

// TestClose ends a prefetcher with reads in flight, queued, and coming later: each has its answer.
func TestClose(t *testing.T) {
	gate := make(chan struct{})
	r := start(t, Config{Readers: 2}, func(_ int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
		<-gate
		return read(p, off)
	})
	for e := range int32(5) {
		r.ask(e, messages.Demand)
	}
	time.AfterFunc(20*ms, func() { close(gate) })
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	r.ask(6, messages.Demand)
	read, stopped := 0, 0
	for range 6 {
		switch l := r.answer(); {
		case l.Err == nil && r.holds(l.Data, l.Key.Expert):
			read++
		case l.Err == messages.ErrStopped:
			stopped++
		default:
			t.Errorf("%+v", l)
		}
	}
	if read != 2 || stopped != 4 {
		t.Errorf("%d read, %d stopped", read, stopped)
	}
}

// TestCloseOfHungDrive does not wait for ever.
func TestCloseOfHungDrive(t *testing.T) {
	gate := make(chan struct{})
	s := newTable(t)
	tier := make(inbox, 2)
	p, err := New(Config{Source: s, Tier: tier, Direct: Off, Open: func(path string, direct bool) (File, error) {
		f, err := openFile(path, direct)
		return &faulty{f, new(atomic.Int64), direct, func(_ int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
			<-gate
			return read(p, off)
		}}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	p.patience = 10 * ms
	p.Receive(&messages.Read{Dst: make([]byte, 2*partBytes)})
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "the drive may hang") {
		t.Errorf("%v", err)
	}
	close(gate)
	if l := <-tier; l.Err != nil || !s.holds(l.Data, 0) {
		t.Errorf("%v", l.Err)
	}
	p.ended.Wait()
	if err := p.closeFiles(); err != nil {
		t.Error(err)
	}
}

// TestPolicy changes the number of reads at a time while reads are on their way. Reads are held until the test lets them go.
func TestPolicy(t *testing.T) {
	var now atomic.Int64
	held := make(chan bool)
	r := start(t, Config{Readers: 1, Direct: Off}, func(_ int64, _ bool, p []byte, off int64, read readFunc) (int, error) {
		if off < experts*partBytes { // the first of the two of an expert
			now.Add(1)
			<-held
			now.Add(-1)
		}
		return read(p, off)
	})
	inFlight := func(want int64) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); now.Load() != want; time.Sleep(ms) {
			if time.Now().After(deadline) {
				t.Fatalf("%d reads in flight, want %d", now.Load(), want)
			}
		}
		time.Sleep(2 * ms)
		if n := now.Load(); n != want {
			t.Fatalf("%d reads in flight, want %d", n, want)
		}
	}
	end := func(n int) {
		for range n {
			held <- true
			if l := r.answer(); l.Err != nil || !r.holds(l.Data, l.Key.Expert) {
				t.Errorf("%+v", l)
			}
		}
	}
	for e := range int32(experts) {
		r.ask(e, messages.Demand)
	}
	inFlight(1)
	r.Receive(&messages.Policy{Readers: 4})
	inFlight(4)
	r.Receive(&messages.Policy{Readers: 2}) // those in flight go on
	inFlight(4)
	end(2)
	inFlight(2)
	end(1)
	inFlight(2)
	r.Receive(&messages.Policy{Readers: 0}) // none would never end
	end(1)
	inFlight(1)
	r.Receive(&messages.Policy{Readers: 1000})
	inFlight(4)
	end(4)
	if r.number > 4 {
		t.Errorf("%d readers were started for 4 reads at a time", r.number)
	}
}

// TestMeasured: whoever measures reads is told of each, failed ones too.
func TestMeasured(t *testing.T) {
	var began, ended, failed, bytes atomic.Int64
	r := start(t, Config{Readers: 2, Begin: func() { began.Add(1) }, Observe: func(n int64, took time.Duration, bad bool) {
		ended.Add(1)
		bytes.Add(n)
		if bad {
			failed.Add(1)
		}
		if took <= 0 {
			t.Errorf("a read took %v", took)
		}
	}}, nil)
	for e := range int32(experts) {
		r.ask(e, messages.Demand)
		r.answer()
	}
	m := messages.Reads.Get()
	m.Key, m.Dst = messages.Key{Expert: experts}, r.slots.Slot(0)
	r.Receive(m)
	if l := r.answer(); l.Err == nil {
		t.Error("an expert that there is not was read")
	}
	if began.Load() != experts+1 || ended.Load() != experts+1 || failed.Load() != 1 || bytes.Load() != r.Stats().Bytes {
		t.Errorf("%d began, %d ended, %d failed, %d bytes of %+v", began.Load(), ended.Load(), failed.Load(), bytes.Load(), r.Stats())
	}
}

// TestNotes says how experts are read.
func TestNotes(t *testing.T) {
	bad := errors.New("out of order")
	refusing := func(err error) func(string, bool) (File, error) {
		return func(path string, direct bool) (File, error) {
			if direct {
				return nil, err
			}
			return openFile(path, direct)
		}
	}
	notes := map[string]Config{
		"experts are read through the page cache, as asked":                                {Direct: Off},
		"in 1 of 1 files: whether model.bin can be read directly is unknown: out of order": {Open: refusing(bad)},
		"page cache in 1 of 1 files: the file system of model.bin refuses direct reads":    {Open: refusing(errors.ErrUnsupported)},
	}
	for want, cfg := range notes {
		var got []string
		cfg.Source, cfg.Tier, cfg.Note = newTable(t), make(inbox), func(s string) { got = append(got, s) }
		p, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%q, not %q", got, want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := New(Config{Source: newTable(t), Tier: make(inbox), Direct: On, Open: refusing(bad)}); !errors.Is(err, bad) {
		t.Errorf("--direct on where it does not work: %v", err)
	}
}

func TestParseMode(t *testing.T) {
	for _, m := range []Mode{Auto, On, Off} {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("%v: %v %v", m, got, err)
		}
	}
	if _, err := ParseMode("maybe"); err == nil {
		t.Error("maybe is a mode")
	}
}

// TestReadAllocatesNothing sends a read and waits for it.
func TestReadAllocatesNothing(t *testing.T) {
	r := start(t, Config{Readers: 2}, nil)
	if n := testing.AllocsPerRun(500, func() {
		r.ask(1, messages.Demand)
		r.ask(2, messages.Predicted)
		for range 2 {
			l := <-r.inbox
			messages.Landeds.Put(l)
		}
	}); n != 0 && !sharedtest.Race {
		t.Errorf("%v allocations for two reads", n)
	}
}

func TestArena(t *testing.T) {
	m, err := Arena(5, 3*blockSize-1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.Slots() {
		b := m.Slot(i)
		if len(b) != 3*blockSize || cap(b) != len(b) {
			t.Fatalf("slot %d has %d bytes, %d with what follows", i, len(b), cap(b))
		}
		for k := range b {
			if b[k] != 0 {
				t.Fatalf("slot %d is not empty", i)
			}
			b[k] = byte(i + 1)
		}
	}
	if m.Slots() != 5 || m.Slot(0)[0] != 1 || m.Slot(4)[0] != 5 {
		t.Error("slots overlap")
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range [][2]int64{{0, 1}, {1, 0}, {-1, 5}, {5, -1}, {1 << 40, 1 << 40}} {
		if m, err := Arena(int(bad[0]), bad[1]); err == nil {
			m.Close()
			t.Errorf("an arena of %v", bad)
		}
	}
}

func TestRawRate(t *testing.T) {
	s := newTable(t)
	if rate, err := RawRate(t.Context(), s.Files(), 2*blockSize, 2, 20*ms); err == nil && rate <= 0 {
		t.Errorf("%v bytes a second", rate)
	} else if err != nil && !strings.Contains(err.Error(), "direct reads") {
		t.Error(err)
	}
	for name, call := range map[string]func() (float64, error){
		"larger than the files": func() (float64, error) { return RawRate(t.Context(), s.Files(), 1<<30, 1, ms) },
		"no such file":          func() (float64, error) { return RawRate(t.Context(), []string{s.path + "x"}, 1, 1, ms) },
	} {
		if rate, err := call(); err == nil {
			t.Errorf("%s: %v", name, rate)
		}
	}
}
