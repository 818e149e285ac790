package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coli-moe/coli/internal/disk"
	"github.com/coli-moe/coli/prefetcher"
)

// ioFile is a file of 1 MiB.
func ioFile(t *testing.T) string {
	t.Helper()
	path, remove, err := MakeFile(t.Context(), t.TempDir(), 1<<20, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	return path
}

var allWays = []prefetcher.Way{prefetcher.Direct, prefetcher.Buffered, prefetcher.Mapped}

// Every way, with the probe and without: figures that agree with each other, and a file that is as it was.
func TestIO(t *testing.T) {
	path := ioFile(t)
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range []State{Cold, Warm, Rotating} {
		cfg := IOConfig{
			Files: []string{path}, Sizes: []int64{4096, 64 << 10}, Readers: []int{3}, Ways: allWays, Probe: []bool{false, true},
			State: state, Time: 2 * time.Millisecond, Seed: 5,
		}
		if state != Cold {
			cfg.Probe = cfg.Probe[:1]
		}
		e, err := NewIO(cfg)
		if err != nil {
			t.Fatal(err)
		}
		records, err := Execute(t.Context(), e, Options{Reps: 2, State: state, Memory: 300 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if want := 2 * 3 * len(cfg.Readers) * len(cfg.Probe); len(records) != want {
			t.Fatalf("%d records, want %d", len(records), want)
		}
		for _, r := range records {
			if r.Skipped != "" {
				t.Log(r.Params, r.Skipped)
				continue
			}
			size := 4096.0
			if r.Param("size") == "64KiB" {
				size = 64 << 10
			}
			rate, iops := r.Metrics["GB/s"], r.Metrics["IOPS"]
			for i, v := range rate.Samples {
				if got := iops.Samples[i] * size / 1e9; got < 0.999*v || got > 1.001*v {
					t.Errorf("%v: %g reads a second are %g GB/s", r.Params, iops.Samples[i], v)
				}
			}
			p50, p99, h := r.Metrics["read p50"].Min, r.Metrics["read p99"].Min, r.Histograms["read"]
			if p50 <= 0 || p99 < p50 || h.Count == 0 {
				t.Errorf("%v: half of the reads within %g µs, nearly all within %g, %d in all", r.Params, p50, p99, h.Count)
			}
			if _, measured := r.Metrics["requests/read"]; measured && r.Param("mode") == "direct" {
				if bytes := r.Metrics["drive bytes/byte"]; bytes.Min < 1 || bytes.Min > 1.5 { // other reads of the process count too, now and then
					t.Errorf("%v: %+v", r.Params, bytes)
				}
			}
			if _, measured := r.Metrics["requests/read"]; measured && r.Param("probe") == "off" {
				t.Errorf("%v: measured", r.Params)
			}
		}
	}
	is, err := os.ReadFile(path)
	if err != nil || string(is) != string(was) {
		t.Errorf("the file has changed, %v", err)
	}
}

// Cold reads through the page cache end with the file; warm ones go on.
func TestIOReadsColdOnce(t *testing.T) {
	for state, d := range map[State]time.Duration{Cold: time.Second, Warm: 50 * time.Millisecond} { // enough for a file, and for more
		once := state == Cold
		e, err := NewIO(IOConfig{
			Files: []string{ioFile(t)}, Sizes: []int64{64 << 10}, Readers: []int{2}, Ways: []prefetcher.Way{prefetcher.Buffered},
			Probe: []bool{false}, State: state, Time: d,
		})
		if err != nil {
			t.Fatal(err)
		}
		s := measure(t, e, e.Arms()[0], 1)[0]
		if h := s.Histograms["read"]; (h.Count == 16) != once {
			t.Errorf("%s: %d reads", state, h.Count)
		}
		if noted := strings.Contains(strings.Join(s.Notes, ""), "a larger one"); noted != once {
			t.Errorf("%s: %q", state, s.Notes)
		}
	}
}

func TestIORefuses(t *testing.T) {
	path := ioFile(t)
	for what, cfg := range map[string]IOConfig{
		"no such file":        {Files: []string{path + "x"}, Sizes: []int64{4096}, Readers: []int{1}},
		"multiple of 4 KiB":   {Files: []string{path}, Sizes: []int64{5000}, Readers: []int{1}},
		"no file has more":    {Files: []string{path}, Sizes: []int64{2 << 20}, Readers: []int{1}},
		"65 readers: want 1 ": {Files: []string{path}, Sizes: []int64{4096}, Readers: []int{65}},
	} {
		if _, err := NewIO(cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A file that cannot be written, or is not wanted any more, leaves nothing.
func TestMakeFile(t *testing.T) {
	dir := t.TempDir()
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := MakeFile(stopped, dir, 1<<20, 0, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	begins := 0
	begin := func() { begins++ }
	if free, ok := disk.Free(dir); ok {
		if _, _, err := MakeFile(t.Context(), dir, free, 0, begin); err == nil || !strings.Contains(err.Error(), "free, too little for a file of") {
			t.Error(err)
		}
	}
	if _, _, err := MakeFile(t.Context(), filepath.Join(dir, "none"), 1, 0, begin); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if begins > 0 {
		t.Error("a file that is not written has begun to be")
	}
	path, remove, err := MakeFile(t.Context(), dir, 5<<20+3, 0, begin)
	if err != nil || begins != 1 {
		t.Fatal(err, begins)
	}
	if err := os.WriteFile(filepath.Join(dir, ".hidden"), []byte("counts"), 0o666); err != nil {
		t.Fatal(err)
	}
	if files, err := RegularFiles(dir); err != nil || len(files) != 1 || files[0] != path {
		t.Error(files, err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 5<<20+3 {
		t.Error(info, err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := RegularFiles(dir); err == nil || !strings.Contains(err.Error(), "no file to be read") {
		t.Error(err)
	}
}

func TestSizeText(t *testing.T) {
	for bytes, want := range map[int64]string{4096: "4KiB", 1 << 20: "1MiB", 3 << 30: "3GiB", 1536 << 10: "1536KiB", 512: "512"} {
		if got := sizeText(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
}

// The probe's cost is that of repetitions of the same number, in arms that differ in nothing else.
func TestIOConclude(t *testing.T) {
	record := func(size, probe string, iops ...float64) Record {
		return Record{
			Params:  []Param{{"size", size}, {"mode", "direct"}, {"readers", "2"}, {"probe", probe}},
			Metrics: map[string]Summary{"IOPS": {Samples: iops}},
		}
	}
	got := (&ioExperiment{}).Conclude([]Record{
		record("4KiB", "on", 98, 196), record("4KiB", "off", 100, 200), record("1MiB", "on", 5), {Skipped: "refused"},
	})
	want := "the probe costs 2.0 % of the reads a second (± 0.0, standard error of 2 pairs): 4KiB, direct, 2 readers"
	if len(got) != 1 || got[0] != want {
		t.Errorf("%q", got)
	}
}
