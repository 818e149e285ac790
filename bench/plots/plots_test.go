package plots

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/internal/loghist"
)

var env = bench.Env{
	Commit: "1012165abcde", OS: "linux", Arch: "amd64", CPU: "Some  Processor @ 2.10GHz", Cores: 2, ISA: "AVX-512 VNNI", RAM: 24 << 30, Drive: "Some Drive", FS: "ext4",
}

func params(list ...string) (all []bench.Param) {
	for i := 0; i < len(list); i += 2 {
		all = append(all, bench.Param{Name: list[i], Value: list[i+1]})
	}
	return all
}

func summary(unit string, mean, sd float64) bench.Summary {
	return bench.Summary{Unit: unit, Better: 1, Mean: mean, SD: sd, Median: mean, Min: mean - sd, Max: mean + sd}
}

// hist has durations around a median.
func hist(median time.Duration, n int) (h loghist.Hist) {
	rng := rand.New(rand.NewPCG(1, uint64(median)))
	for range n {
		h.Add(time.Duration(float64(median) * math.Exp(rng.NormFloat64()*0.7)))
	}
	return h
}

// example are records of every experiment, as they may come.
func example() (all []bench.Record) {
	add := func(r bench.Record) {
		r.Env, r.Reps = env, 5
		all = append(all, r)
	}
	model := []bench.File{{Name: "config.json", Bytes: 100}, {Name: "olmoe-1b-7b-q4_k.coli", Bytes: 4 << 30}}
	for i, ram := range []int{10, 20, 40, 60, 80, 100} {
		x := float64(i + 1)
		add(bench.Record{
			Experiment: "stream", Test: "tg128", Params: params("ram", fmt.Sprintf("%d%%", ram), "readers", "auto"), State: bench.Rotating, Files: model,
			Metrics: map[string]bench.Summary{
				"tok/s": summary("tok/s", 3*x, 0.4), limitMetric: summary("tok/s", 4.2*x, 0), "GB/s": summary("GB/s", 2, 0.1),
				shareMetric: summary("%", float64(ram)-0.3, 0), hitMetric: summary("%", 100-60/x, 2),
			},
			Histograms: map[string]loghist.Hist{
				"queue": hist(time.Duration(40-5*i)*time.Microsecond, 5000), "device": hist(900*time.Microsecond, 5000), "read": hist(1500*time.Microsecond, 1000),
			},
			Parts: []bench.Part{{Name: "dense", Seconds: 0.012}, {Name: "experts", Seconds: 0.02}, {Name: "waiting for the disk", Seconds: 0.2 / x}, {Name: "rest", Seconds: 0.001}},
		})
	}
	for _, mode := range []string{"direct", "buffered", "mmap"} {
		for _, readers := range []int{1, 2, 4} {
			for size := 4 << 10; size <= 16<<20; size *= 4 {
				rate := 2.5 * float64(readers*size) / (float64(readers*size) + 100<<10)
				if mode != "direct" {
					rate *= 0.5
				}
				add(bench.Record{
					Experiment: "io", Test: "read", Params: params("size", byteSize(float64(size)), "readers", fmt.Sprint(readers), "mode", mode),
					Metrics: map[string]bench.Summary{"GB/s": summary("GB/s", rate, 0.05), "read p50": summary("µs", float64(size)/rate/1e3, 3)},
				})
			}
		}
	}
	for _, threads := range []string{"1", "2"} {
		for i, f := range []string{"Q8_0", "Q4_K", "MXFP4", "BF16", "Q5_K"} {
			kernel := "AVX-512 VNNI"
			if f == "Q5_K" {
				kernel = "AVX-512 VNNI, decodes first"
			}
			for _, rows := range []string{"1", "32"} {
				add(bench.Record{
					Experiment: "kernels", Test: map[bool]string{true: "matvec", false: "matmul"}[rows == "1"],
					Params: params("format", f, "kernel", kernel, "rows", rows, "threads", threads, "shape", "2048x2048"),
					Metrics: map[string]bench.Summary{
						"GB/s": summary("GB/s", 12-2*float64(i), 0.3), "plain GB/s": summary("GB/s", 12.8, 0.1), "GOPS": summary("GOPS", 200-30*float64(i), 4),
					},
				})
			}
		}
	}
	for _, ram := range []string{"10%", "25%"} {
		for i, readers := range []string{"1", "2", "4", "auto"} {
			for _, depth := range []string{"", "8"} {
				prefetch, horizon := "off", ""
				switch {
				case readers == "auto" && depth == "":
					continue
				case readers == "auto":
					prefetch, depth, horizon = "auto", "auto", "auto"
				case depth != "":
					prefetch, horizon = "on", "1"
				}
				add(bench.Record{
					Experiment: "balance", Test: "tg128",
					Params:  params("ram", ram, "readers", readers, "prefetch", prefetch, "prefetch-depth", depth, "prefetch-horizon", horizon),
					Metrics: map[string]bench.Summary{"tok/s": summary("tok/s", 6+float64(i+len(depth))/3, 0.2)},
				})
			}
		}
	}
	for _, n := range []string{"1", "4"} {
		add(bench.Record{
			Experiment: "mailbox", Test: "send", Params: params("senders", n),
			Metrics: map[string]bench.Summary{"msg/s": summary("msg/s", 3e6, 1e5), "wait p50": summary("ns", 300, 9), "wait p99": summary("ns", 21000, 900)},
			Histograms: map[string]loghist.Hist{
				"wait": hist(300*time.Nanosecond, 1000),
			},
		})
	}
	add(bench.Record{Experiment: "decode", Test: "tg128", Params: params("threads", "2"), Metrics: map[string]bench.Summary{"tok/s": summary("tok/s", 23.7, 0)}})
	add(bench.Record{Experiment: "prefill", Test: "pp512", Params: params("threads", "1"), Metrics: map[string]bench.Summary{"tok/s": summary("tok/s", 110, 3)}})
	add(bench.Record{Experiment: "prefill", Test: "pp512", Params: params("threads", "2"), Metrics: map[string]bench.Summary{"tok/s": summary("tok/s", 190, 3)}})
	return all
}

// texts returns what a picture says; it fails on what is no XML.
func texts(t *testing.T, svg []byte) (all []string) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	inside := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			inside = x.Name.Local == "text"
		case xml.CharData:
			if inside {
				all = append(all, string(x))
			}
		case xml.EndElement:
			inside = false
		}
	}
}

// checkPNG fails if a picture is blank or not as large as it should be.
func checkPNG(t *testing.T, data []byte) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	colours := map[[3]uint32]int{}
	b := img.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y += 2 {
		for x := b.Min.X; x < b.Max.X; x += 2 {
			r, g, b, _ := img.At(x, y).RGBA()
			colours[[3]uint32{r, g, b}]++
		}
	}
	white := [3]uint32{0xffff, 0xffff, 0xffff}
	if b.Dx() != 1200 || colours[white] == 0 || len(colours) < 10 {
		t.Errorf("%v with %d colours", b, len(colours))
	}
}

func TestPictures(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "plots")
	files, err := Write(dir, example())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"stream":         {"coli bench stream: tokens a second over the memory that experts have", "tokens per second", "experts with room in memory, % of their bytes", "tg128", "physical limit", "pairs found in memory, %", "100"},
		"stream-latency": {"queue wait, before the drive has it", "device time, in the drive", "1 ms", "% of them"},
		"stream-time":    {"ms per token", "dense", "waiting for the disk", "ram 10%", "ram 100%", "233 ms"},
		"io":             {"GB/s", "request size", "1 reader", "4 readers", "direct", "buffered", "mmap", "64 KiB"},
		"io-read":        {"median, logarithmic", "1 ms", "4 readers"},
		"kernels":        {"GB/s", "Q8_0", "BF16", "1 thread", "2 threads", "plain read 12.8 GB/s", "rows are decoded first"},
		"kernels-matmul": {"billion operations per second", "Q4_K"},
		"balance":        {"tokens per second", "the balancer's choice", "readers 4, depth 8, horizon 1", "readers 1, prefetch off", "auto", "ram 25%", "the best of the fixed ones", "7.00 ± 0.20"},
		"mailbox":        {"median", "99 %", "send: wait", "senders 4", "10 µs"},
		"decode":         {"tg128", "23.7"},
		"prefill":        {"threads 1", "110.0 ± 3.0", "tokens per second"},
	} {
		svg, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		if err != nil {
			t.Error(err)
			continue
		}
		got := texts(t, svg)
		for _, w := range append(want, "Some Processor @ 2.10GHz, 2 cores, AVX-512 VNNI, 24 GiB") {
			if !slices.ContainsFunc(got, func(s string) bool { return s == w || strings.Contains(s, w) && len(w) > 4 }) {
				t.Errorf("%s: no %q in %q", name, w, got)
			}
		}
		if regexp.MustCompile(`20\d\d-\d\d-\d\d|NaN|Inf`).Match(svg) {
			t.Errorf("%s: a date, or what is no number", name)
		}
		raster, err := os.ReadFile(filepath.Join(dir, name+".png"))
		if err != nil {
			t.Fatal(err)
		}
		checkPNG(t, raster)
	}
	if len(files)%2 != 0 || len(files) < 20 || !slices.Contains(files, filepath.Join(dir, "mailbox-latency.png")) {
		t.Errorf("files: %q", files)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: mode %v, error %v", f, info.Mode(), err)
		}
	}
	// The same records give the same files, whenever they are drawn.
	again := t.TempDir()
	if _, err := Write(again, example()); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		a, _ := os.ReadFile(f)
		if b, err := os.ReadFile(filepath.Join(again, filepath.Base(f))); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs, error %v", filepath.Base(f), err)
		}
	}
	if model := "olmoe-1b-7b-q4_k.coli and 1 more"; !strings.Contains(figures(example())[0].subtitle, model) {
		t.Errorf("subtitle %q lacks the model, %q", figures(example())[0].subtitle, model)
	}
}

// Instruction sets stand beside each other, a group of bars for each format, or for heads and depth of attention, which has pictures of its own.
func TestKernelPictures(t *testing.T) {
	var records []bench.Record
	add := func(test string, rate float64, p ...string) {
		records = append(records, bench.Record{
			Experiment: "kernels", Test: test, Params: params(p...), Env: env, Reps: 5,
			Metrics: map[string]bench.Summary{
				"GB/s": summary("GB/s", rate, 0.3), "plain GB/s": summary("GB/s", 12.8, 0.1), "GOPS": summary("GOPS", 20*rate, 4),
			},
		})
	}
	for _, rows := range []string{"1", "64"} {
		for i, cpu := range []string{"generic", "avx2", "avx512"} {
			for j, f := range []string{"Q8_0", "Q4_K", "TQ1_0"} {
				kernel := cpu
				if f == "TQ1_0" && cpu != "generic" {
					kernel += ", decodes first"
				}
				add("mat", float64(1+4*i+j), "format", f, "rows", rows, "threads", "2", "cpu", cpu, "kernel", kernel, "shape", "2048x2048")
			}
			for _, depth := range []string{"512", "2048"} {
				add("attention", float64(2+3*i), "heads", "16x16x128", "n-depth", depth, "rows", rows, "threads", "2", "cpu", cpu)
			}
		}
	}
	dir := t.TempDir()
	files, err := Write(dir, records)
	if err != nil || len(files) != 8 {
		t.Fatalf("%q, error %v", files, err)
	}
	for name, want := range map[string]map[string]int{
		"kernels":                {"Q8_0": 1, "Q4_K": 1, "generic": 1, "avx2": 1, "avx512": 1, "2 threads": 1, "9.00 ± 0.30": 1, "7.0 ± 0.3": 0, "7.00 ± 0.30, rows are decoded first": 1, "plain read 12.8 GB/s": 1},
		"kernels-matmul":         {"Q4_K": 1, "180.0 ± 4.0": 1, "generic": 1, "a plain read of the same memory": 0},
		"kernels-attention":      {"depth 512": 1, "depth 2048": 1, "2.00 ± 0.30": 2, "8.00 ± 0.30": 2, "Q8_0": 0, "a plain read of the same memory": 1},
		"kernels-attention-rows": {"depth 512": 1, "160.0 ± 4.0": 2},
	} {
		svg, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		if err != nil {
			t.Error(err)
			continue
		}
		got := texts(t, svg)
		for text, times := range want {
			n := 0
			for _, s := range got {
				if s == text {
					n++
				}
			}
			if n != times {
				t.Errorf("%s: %q is there %d times, want %d: %q", name, text, n, times, got)
			}
		}
	}
}

// Records may be of anything: figures that are no numbers, that are missing, or 0; one arm or very many; long names.
func TestOddRecords(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	one := func(name string, p []bench.Param, metrics map[string]bench.Summary) bench.Record {
		return bench.Record{Experiment: name, Test: "tg1", Params: p, Metrics: metrics}
	}
	var many []bench.Record
	for i := range 20 {
		many = append(many, bench.Record{
			Experiment: "stream", Test: fmt.Sprintf("tg128 @ d%d with a very long name that goes on <and> & on", i), Params: params("ram", fmt.Sprintf("%d%%", i%7*10)),
			Metrics:    map[string]bench.Summary{"tok/s": summary("tok/s", float64(i), 1)},
			Histograms: map[string]loghist.Hist{"read": hist(time.Second, 10)}, Parts: []bench.Part{{Name: fmt.Sprint("part ", i), Seconds: 1e-7}},
		})
	}
	for name, c := range map[string]struct {
		records []bench.Record
		files   int // at least
	}{
		"none":        {nil, 0},
		"skipped":     {[]bench.Record{{Experiment: "decode", Skipped: "no device"}}, 0},
		"not numbers": {[]bench.Record{one("stream", params("ram", "10%"), map[string]bench.Summary{"tok/s": summary("tok/s", nan, inf)})}, 0},
		"infinite":    {[]bench.Record{one("decode", nil, map[string]bench.Summary{"tok/s": summary("tok/s", inf, nan)})}, 0},
		"zero":        {[]bench.Record{one("stream", params("ram", "0%"), map[string]bench.Summary{"tok/s": summary("tok/s", 0, 0)})}, 2},
		"no size":     {[]bench.Record{one("io", params("size", "large"), map[string]bench.Summary{"GB/s": summary("GB/s", 1, 0)})}, 0},
		"size 0":      {[]bench.Record{one("io", params("size", "0"), map[string]bench.Summary{"GB/s": summary("GB/s", 1, 0)})}, 0},
		"one size":    {[]bench.Record{one("io", params("size", "4KiB"), map[string]bench.Summary{"GB/s": summary("GB/s", 1, 0)})}, 2},
		"GiB":         {[]bench.Record{one("stream", params("ram", "1.5GiB"), map[string]bench.Summary{"tok/s": summary("tok/s", 1, 0)})}, 2},
		"unknown":     {[]bench.Record{one("new", params("a", "b"), map[string]bench.Summary{"frobs": summary("frob/s", 1e9, 1e12)})}, 2},
		"negative":    {[]bench.Record{one("new", nil, map[string]bench.Summary{"frobs": summary("frob/s", -1, 0)})}, 0},
		"empty histogram": {[]bench.Record{{
			Experiment: "mailbox", Test: "a", Metrics: map[string]bench.Summary{"p50 ns": summary("ns", 0, 0)},
			Histograms: map[string]loghist.Hist{"queue": {}}, Parts: []bench.Part{{Name: "x", Seconds: nan}, {Name: "y", Seconds: -1}},
		}}, 0},
		"one sample": {[]bench.Record{{
			Experiment: "mailbox", Test: "a", Metrics: map[string]bench.Summary{"p50": summary("ns", 1, 0)},
			Histograms: map[string]loghist.Hist{"other": hist(0, 1)}, Parts: []bench.Part{{Name: "x", Seconds: 1e-12}},
		}}, 4},
		"many": {many, 2 + 2*2 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			files, err := Write(dir, c.records)
			if c.files == 0 != errors.Is(err, ErrNothing) || c.files > 0 && err != nil {
				t.Fatalf("%q, error %v", files, err)
			}
			if len(files) < c.files {
				t.Errorf("%q: want %d", files, c.files)
			}
			for _, f := range files {
				data, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				if filepath.Ext(f) == ".svg" {
					texts(t, data)
				} else {
					checkPNG(t, data)
				}
			}
		})
	}
}

// A directory that cannot be written is named, and nothing half-written stays.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(file, example()); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file for a directory: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "stream.png"), 0o700); err != nil {
		t.Fatal(err)
	}
	files, err := Write(dir, example())
	var path *fs.PathError
	if !errors.As(err, &path) || path.Path != filepath.Join(dir, "stream.png") {
		t.Errorf("error %v", err)
	}
	if len(files) != 1 || filepath.Base(files[0]) != "stream.svg" {
		t.Errorf("files %q, want the one before the error", files)
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 3 {
		t.Errorf("the directory has %v", left)
	}
}

func TestTicks(t *testing.T) {
	var got []string
	for _, tick := range (linear{5}).Ticks(0, (linear{5}).top(23)) {
		got = append(got, tick.Label)
	}
	if s := strings.Join(got, " "); s != "0 5 10 15 20 25" {
		t.Errorf("to 23: %s", s)
	}
	for x, want := range map[float64]string{0: "0 ns", 12.34: "12.3 ns", 999.7: "1 µs", 1500: "1.5 µs", 2e6: "2 ms", 3.21e9: "3.21 s", 1e13: "10,000 s"} {
		if got := duration(x); got != want {
			t.Errorf("%v ns: %q, want %q", x, got, want)
		}
	}
	for x, want := range map[float64]string{0: "0", 0.012345: "0.0123", 0.5: "0.50", 9.999: "10.0", 99.99: "100", 1234.5: "1235", 12345.6: "12,346", 1e9: "1,000,000,000"} {
		if got := value(x); got != want {
			t.Errorf("%v: %q, want %q", x, got, want)
		}
	}
	for want, x := range map[string][2]float64{
		"7.1 ± 1.2": {7.08, 1.2}, "0.120 ± 0.041": {0.12, 0.041}, "58 ± 75": {57.7, 75}, "12,346 ± 120": {12345.6, 120}, "5.00": {5, 1e-9}, "1.0 ± 1.0": {1, 0.999},
	} {
		if got := spread(x[0], x[1]); got != want {
			t.Errorf("%v: %q, want %q", x, got, want)
		}
	}
	for s, want := range map[string]float64{"4096": 4096, "4KiB": 4096, "4k": 4096, "1.5 GiB": 1.5 * (1 << 30), "2M": 2 << 20, "7B": 7} {
		if got, ok := bytesOf(s); !ok || got != want {
			t.Errorf("%q: %v, %v", s, got, ok)
		}
	}
	for _, s := range []string{"", "auto", "1.5.2k", "NaN", "10%"} {
		if got, ok := bytesOf(s); ok {
			t.Errorf("%q is %v bytes", s, got)
		}
	}
}
