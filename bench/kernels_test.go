package bench

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/weights/format"
)

// measure opens an arm, warms it up, makes some repetitions and closes it; every figure must be one of the experiment's metrics, finite and
// not negative, unless it is a difference.
func measure(t *testing.T, e Experiment, a Arm, reps int) (samples []Sample) {
	t.Helper()
	r, err := a.Open(t.Context())
	if err != nil {
		t.Fatal(a.Params, err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(a.Params, err)
		}
	}()
	if err := r.Warm(t.Context()); err != nil {
		t.Fatal(a.Params, err)
	}
	for rep := range reps {
		s, err := r.Measure(t.Context(), rep)
		if err != nil {
			t.Fatal(a.Params, err)
		}
		for name, v := range s.Values {
			if !slices.ContainsFunc(e.Metrics(), func(m Metric) bool { return m.Name == name }) {
				t.Errorf("%q is none of the metrics", name)
			}
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 && name != "over direct" {
				t.Errorf("%v: %s is %g", a.Params, name, v)
			}
		}
		samples = append(samples, s)
	}
	return samples
}

func param(a Arm, name string) string {
	for _, p := range a.Params {
		if p.Name == name {
			return p.Value
		}
	}
	return ""
}

// Every format is multiplied, alone and in batches, and the figures of a sample agree with each other.
func TestKernels(t *testing.T) {
	cfg := KernelsConfig{
		Formats: format.All(), Rows: []int{1, 3}, Threads: []int{1, 2}, MatrixRows: 64, Cols: 256, Bytes: 1 << 20, Memory: 8 << 20, Time: time.Millisecond, Seed: 1,
	}
	if testing.Short() {
		cfg.Formats = cfg.Formats[:4]
	}
	e, err := NewKernels(cfg)
	if err != nil {
		t.Fatal(err)
	}
	arms := e.Arms()
	if want := len(cfg.Formats) * 4; len(arms) != want {
		t.Fatalf("%d arms, want %d", len(arms), want)
	}
	for _, a := range arms {
		f, err := format.Parse(param(a, "format"))
		if err != nil {
			t.Fatal(err)
		}
		if isa, _, decodes := strings.Cut(param(a, "kernel"), ","); isa != kernels.For(f).ISA || decodes == kernels.For(f).Direct {
			t.Errorf("%v: kernel %q", f, param(a, "kernel"))
		}
		s := measure(t, e, a, 1)[0]
		if small := kernels.Caches() > 512<<10; small != (len(s.Notes) == 1 && strings.Contains(s.Notes[0], "the caches hold")) {
			t.Errorf("%v: 1 MiB of weights: %q", a.Params, s.Notes)
		}
		v := s.Values
		rowBytes, _ := f.RowBytes(cfg.Cols)
		if want := v["GB/s"] / v["plain GB/s"] * 100; math.Abs(v["% of plain"]/want-1) > 1e-9 {
			t.Errorf("%v: %v", a.Params, v)
		}
		if want := float64(rowBytes) / float64(cfg.Cols) / v["GB/s"]; math.Abs(v["ns/weight"]/want-1) > 1e-9 {
			t.Errorf("%v: %v", a.Params, v)
		}
	}
	if e := e.(*kernelsExperiment); e.open != 0 || e.block.Data != nil {
		t.Error("memory is left")
	}
}

// Arms that are open at the same time have the weights of their own format, whoever was measured before.
func TestKernelsShareMemory(t *testing.T) {
	e, err := NewKernels(KernelsConfig{
		Formats: []format.Format{format.F32, format.Q8_0}, Rows: []int{1}, Threads: []int{2}, MatrixRows: 100, Cols: 64, Bytes: 1 << 20,
		Memory: 8 << 20, Time: time.Millisecond, Seed: 7,
	})
	if err != nil {
		t.Fatal(err)
	}
	var runs []*kernelsRun
	for _, a := range e.Arms() {
		r, err := a.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		runs = append(runs, r.(*kernelsRun))
	}
	products := func(r *kernelsRun) []float32 {
		r.fill()
		r.next = 2
		x, y := r.inputs()
		r.multiply(x, y)
		return slices.Clone(y.Data)
	}
	first := products(runs[0])
	products(runs[1])
	if !slices.Equal(products(runs[0]), first) {
		t.Error("products differ after another arm's turn")
	}
	// A row of the matrix, decoded and multiplied.
	r := runs[0]
	row, want := make([]float32, 64), 0.0
	m := ops.Matrix{Format: r.format, Rows: 100, Cols: 64, RowBytes: r.matrix.RowBytes, Data: r.matrix.Data}
	m.DecodeRow(row, 70)
	x, _ := r.inputs()
	for i, v := range row {
		want += float64(v) * float64(x.Data[i])
	}
	if math.Abs(float64(first[70])-want) > 1e-5 {
		t.Errorf("row 70: %g, want %g", first[70], want)
	}
}

func TestKernelsRefuse(t *testing.T) {
	const gib = 1 << 30
	for what, cfg := range map[string]KernelsConfig{
		"multiple of 256":    {Formats: []format.Format{format.Q4_K}, MatrixRows: 1, Cols: 100, Memory: gib},
		"0 rows":             {Formats: []format.Format{format.F32}, Cols: 256, Memory: gib},
		"4.3 GB are needed":  {Formats: []format.Format{format.F32}, MatrixRows: 1 << 15, Cols: 1 << 15, Memory: gib},
		"e+22 GB are needed": {Formats: []format.Format{format.F32}, MatrixRows: math.MaxInt, Cols: 1 << 40, Memory: gib},
		"2.15 GB":            {Formats: []format.Format{format.F32}, MatrixRows: 1, Cols: 255, Rows: []int{1, 1 << 20}, Memory: gib},
		"1.07 GB may be":     {Formats: []format.Format{format.F32}, MatrixRows: 256, Cols: 256, Bytes: 2 * gib, Memory: gib},
	} {
		if _, err := NewKernels(cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The weights are more than caches hold, where there is the memory, and at least a matrix.
func TestKernelsBytes(t *testing.T) {
	for _, tt := range []struct{ bytes, memory, want int64 }{
		{0, 0, kernels.BeyondCaches()},
		{0, 64 << 30, kernels.BeyondCaches()},
		{0, 1 << 20, 1<<20 - 8*257}, // beside activations and products
		{1, 1 << 20, 1024},
		{5000, 1 << 20, 5000},
	} {
		e, err := NewKernels(KernelsConfig{Formats: []format.Format{format.F32}, MatrixRows: 1, Cols: 256, Rows: []int{1}, Bytes: tt.bytes, Memory: tt.memory})
		if err != nil {
			t.Fatal(err)
		}
		if got := e.(*kernelsExperiment).cfg.Bytes; got != tt.want {
			t.Errorf("%d bytes of %d asked for: %d, want %d", tt.bytes, tt.memory, got, tt.want)
		}
	}
}
