package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/coli-moe/coli/internal/disk"
	"github.com/coli-moe/coli/internal/loghist"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
)

// IOConfig says what NewIO compares.
type IOConfig struct {
	Files   []string // that are read; none is written to
	Sizes   []int64  // of a request, multiples of 4 KiB
	Readers []int
	Ways    []prefetcher.Way
	Probe   []bool // whether the block layer is measured meanwhile
	State   State
	Time    time.Duration // of a repetition, at most
	Seed    uint64
}

// NewIO is the experiment "io": what the drive below some files delivers by size of the requests, goroutines that make them, and way to
// read. Repetition for repetition, all arms of a size read at the same places, in an order that the seed decides. In state Cold, a
// repetition that goes through the page cache ends when every place has been read: what is read twice does not come from the drive.
func NewIO(cfg IOConfig) (Experiment, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	var largest int64
	for _, path := range cfg.Files {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		largest = max(largest, info.Size())
	}
	for _, size := range cfg.Sizes {
		if size > largest {
			return nil, badSetting("requests of %s, and no file has more than %s: read a larger file or smaller requests",
				ledger.FormatSize(size), ledger.FormatSize(largest))
		}
	}
	return &ioExperiment{cfg}, nil
}

// Check is an error if there is something that no file can be read with.
func (c *IOConfig) Check() error {
	for _, size := range c.Sizes {
		if size < ioAlign || size%ioAlign != 0 {
			return badSetting("requests of %d bytes: want a multiple of 4 KiB, as drives are read past the page cache", size)
		}
	}
	for _, n := range c.Readers {
		if n < 1 || n > prefetcher.MaxReaders {
			return badSetting("%d readers: want 1 to %d", n, prefetcher.MaxReaders)
		}
	}
	return nil
}

// ioAlign is what direct reads ask for.
const ioAlign = 4096

type ioExperiment struct{ cfg IOConfig }

func (*ioExperiment) Name() string { return "io" }

// Files implements Reader.
func (e *ioExperiment) Files() []string { return e.cfg.Files }

func (*ioExperiment) Metrics() []Metric {
	return []Metric{
		{Name: "GB/s", Unit: "GB/s", Help: "bytes that the program got", Better: 1, Table: true, Digits: 3},
		{Name: "IOPS", Unit: "1/s", Help: "reads of the program", Better: 1, Table: true},
		{Name: "read p50", Unit: "µs", Help: "latency of a read, as the program sees it: half of them took no longer", Better: -1, Table: true, Digits: 1},
		{Name: "read p95", Unit: "µs", Help: "95 % of the reads took no longer", Better: -1, Digits: 1},
		{Name: "read p99", Unit: "µs", Help: "99 % of the reads took no longer", Better: -1, Table: true, Digits: 1},
		{Name: "CPU ms/GB", Unit: "ms/GB", Help: "processor time of the whole program", Better: -1, Table: true, Digits: 1},
		{Name: "requests/read", Help: "requests to the drive that a read became", Better: -1, Table: true, Digits: 2},
		{Name: "drive bytes/byte", Help: "bytes the drive was asked for, by bytes the program got", Better: -1, Table: true, Digits: 3},
		{Name: "queue mean", Unit: "µs", Help: "from a request's making until the drive had it", Better: -1, Digits: 1},
		{Name: "device p50", Unit: "µs", Help: "a request's time in the drive, to a factor of two", Better: -1, Digits: 1},
		{Name: "device mean", Unit: "µs", Help: "a request's time in the drive", Better: -1, Table: true, Digits: 1},
		{Name: "device p99", Unit: "µs", Help: "99 % of the requests took no longer in the drive, to a factor of two", Better: -1, Digits: 1},
		{Name: "in flight", Help: "requests in the drive on average: their time in it by the time that passed"},
		{Name: "lost", Help: "requests that nobody saw complete, which are not in the times"},
	}
}

func (e *ioExperiment) Arms() (arms []Arm) {
	for _, size := range e.cfg.Sizes {
		for _, way := range e.cfg.Ways {
			for _, readers := range e.cfg.Readers {
				for _, probed := range e.cfg.Probe {
					bytes := prefetcher.RawMemory(size, readers)
					if way == prefetcher.Mapped {
						bytes = 0
					}
					arms = append(arms, Arm{
						Test: "random reads",
						Params: []Param{
							{"size", sizeText(size)}, {"mode", way.String()}, {"readers", strconv.Itoa(readers)}, {"probe", onOff(probed)},
						},
						Bytes: bytes,
						Open: func(context.Context) (Run, error) {
							return e.start(prefetcher.RawConfig{Files: e.cfg.Files, Way: way, Size: size, Readers: readers}, probed)
						},
					})
				}
			}
		}
	}
	return arms
}

// Conclude implements Concluder: what the probe costs, where arms with it and without are side by side.
func (e *ioExperiment) Conclude(records []Record) (lines []string) {
	for _, on := range records {
		i := slices.IndexFunc(records, func(off Record) bool {
			return off.Param("probe") == "off" && on.Param("probe") == "on" && !slices.ContainsFunc(on.Params, func(p Param) bool {
				return p.Name != "probe" && p.Value != off.Param(p.Name)
			})
		})
		if i < 0 {
			continue
		}
		// Repetitions of the same number lie next to each other in time.
		with, without := on.Metrics["IOPS"].Samples, records[i].Metrics["IOPS"].Samples
		var lost []float64
		for rep := range min(len(with), len(without)) {
			lost = append(lost, 100*(1-with[rep]/without[rep]))
		}
		if len(lost) > 0 {
			cost := summarize(Metric{}, lost)
			lines = append(lines, fmt.Sprintf("the probe costs %.1f %% of the reads a second (± %.1f, standard error of %d pairs): %s, %s, %s readers",
				cost.Mean, cost.SD/math.Sqrt(float64(len(lost))), len(lost), on.Param("size"), on.Param("mode"), on.Param("readers")))
		}
	}
	return lines
}

// sizeText is a size as ledger.ParseSize reads it, without loss.
func sizeText(bytes int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if bytes%u.bytes == 0 {
			return strconv.FormatInt(bytes/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(bytes, 10)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func (e *ioExperiment) start(cfg prefetcher.RawConfig, probed bool) (Run, error) {
	raw, err := prefetcher.OpenRaw(cfg)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("%w: the file system refuses: %w", ErrSkip, err)
	}
	if err != nil {
		return nil, err
	}
	r := &ioRun{e: e, raw: raw, cfg: cfg, probed: probed}
	for range cfg.Readers {
		r.latency = append(r.latency, hdrhistogram.New(1, int64(slowest), 3))
	}
	return r, nil
}

// slowest is the longest read that is told from a longer one.
const slowest = time.Minute

// ioRun is an open arm.
type ioRun struct {
	e       *ioExperiment
	cfg     prefetcher.RawConfig
	raw     *prefetcher.Raw
	probed  bool
	latency []*hdrhistogram.Histogram // of each reader
}

// minSettle is the least time that reads go on, where arms with the probe and without are compared, before they are measured.
const minSettle = 50 * time.Millisecond

// Warm has the page cache hold what fits of the files, in state Warm; what does not, the samples will show.
func (r *ioRun) Warm(ctx context.Context) error {
	if r.e.cfg.State == Warm && r.cfg.Way != prefetcher.Direct {
		_, err := r.raw.Run(ctx, prefetcher.RawRun{Time: 1 << 62, Once: true})
		return err
	}
	_, err := r.raw.Run(ctx, prefetcher.RawRun{Seed: ^r.e.cfg.Seed, Time: r.e.cfg.Time / 10})
	return err
}

func (r *ioRun) Measure(ctx context.Context, rep int) (s Sample, err error) {
	run := prefetcher.RawRun{
		Seed: r.e.cfg.Seed + uint64(rep), Time: r.e.cfg.Time,
		Once: r.e.cfg.State == Cold && r.cfg.Way != prefetcher.Direct,
	}
	var p *probe.Probe
	var before, after probe.Snapshot
	if r.probed {
		if p, err = probe.Open(probe.Options{}); err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, p.Close()) }()
		run.Begin = p.Begin
	}
	if len(r.e.cfg.Probe) > 1 && r.cfg.Way == prefetcher.Direct {
		// What opening the probe leaves behind, garbage and code that processors fetch anew, is no part of what it costs a read: 8 ms were
		// measured. Arms without it do the same.
		runtime.GC()
		if _, err := r.raw.Run(ctx, prefetcher.RawRun{Seed: ^run.Seed, Time: max(run.Time/4, minSettle)}); err != nil {
			return s, err
		}
	}
	if p != nil {
		if err := p.Read(&before); err != nil {
			return s, err
		}
	}
	for _, h := range r.latency {
		h.Reset()
	}
	run.Seen = func(reader int, took time.Duration, bytes int64, failed bool) {
		// Read by this goroutine when the reader has ended.
		_ = r.latency[reader].RecordValue(min(max(int64(took), 1), int64(slowest)))
		if p != nil {
			p.Observe(bytes, took, failed)
		}
	}
	busy := cpuTime()
	f, err := r.raw.Run(ctx, run)
	busy = cpuTime() - busy
	if err != nil {
		return s, err
	}
	all := hdrhistogram.New(1, int64(slowest), 3)
	var latency loghist.Hist
	for _, h := range r.latency {
		all.Merge(h)
	}
	for _, bar := range all.Distribution() {
		at := (bar.From + bar.To) / 2
		latency.Buckets[loghist.Bucket(at)] += uint64(bar.Count)
		latency.Count += uint64(bar.Count)
		latency.Sum += uint64(at * bar.Count)
	}
	s = Sample{
		Values: map[string]float64{
			"GB/s": float64(f.Bytes) / float64(f.Took), "IOPS": float64(f.Reads) / f.Took.Seconds(),
			"read p50": micros(all.ValueAtQuantile(50)), "read p95": micros(all.ValueAtQuantile(95)), "read p99": micros(all.ValueAtQuantile(99)),
		},
		Histograms: map[string]loghist.Hist{"read": latency},
	}
	if busy > 0 {
		s.Values["CPU ms/GB"] = busy.Seconds() * 1e3 / (float64(f.Bytes) / 1e9)
	}
	if run.Once && f.Took < r.e.cfg.Time {
		s.Notes = append(s.Notes, "a repetition ended when all of the file had been read; a larger one makes it longer")
	}
	if p != nil {
		if err := p.Read(&after); err != nil {
			return s, err
		}
		s.block(p, after.Since(&before), f)
	}
	return s, nil
}

// block adds what the block layer did during a run.
func (s *Sample) block(p *probe.Probe, d probe.Snapshot, f prefetcher.RawFigures) {
	if p.Mode() != probe.EBPF {
		if d.Own.ReadBytes > 0 { // without the kernel's word, the bytes would be zero for a file that is in memory and for any other
			s.Values["drive bytes/byte"] = float64(d.Own.ReadBytes) / float64(f.Bytes)
		}
		s.Notes = append(s.Notes, p.Why())
		return
	}
	ops := d.Reads()
	s.Values["requests/read"] = float64(ops.Requests) / float64(f.Reads)
	s.Values["drive bytes/byte"] = float64(ops.Bytes) / float64(f.Bytes)
	if ops.Device.Count > 0 {
		s.Values["queue mean"] = micros(int64(ops.Queue.Mean()))
		s.Values["device p50"], s.Values["device p99"] = micros(int64(ops.Device.Quantile(0.5))), micros(int64(ops.Device.Quantile(0.99)))
		s.Values["device mean"] = micros(int64(ops.Device.Mean()))
		s.Values["in flight"] = float64(ops.Device.Sum) / float64(f.Took)
		s.Histograms["queue"], s.Histograms["device"] = ops.Queue, ops.Device
	}
	s.Values["lost"] = float64(ops.Lost)
	if d.Untracked > 0 {
		s.Notes = append(s.Notes, "more requests, or drives, than the probe can follow: its figures are too low")
	}
}

func micros(ns int64) float64 { return float64(ns) / 1e3 }

func (r *ioRun) Close() error { return r.raw.Close() }

// fileStep is how much of a file of its own io writes at once.
const fileStep = 4 << 20

// MakeFile writes a file of size bytes that no drive can compress, of a name of its own in dir, for NewIO to read. It errs if the file
// would leave less than a tenth of the drive's free space. begin, which may be nil, is called before the first byte is written. remove
// deletes the file. When ctx ends, nothing is left.
func MakeFile(ctx context.Context, dir string, size int64, seed uint64, begin func()) (path string, remove func() error, err error) {
	if free, ok := disk.Free(dir); ok && size > free-free/10 {
		return "", nil, fmt.Errorf("%s has %s free, too little for a file of %s: choose another folder, or a smaller file",
			dir, ledger.FormatSize(free), ledger.FormatSize(size))
	}
	f, err := os.CreateTemp(dir, "coli-bench-io-*.tmp")
	if err != nil {
		return "", nil, fmt.Errorf("a file to be read: %w; choose a folder that can be written to", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = fmt.Errorf("writing a file of %s: %w", ledger.FormatSize(size), errors.Join(err, os.Remove(f.Name())))
		}
	}()
	if begin != nil {
		begin()
	}
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	random := rand.NewChaCha8(key)
	chunk := make([]byte, fileStep)
	for left := size; left > 0; {
		if err := ctx.Err(); err != nil {
			return "", nil, err
		}
		n := min(left, fileStep)
		_, _ = random.Read(chunk[:n]) // never fails
		if _, err := f.Write(chunk[:n]); err != nil {
			return "", nil, err
		}
		left -= n
	}
	// What is not on the drive yet cannot be evicted from the page cache.
	if err := f.Sync(); err != nil {
		return "", nil, err
	}
	return f.Name(), func() error { return os.Remove(f.Name()) }, nil
}

// RegularFiles returns path, or if it is a folder the regular files in it, hidden ones left out.
func RegularFiles(path string) (files []string, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().IsRegular():
		return []string{path}, nil
	case !info.IsDir():
		return nil, fmt.Errorf("%s is neither a file nor a folder", path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name := filepath.Join(path, entry.Name())
		if strings.HasPrefix(entry.Name(), ".") { // the usage history, for one
			continue
		}
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			files = append(files, name)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no file to be read", path)
	}
	return files, nil
}
