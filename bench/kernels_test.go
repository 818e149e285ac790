package bench

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strconv"
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

// Every format is multiplied, alone and in batches, with every instruction set, and the figures of a sample agree with each other.
func TestKernels(t *testing.T) {
	cfg := KernelsConfig{
		Ops: []string{opMatMul}, CPUs: kernels.Sets(), Formats: format.All(), Rows: []int{1, 3}, Threads: []int{1, 2}, MatrixRows: 64, Cols: 256,
		Bytes: 1 << 20, Memory: 8 << 20, Time: time.Millisecond, Seed: 1,
	}
	if testing.Short() {
		cfg.Formats = cfg.Formats[:4]
	}
	e, err := NewKernels(cfg)
	if err != nil {
		t.Fatal(err)
	}
	arms := e.Arms()
	if want := len(cfg.Formats) * 4 * len(cfg.CPUs); len(arms) != want {
		t.Fatalf("%d arms, want %d", len(arms), want)
	}
	was := kernels.Selected()
	for _, a := range arms {
		f, err := format.Parse(param(a, "format"))
		if err != nil {
			t.Fatal(err)
		}
		if err := kernels.Select(param(a, "cpu")); err != nil {
			t.Fatal(err)
		}
		if isa, _, decodes := strings.Cut(param(a, "kernel"), ","); isa != kernels.For(f).ISA || decodes == kernels.For(f).Direct {
			t.Errorf("%v: kernel %q", a.Params, param(a, "kernel"))
		}
		s := measure(t, e, a, 1)[0]
		if kernels.Selected() != was {
			t.Fatalf("%s is selected behind %v, and before it was %s", kernels.Selected(), a.Params, was)
		}
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
	if e := e.(*kernelsExperiment); e.open != 0 || e.block.Data != nil || len(e.execs) != 0 {
		t.Error("memory or threads are left")
	}
}

// Attention reads the keys and values of every position once, and its figures agree with each other.
func TestKernelsAttention(t *testing.T) {
	e, err := NewKernels(KernelsConfig{
		Ops: []string{opAttention}, CPUs: kernels.Sets(), Heads: []ops.Attention{{Heads: 2, KVHeads: 2, HeadDim: 32}, {Heads: 6, KVHeads: 2, HeadDim: 16}},
		Depths: []int{0, 100}, Rows: []int{1, 5}, Threads: []int{2}, Cols: 64, Bytes: 1 << 20, Memory: 8 << 20, Time: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	arms := e.Arms()
	if want := 2 * 2 * 2 * len(kernels.Sets()); len(arms) != want {
		t.Fatalf("%d arms, want %d", len(arms), want)
	}
	for _, a := range arms {
		v := measure(t, e, a, 1)[0].Values
		heads, err := strconv.Atoi(param(a, "heads")[:1])
		columns := map[int]int{2: 32, 6: 16}[heads]
		depth, err2 := strconv.Atoi(param(a, "n-depth"))
		rows, err3 := strconv.Atoi(param(a, "rows"))
		if err := errors.Join(err, err2, err3); err != nil || a.Test != opAttention {
			t.Fatal(a.Test, a.Params, err)
		}
		keys := 0 // that rows see
		for r := range rows {
			keys += depth + r + 1
		}
		seconds := v["µs/row"] * float64(rows) / 1e6
		if want := float64(keys*heads*columns*4) / seconds / 1e9; math.Abs(v["GOPS"]/want-1) > 1e-9 {
			t.Errorf("%v: %g GOPS, want %g", a.Params, v["GOPS"], want)
		}
		if want := float64((depth+rows)*2*columns*2*4) / seconds / 1e9; math.Abs(v["GB/s"]/want-1) > 1e-9 {
			t.Errorf("%v: %g GB/s, want %g", a.Params, v["GB/s"], want)
		}
	}
}

// What an arm computes is attention over keys and values that memory has, as the plain formula has it.
func TestKernelsAttends(t *testing.T) {
	const depth, columns = 20, 8
	e, err := NewKernels(KernelsConfig{
		Ops: []string{opAttention}, Heads: []ops.Attention{{Heads: 2, KVHeads: 1, HeadDim: columns}}, Depths: []int{depth}, Rows: []int{2},
		Threads: []int{2}, Cols: 40, Bytes: 1 << 16, Time: time.Millisecond, Seed: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	run, err := e.Arms()[0].Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	r := run.(*kernelsRun)
	if err := r.prepare(); err != nil {
		t.Fatal(err)
	}
	r.next = 3
	r.call()
	a := r.work.(*attention)
	value := func(i int) float64 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(r.e.block.Data[3*a.bytes()+4*i:])))
	}
	for row := range 2 {
		for head := range 2 {
			var sum float64
			want := make([]float64, columns)
			for key := range depth + row + 1 {
				var score float64
				for c := range columns {
					score += float64(a.q.Row(row)[head*columns+c]) * value(key*columns+c)
				}
				weight := math.Exp(score / math.Sqrt(columns))
				sum += weight
				for c := range columns {
					want[c] += weight * value((depth+2+key)*columns+c)
				}
			}
			for c, got := range a.dst.Row(row)[head*columns:][:columns] {
				if math.Abs(float64(got)-want[c]/sum) > 1e-5 {
					t.Errorf("row %d, head %d, column %d: %g, want %g", row, head, c, got, want[c]/sum)
				}
			}
		}
	}
}

// Arms that are open at the same time have the weights of their own format, whoever was measured before.
func TestKernelsShareMemory(t *testing.T) {
	e, err := NewKernels(KernelsConfig{
		Ops: []string{opMatMul}, Formats: []format.Format{format.F32, format.Q8_0}, Rows: []int{1}, Threads: []int{2}, MatrixRows: 100, Cols: 64,
		Bytes: 1 << 20, Memory: 8 << 20, Time: time.Millisecond, Seed: 7,
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
		r.next = 2
		if err := r.prepare(); err != nil {
			t.Fatal(err)
		}
		r.call()
		return slices.Clone(r.work.(*product).y.Data)
	}
	first := products(runs[0])
	products(runs[1])
	if !slices.Equal(products(runs[0]), first) {
		t.Error("products differ after another arm's turn")
	}
	// A row of the matrix, decoded and multiplied.
	p := runs[0].work.(*product)
	row, want := make([]float32, 64), 0.0
	p.matrix.DecodeRow(row, 70)
	for i, v := range row {
		want += float64(v) * float64(p.x.Data[i])
	}
	if math.Abs(float64(first[70])-want) > 1e-5 {
		t.Errorf("row 70: %g, want %g", first[70], want)
	}
}

// Each arm is compared with the first instruction set, and several rows with one, by repetition; lines say what each step is worth.
func TestKernelsConclude(t *testing.T) {
	e := &kernelsExperiment{cfg: KernelsConfig{CPUs: []string{"generic", "avx2", "avx512"}, Rows: []int{1, 64}}}
	record := func(format, rows, cpu string, samples ...float64) Record {
		return Record{
			Test: "matmul", Reps: len(samples), Params: []Param{{"format", format}, {"rows", rows}, {"threads", "2"}, {"cpu", cpu}, {"kernel", "of " + cpu}},
			Metrics: map[string]Summary{gops: summarize(Metric{}, samples)},
		}
	}
	records := []Record{
		record("Q8_0", "1", "generic", 1, 2), record("Q8_0", "1", "avx2", 10, 10), record("Q8_0", "1", "avx512", 20, 20),
		record("Q8_0", "64", "generic", 4), record("Q8_0", "64", "avx2", 80, 60), record("F32", "64", "avx512", 5, 5),
		record("F32", "1", "avx2", 3), record("F32", "1", "generic", 1), record("F32", "1", "avx512", 12),
	}
	lines := e.Conclude(records)
	for i, want := range []struct{ cpu, row []float64 }{
		{[]float64{1, 1}, nil},
		{[]float64{10, 5}, nil},
		{[]float64{20, 10}, nil},
		{[]float64{1}, []float64{4}},
		{[]float64{20}, []float64{8, 6}},
		{nil, []float64{5.0 / 12}},
		{[]float64{3}, nil},
		{[]float64{1}, nil},
		{[]float64{12}, nil},
	} {
		m := records[i].Metrics
		if !slices.Equal(m["vs generic"].Samples, want.cpu) || !slices.Equal(m["vs 1 row"].Samples, want.row) {
			t.Errorf("%v: %v, %v, want %v, %v", records[i].Params, m["vs generic"].Samples, m["vs 1 row"].Samples, want.cpu, want.row)
		}
	}
	if want := []string{
		"matmul, rows 1, threads 2: avx2 is 4.47 times generic, avx512 is 2.83 times avx2, in the geometric mean of 2 arms",
		"matmul, rows 64, threads 2: avx2 is 17.5 times generic",
	}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
	e.cfg.CPUs, e.cfg.Rows = e.cfg.CPUs[:1], []int{64}
	if lines := e.Conclude(records[3:4]); lines != nil || slices.ContainsFunc(e.Metrics(), func(m Metric) bool { return strings.HasPrefix(m.Name, "vs") }) {
		t.Errorf("one instruction set and several rows alone are compared: %q", lines)
	}
}

func TestKernelsRefuse(t *testing.T) {
	const gib = 1 << 30
	product, attends := []string{opMatMul}, []string{opAttention}
	was := kernels.Selected()
	for what, cfg := range map[string]KernelsConfig{
		"multiple of 256":    {Ops: product, Formats: []format.Format{format.Q4_K}, MatrixRows: 1, Cols: 100, Memory: gib},
		"0 rows":             {Ops: product, Formats: []format.Format{format.F32}, Cols: 256, Memory: gib},
		"4.3 GB are needed":  {Ops: product, Formats: []format.Format{format.F32}, MatrixRows: 1 << 15, Cols: 1 << 15, Memory: gib},
		"e+22 GB are needed": {Ops: product, Formats: []format.Format{format.F32}, MatrixRows: math.MaxInt, Cols: 1 << 40, Memory: gib},
		"2.15 GB":            {Ops: product, Formats: []format.Format{format.F32}, MatrixRows: 1, Cols: 255, Rows: []int{1, 1 << 20}, Memory: gib},
		"1.07 GB may be":     {Ops: product, Formats: []format.Format{format.F32}, MatrixRows: 256, Cols: 256, Bytes: 2 * gib, Memory: gib},
		"4x3x8 heads: 4 heads of queries cannot share 3": {Ops: attends, Heads: []ops.Attention{{Heads: 4, KVHeads: 3, HeadDim: 8}}, Cols: 256},
		"4x4x0 heads":                  {Ops: attends, Heads: []ops.Attention{{Heads: 4, KVHeads: 4}}, Cols: 256},
		"8.59 GB are needed":           {Ops: attends, Heads: []ops.Attention{{Heads: 4, KVHeads: 4, HeadDim: 256}}, Depths: []int{1 << 20}, Memory: gib},
		"no instruction set is called": {Ops: product, CPUs: []string{"generic", "sse"}, MatrixRows: 1},
	} {
		if _, err := NewKernels(cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if kernels.Selected() != was {
		t.Errorf("%s is selected", kernels.Selected())
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
		e, err := NewKernels(KernelsConfig{
			Ops: []string{opMatMul}, Formats: []format.Format{format.F32}, MatrixRows: 1, Cols: 256, Rows: []int{1}, Bytes: tt.bytes, Memory: tt.memory,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := e.(*kernelsExperiment).cfg.Bytes; got != tt.want {
			t.Errorf("%d bytes of %d asked for: %d, want %d", tt.bytes, tt.memory, got, tt.want)
		}
	}
}
