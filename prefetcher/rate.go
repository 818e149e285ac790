package prefetcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxRawBytes = 2 << 30 // RawRate reads at most
	// rawMemory is what raw reads go into, since experts do not land in the processor's cache either: a virtual disk measured
	// delivered 2.9 GB/s into the same few megabytes over and over, but 1.9 GB/s into 40 MB or more.
	rawMemory = 128 << 20
)

// RawRate measures what the drive delivers: readers goroutines read requests of size bytes (rounded up to 4 KiB) at random places of
// the files with direct I/O, for at most d. The result is in bytes per second. It is an error if the file system refuses direct reads,
// since a rate through the page cache says nothing about the drive, or if no file has size bytes.
func RawRate(ctx context.Context, paths []string, size int64, readers int, d time.Duration) (float64, error) {
	raw, err := OpenRaw(RawConfig{Files: paths, Size: size, Readers: readers})
	if err != nil {
		return 0, err
	}
	defer raw.Close()
	f, err := raw.Run(ctx, RawRun{Seed: rand.Uint64(), Time: d, Bytes: maxRawBytes})
	if err != nil {
		return 0, err
	}
	return float64(f.Bytes) / f.Took.Seconds(), nil
}

// Way is how raw reads go.
type Way uint8

// The ways.
const (
	Direct   Way = iota // past the page cache
	Buffered            // through it
	Mapped              // by touching each page of a mapping
)

var wayNames = []string{"direct", "buffered", "mmap"}

func (w Way) String() string { return wayNames[w] }

// ParseWay returns the way called name.
func ParseWay(name string) (Way, error) {
	if i := slices.Index(wayNames, strings.ToLower(name)); i >= 0 {
		return Way(i), nil
	}
	return 0, fmt.Errorf("%q is none of %s", name, strings.Join(wayNames, ", "))
}

// RawConfig says what raw reads are of. Readers beyond MaxReaders count as so many.
type RawConfig struct {
	Files   []string
	Way     Way
	Size    int64 // of a request, rounded up to 4 KiB
	Readers int   // goroutines, each with one request at a time
}

// Raw reads files without making anything of what they hold, to measure how fast that goes. One goroutine uses it.
type Raw struct {
	cfg   RawConfig
	files []rawFile
	count uint64  // of the places a request can begin at, over all files
	mem   *Memory // what is read, nil for Mapped
	each  int     // slots of a reader
}

// rawFile is an open file: so many requests after one another, of which the first is number first of all files'.
type rawFile struct {
	File
	name  string
	first uint64
	size  int64
}

// OpenRaw opens the files, none of which is written to, and takes the memory that is read into. Files smaller than a request are left out.
func OpenRaw(cfg RawConfig) (_ *Raw, err error) {
	cfg.Size = max((cfg.Size+blockSize-1)/blockSize*blockSize, blockSize)
	cfg.Readers = min(max(cfg.Readers, 1), MaxReaders)
	r := &Raw{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	for _, path := range cfg.Files {
		at, err := statPath(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if at.Size < cfg.Size {
			continue
		}
		f, err := openRaw(path, cfg.Way, at.Size)
		if err != nil {
			return nil, fmt.Errorf("measuring the drive: %w", err)
		}
		r.files = append(r.files, rawFile{f, filepath.Base(path), r.count, at.Size})
		r.count += uint64(at.Size / cfg.Size)
	}
	if len(r.files) == 0 {
		return nil, fmt.Errorf("measuring the drive: no file has %d bytes", cfg.Size)
	}
	if cfg.Way == Mapped {
		return r, nil
	}
	r.each = rawSlots(cfg.Size, cfg.Readers)
	if r.mem, err = Arena(cfg.Readers*r.each, cfg.Size); err != nil {
		return nil, err
	}
	for b := r.mem.Data; len(b) > 0; b = b[min(len(b), blockSize):] {
		b[0] = 1 // pages are taken and cleared before any clock starts
	}
	return r, nil
}

// rawSlots is how many requests of a reader have memory of their own.
func rawSlots(size int64, readers int) int { return int(max(rawMemory/size/int64(readers), 1)) }

// RawMemory is how many bytes OpenRaw takes for requests of size bytes, a multiple of 4 KiB, if the way is not Mapped.
func RawMemory(size int64, readers int) int64 {
	return size * int64(readers) * int64(rawSlots(size, readers))
}

func openRaw(path string, way Way, size int64) (File, error) {
	if way != Direct {
		return openFile(path, false)
	}
	f, answer, err := probeDirect(openFile, path, size)
	if answer != yes {
		return nil, fmt.Errorf("direct reads of %s: %w", filepath.Base(path), err)
	}
	return f, nil
}

// Close closes the files and gives the memory back.
func (r *Raw) Close() (err error) {
	for _, f := range r.files {
		err = errors.Join(err, f.Close())
	}
	r.files = nil
	if r.mem != nil {
		err = errors.Join(err, r.mem.Close())
	}
	return err
}

// RawRun is a run of raw reads.
type RawRun struct {
	Seed  uint64        // of the order of places: one way reads where another one does
	Time  time.Duration // reads that begin later are not made
	Bytes int64         // likewise when so many have been read; 0: no bound
	Once  bool          // end when every place has been read, rather than begin again
	// Begin and Seen are called by a reader before and after each read of its own; they may be nil.
	Begin func()
	Seen  func(reader int, took time.Duration, bytes int64, failed bool)
}

// RawFigures are of a run: from its beginning to the end of its last read.
type RawFigures struct {
	Reads, Bytes int64
	Took         time.Duration
}

// errGone says that a mapped file's pages could not be had.
var errGone = errors.New("its pages cannot be read; has it been truncated, or does the drive fail?")

// Run reads at places in an order that the seed decides, each place once before any twice. It makes one read at least.
func (r *Raw) Run(ctx context.Context, run RawRun) (RawFigures, error) {
	if run.Begin == nil {
		run.Begin = func() {}
	}
	if run.Seen == nil {
		run.Seen = func(int, time.Duration, int64, bool) {}
	}
	w := rawWork{raw: r, run: run, order: newShuffle(r.count, run.Seed)}
	if r.cfg.Way == Mapped {
		// Mapped anew for each run: the system keeps in its cache what is mapped.
		for _, f := range r.files {
			m, unmap, err := mapFile(f.File, f.size)
			if err != nil {
				return RawFigures{}, fmt.Errorf("mapping %s: %w", f.name, err)
			}
			defer unmap() //nolint:errcheck // an address range that was mapped can be unmapped
			w.maps = append(w.maps, m)
		}
	}
	var readers sync.WaitGroup
	w.start = time.Now()
	for i := range r.cfg.Readers {
		readers.Go(func() { w.read(ctx, i) })
	}
	readers.Wait()
	figures := RawFigures{Reads: w.reads.Load(), Bytes: w.bytes.Load(), Took: time.Since(w.start)}
	if failed := w.failed.Load(); failed != nil {
		return figures, *failed
	}
	return figures, ctx.Err()
}

// rawWork is what the readers of a run share.
type rawWork struct {
	raw   *Raw
	run   RawRun
	order shuffle
	maps  [][]byte
	start time.Time

	next         atomic.Uint64
	reads, bytes atomic.Int64
	failed       atomic.Pointer[error]
}

// read is reader i.
func (w *rawWork) read(ctx context.Context, i int) {
	r := w.raw
	for turn := 0; ; turn++ {
		n := w.next.Add(1) - 1
		end := n > 0 && time.Since(w.start) >= w.run.Time || w.run.Bytes > 0 && w.bytes.Load() >= w.run.Bytes || w.run.Once && n >= r.count
		if end || ctx.Err() != nil || w.failed.Load() != nil {
			return
		}
		place := w.order.at(n % r.count)
		k := len(r.files) - 1
		for r.files[k].first > place {
			k--
		}
		off := int64(place-r.files[k].first) * r.cfg.Size
		w.run.Begin()
		begin := time.Now()
		got, err := w.fetch(k, off, i, turn)
		w.run.Seen(i, time.Since(begin), int64(got), err != nil)
		w.reads.Add(1)
		w.bytes.Add(int64(got))
		if err != nil {
			err = fmt.Errorf("measuring the drive: %s, byte %d: %w", r.files[k].name, off, err)
			w.failed.CompareAndSwap(nil, &err)
		}
	}
}

// fetch makes a request.
func (w *rawWork) fetch(file int, off int64, reader, turn int) (got int, err error) {
	r := w.raw
	if w.maps != nil {
		return touch(w.maps[file][off : off+r.cfg.Size])
	}
	for {
		got, err = r.files[file].ReadAt(r.mem.Slot(reader*r.each + turn%r.each)[:r.cfg.Size], off)
		switch {
		case interrupted(err):
		case got > 0 && (err == nil || errors.Is(err, io.EOF)):
			return got, nil
		case err == nil:
			return 0, errEnd
		default:
			return got, err
		}
	}
}

// touch loads a byte of each page of b, which is mapped.
func touch(b []byte) (n int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			n, err = 0, errGone
		}
	}()
	var sum byte
	for i := 0; i < len(b); i += blockSize {
		sum += b[i]
	}
	touched.Store(uint32(sum))
	return len(b), nil
}

// touched makes use of what touch loads.
var touched atomic.Uint32

// shuffle is an order of the numbers below n: a Feistel network of four rounds over the next power of four, followed until it leads to a
// number below n. It takes no memory, and is as random as places on a drive need be.
type shuffle struct {
	n    uint64
	half uint // bits of a half of the network's numbers
	keys [4]uint64
}

func newShuffle(n, seed uint64) shuffle {
	s := shuffle{n: n, half: 1}
	for n > 1<<(2*s.half) {
		s.half++
	}
	rng := rand.New(rand.NewPCG(seed, n))
	for i := range s.keys {
		s.keys[i] = rng.Uint64() | 1
	}
	return s
}

// at returns the i-th number.
func (s *shuffle) at(i uint64) uint64 {
	mask := uint64(1)<<s.half - 1
	for {
		left, right := i>>s.half, i&mask
		for _, key := range s.keys {
			mixed := (right + key) * 0x9e3779b97f4a7c15
			mixed = (mixed ^ mixed>>32) * key
			left, right = right, left^(mixed>>40)&mask
		}
		if i = left<<s.half | right; i < s.n {
			return i
		}
	}
}
