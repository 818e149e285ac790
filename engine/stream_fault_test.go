//go:build linux

package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/weights"
)

// faults are a model's weight files, in which reads of experts go wrong once it is loaded.
type faults struct {
	on    atomic.Bool
	reads atomic.Int64 // begun since on
	// read answers a read; real makes it.
	read func(n int64, p []byte, off int64, real func(p []byte, off int64) (int, error)) (int, error)
}

func (f *faults) open(path string, direct bool) (prefetcher.File, error) {
	flags := os.O_RDONLY
	if direct {
		flags |= unix.O_DIRECT
	}
	file, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	return &faultFile{f, file, int(file.Fd())}, nil
}

type faultFile struct {
	faults *faults
	f      *os.File
	fd     int
}

func (f *faultFile) real(p []byte, off int64) (int, error) {
	n, err := unix.Pread(f.fd, p, off)
	return max(n, 0), err
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if !f.faults.on.Load() {
		return f.real(p, off)
	}
	return f.faults.read(f.faults.reads.Add(1), p, off, f.real)
}

func (f *faultFile) Stat() (prefetcher.Stamp, error) {
	var st unix.Stat_t
	err := unix.Fstat(f.fd, &st)
	return prefetcher.Stamp{Size: st.Size, ModifiedNanos: st.Mtim.Nano(), Dev: uint64(st.Dev), Inode: st.Ino}, err
}

func (f *faultFile) Drop(int64, int64) {}

func (f *faultFile) Close() error { return f.f.Close() }

// copyOf returns a copy of a checkpoint that a test may spoil.
func copyOf(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(sharedtest.Testdata("oracles", name))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// streaming loads a checkpoint with room for two experts a layer.
func streaming(t *testing.T, dir string, f *faults, opt Options) (*Model, *notes) {
	t.Helper()
	c, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	record, err := c.Record(0, 0)
	if err = errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	said := new(notes)
	opt.RAM, opt.Note = 8*record.Bytes, said.add
	if f != nil {
		opt.open = f.open
	}
	m := load(t, dir, opt)
	if m.system == nil || !m.system.Streams() {
		t.Fatal(m.PlaceWhy)
	}
	said.take() // how the files are read
	if f != nil {
		f.on.Store(true)
	}
	return m, said
}

// inMemory are the logits of greedyRun without the pipeline's help.
func inMemory(t *testing.T, dir string) []float32 {
	t.Helper()
	m := load(t, dir, Options{Threads: 1})
	m.exec.Use(nil, nil)
	return greedyRun(t, m, prompt(21), 8)
}

// TestFaultyReads: whatever reads of experts do, the logits have the bits of the run in memory, and the user is told once of what should
// not have happened.
func TestFaultyReads(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	want := inMemory(t, dir)
	type real = func(p []byte, off int64) (int, error)
	const (
		repeated = "a read of an expert failed and was repeated; check the drive (dmesg, smartctl)"
		mapped   = "a step was computed from the mapped file: "
	)
	for _, tt := range []struct {
		name string
		read func(n int64, p []byte, off int64, real real) (int, error)
		line string // the one that is said; "" for none
		via  bool   // some steps are computed from the mapped file
	}{
		{"an error once", func(n int64, p []byte, off int64, real real) (int, error) {
			if n == 5 {
				return 0, unix.EIO
			}
			return real(p, off)
		}, repeated, false},
		{"an error now and then", func(n int64, p []byte, off int64, real real) (int, error) {
			if n%5 == 0 {
				return 0, unix.EIO
			}
			return real(p, off)
		}, repeated, false},
		{"an error that stays", func(n int64, p []byte, off int64, real real) (int, error) {
			if off < 600_000 {
				return 0, unix.EIO
			}
			return real(p, off)
		}, mapped, true},
		{"errors always", func(int64, []byte, int64, real) (int, error) { return 0, unix.EIO }, mapped, true},
		{"errors after a while", func(n int64, p []byte, off int64, real real) (int, error) {
			if n > 40 {
				return 0, unix.EIO
			}
			return real(p, off)
		}, mapped, true},
		{"a panic", func(n int64, p []byte, off int64, real real) (int, error) {
			if n == 3 {
				panic("in the file system")
			}
			return real(p, off)
		}, mapped, true},
		{"short reads", func(n int64, p []byte, off int64, real real) (int, error) {
			return real(p[:max(4096, len(p)/3/4096*4096)], off)
		}, "", false},
		{"reads that end inside a block", func(n int64, p []byte, off int64, real real) (int, error) {
			n1, err := real(p, off)
			return min(n1, 5000), err
		}, "", false},
		{"EINTR", func(n int64, p []byte, off int64, real real) (int, error) {
			if n%3 != 0 {
				return 0, unix.EINTR
			}
			return real(p, off)
		}, "", false},
		{"slow reads", func(n int64, p []byte, off int64, real real) (int, error) {
			time.Sleep(time.Duration(n%4) * time.Millisecond)
			return real(p, off)
		}, "", false},
	} {
		for _, direct := range []prefetcher.Mode{prefetcher.Auto, prefetcher.Off} {
			t.Run(tt.name+", direct "+direct.String(), func(t *testing.T) {
				sharedtest.Leaks(t)
				m, said := streaming(t, dir, &faults{read: tt.read}, Options{Threads: 2, Direct: direct, Prefetch: PrefetchOff})
				if !slices.Equal(greedyRun(t, m, prompt(21), 8), want) {
					t.Error("the logits differ from the run in memory")
				}
				lines := said.take()
				switch {
				case tt.line == "" && len(lines) > 0, tt.line != "" && len(lines) != 1:
					t.Errorf("lines %q", lines)
				case tt.line != "" && !strings.HasPrefix(lines[0], tt.line):
					t.Errorf("line %q, want %q", lines[0], tt.line)
				case tt.line == mapped && strings.Contains(tt.name, "error") &&
					!(strings.Contains(lines[0], "model.safetensors") && strings.Contains(lines[0], unix.EIO.Error()) && strings.Contains(lines[0], "byte ")):
					t.Errorf("line %q does not say where and why", lines[0])
				}
				if (m.failures > 0) != tt.via {
					t.Errorf("%d steps were computed from the mapped file", m.failures)
				}
			})
		}
	}
}

// TestFaultyReadsUnderAnyPolicy: so it is while the way to read changes with each step, up and down, and while the balancer tries what it likes.
func TestFaultyReadsUnderAnyPolicy(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	want := inMemory(t, dir)
	for _, who := range []string{"any", "the balancer's"} {
		t.Run(who, func(t *testing.T) {
			sharedtest.Leaks(t)
			opt := Options{Threads: 2}
			rng := rand.New(rand.NewPCG(5, 6))
			if who == "any" {
				opt.choose = func() messages.Policy {
					return messages.Policy{Readers: 1 + rng.IntN(prefetcher.MaxReaders), Depth: rng.IntN(5), Horizon: 1 + rng.IntN(4)}
				}
			}
			m, _ := streaming(t, dir, &faults{read: func(n int64, p []byte, off int64, real func([]byte, int64) (int, error)) (int, error) {
				time.Sleep(time.Duration(n%4) * time.Millisecond / 4)
				switch {
				case n%7 < 2:
					return 0, unix.EIO
				case n%31 == 0:
					panic("in the file system")
				}
				return real(p, off)
			}}, opt)
			for range 3 {
				if !slices.Equal(greedyRun(t, m, prompt(21), 8), want) {
					t.Error("the logits differ from the run in memory")
				}
			}
			if st := m.system.Reads(); st.Failed == 0 || st.Retried == 0 {
				t.Errorf("no read failed: %+v", st)
			}
		})
	}
}

// TestTruncatedWhileStreaming: a file that loses bytes that experts need ends the step with an error that says so. The last page of what
// is left of a file is mapped with zeros behind its end: these are no weights.
func TestTruncatedWhileStreaming(t *testing.T) {
	for _, tt := range []struct {
		name string
		by   func(size int64) int64
	}{
		{"to a page", func(int64) int64 { return 4096 }},
		{"to a half", func(n int64) int64 { return n / 2 }},
		{"by a few bytes", func(n int64) int64 { return n - 100 }},
	} {
		for _, direct := range []prefetcher.Mode{prefetcher.Auto, prefetcher.Off} {
			t.Run(tt.name+", direct "+direct.String(), func(t *testing.T) {
				sharedtest.Leaks(t)
				dir := copyOf(t, "olmoe")
				want := inMemory(t, dir)
				m, said := streaming(t, dir, &faults{read: pass}, Options{Threads: 2, Direct: direct})
				s := session(t, m, 0)
				if _, err := s.Forward(t.Context(), prompt(5)); err != nil {
					t.Fatal(err)
				}
				said.take()
				file := m.Checkpoint.Files()[0]
				info, err := os.Stat(file)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Truncate(file, tt.by(info.Size())); err != nil {
					t.Fatal(err)
				}
				var got []float32
				err = s.ForwardAll(t.Context(), prompt(21)[5:], func(_ int, l []float32) { got = append(got, l...) })
				switch v := m.Config.VocabSize; {
				case err == nil && slices.Equal(got, want[5*v:21*v]): // nothing that was needed is lost
				case err == nil:
					t.Error("the logits differ, and there is no error")
				case !strings.Contains(err.Error(), "truncated") && !errors.Is(err, weights.ErrTruncated):
					t.Errorf("error %v, want one about a truncated file", err)
				}
				if lines := said.take(); len(lines) > 1 {
					t.Errorf("lines %q", lines)
				}
			})
		}
	}
}

// TestNoWeightsFromBehindTheEnd: where the readers find the end of the file, the mapped file is not asked: it may have zeros there.
func TestNoWeightsFromBehindTheEnd(t *testing.T) {
	sharedtest.Leaks(t)
	m, said := streaming(t, sharedtest.Testdata("oracles", "olmoe"), &faults{read: func(int64, []byte, int64, func([]byte, int64) (int, error)) (int, error) {
		return 0, nil
	}}, Options{Threads: 2})
	_, err := session(t, m, 0).Forward(t.Context(), prompt(5))
	if !errors.Is(err, weights.ErrTruncated) || !strings.Contains(err.Error(), "restore the file and run again") {
		t.Errorf("error %v", err)
	}
	if lines := said.take(); len(lines) > 0 {
		t.Errorf("lines %q", lines)
	}
}

func pass(_ int64, p []byte, off int64, real func([]byte, int64) (int, error)) (int, error) {
	return real(p, off)
}

// TestReplacedWhileStreaming: a file that another one takes the name of goes on being read.
func TestReplacedWhileStreaming(t *testing.T) {
	sharedtest.Leaks(t)
	dir := copyOf(t, "olmoe")
	want := inMemory(t, dir)
	var once sync.Once
	file := filepath.Join(dir, "model.safetensors")
	f := &faults{read: func(n int64, p []byte, off int64, real func([]byte, int64) (int, error)) (int, error) {
		if n == 9 {
			once.Do(func() {
				info, err := os.Stat(file)
				if err == nil {
					err = os.WriteFile(file+".new", make([]byte, info.Size()), 0o644)
				}
				if err = errors.Join(err, os.Rename(file+".new", file)); err != nil {
					t.Error(err)
				}
			})
		}
		return real(p, off)
	}}
	m, said := streaming(t, dir, f, Options{Threads: 2})
	if !slices.Equal(greedyRun(t, m, prompt(21), 8), want) {
		t.Error("the logits differ from the run in memory")
	}
	if lines := said.take(); len(lines) > 0 || m.failures > 0 {
		t.Errorf("lines %q, %d steps from the mapped file", lines, m.failures)
	}
}

// TestInterrupted: Ctrl+C while experts are read ends the step at once, however long the reads take. The session goes on where it was.
func TestInterrupted(t *testing.T) {
	sharedtest.Leaks(t)
	dir := sharedtest.Testdata("oracles", "olmoe")
	want := inMemory(t, dir)
	hang := make(chan struct{})
	var hanging atomic.Bool
	reading := make(chan struct{}, 1)
	f := &faults{read: func(_ int64, p []byte, off int64, real func([]byte, int64) (int, error)) (int, error) {
		if hanging.Load() {
			select {
			case reading <- struct{}{}:
			default:
			}
			<-hang
		}
		return real(p, off)
	}}
	m, said := streaming(t, dir, f, Options{Threads: 2})
	s := session(t, m, 0)
	ids := prompt(21)
	if _, err := s.Forward(t.Context(), ids[:6]); err != nil {
		t.Fatal(err)
	}
	hanging.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := s.Forward(ctx, ids[6:])
		ended <- err
	}()
	<-reading
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the step waits for the drive although it was cancelled")
	}
	if n := len(s.Tokens()); n != 6 {
		t.Errorf("the session holds %d tokens, want the 6 that were computed", n)
	}
	hanging.Store(false)
	close(hang)
	var got []float32
	if err := s.ForwardAll(t.Context(), ids[6:], func(_ int, l []float32) { got = append(got, l...) }); err != nil {
		t.Fatal(err)
	}
	if v := m.Config.VocabSize; !slices.Equal(got, want[6*v:21*v]) {
		t.Error("the logits differ from the run in memory")
	}
	if lines := said.take(); len(lines) > 0 || m.failures > 0 {
		t.Errorf("lines %q, %d steps from the mapped file", lines, m.failures)
	}
}

// TestCloseWhileReading closes a model after a step that was cancelled, with its reads still under way, and closes it once more.
func TestCloseWhileReading(t *testing.T) {
	sharedtest.Leaks(t)
	started := make(chan struct{}, 1)
	f := &faults{read: func(_ int64, p []byte, off int64, real func([]byte, int64) (int, error)) (int, error) {
		select {
		case started <- struct{}{}:
		default:
		}
		time.Sleep(50 * time.Millisecond)
		return real(p, off)
	}}
	m, _ := streaming(t, sharedtest.Testdata("oracles", "olmoe"), f, Options{Threads: 2})
	s := session(t, m, 0)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	if _, err := s.Forward(ctx, prompt(20)); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	for range 2 { // and a third time by load's cleanup
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFileVanishes: a weight file that cannot be opened again for the readers is an error of Load, which leaves nothing behind.
func TestFileVanishes(t *testing.T) {
	sharedtest.Leaks(t)
	c := Options{RAM: 400_000, open: func(path string, _ bool) (prefetcher.File, error) {
		return nil, &os.PathError{Op: "open", Path: filepath.Base(path), Err: os.ErrNotExist}
	}}
	_, err := Load(t.Context(), sharedtest.Testdata("oracles", "olmoe"), c)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "model.safetensors") {
		t.Errorf("error %v", err)
	}
}

// TestSessionsAndInterruptions runs session after session on one model, and cancels them at random: those that end are right.
func TestSessionsAndInterruptions(t *testing.T) {
	sharedtest.Leaks(t)
	dir := sharedtest.Testdata("oracles", "olmoe")
	want := inMemory(t, dir)
	duration := time.Second
	if s := os.Getenv("COLI_STRESS"); s != "" {
		var err error
		if duration, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	f := &faults{read: func(n int64, p []byte, off int64, real func([]byte, int64) (int, error)) (int, error) {
		if n%17 == 0 {
			time.Sleep(time.Millisecond)
		}
		return real(p, off)
	}}
	m, said := streaming(t, dir, f, Options{Threads: 2, Chunk: 8, Prefetch: PrefetchOn})
	rng := rand.New(rand.NewPCG(1, 2))
	ids, v := prompt(21), m.Config.VocabSize
	whole, cut := 0, 0
	for end := time.Now().Add(duration); time.Now().Before(end); {
		s := session(t, m, 0)
		ctx, cancel := context.WithCancel(t.Context())
		if rng.IntN(3) > 0 {
			after := time.AfterFunc(time.Duration(rng.IntN(15_000))*time.Microsecond, cancel)
			defer after.Stop()
		}
		for len(s.Tokens()) < len(ids) {
			at := len(s.Tokens())
			var got []float32
			err := s.ForwardAll(ctx, ids[at:], func(_ int, l []float32) { got = append(got, l...) })
			if !slices.Equal(got, want[at*v:at*v+len(got)]) || len(s.Tokens()) != at+len(got)/v {
				t.Fatalf("the logits from position %d on differ from the run in memory", at)
			}
			if err == nil {
				whole++
				break
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			cut++
			cancel()
			if rng.IntN(2) == 0 {
				break // another session
			}
			ctx, cancel = context.WithCancel(t.Context())
		}
		cancel()
	}
	if whole == 0 || cut == 0 {
		t.Errorf("%d sessions ended, %d steps were cancelled", whole, cut)
	}
	if lines := said.take(); len(lines) > 0 || m.failures > 0 {
		t.Errorf("lines %q, %d steps from the mapped file", lines, m.failures)
	}
}
