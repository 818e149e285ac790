package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coli-moe/coli/internal/hugemem"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/cpu"
	"github.com/coli-moe/coli/weights/format"
)

// KernelsConfig says what NewKernels compares.
type KernelsConfig struct {
	Formats    []format.Format
	Rows       []int         // of activations: 1 is decode, more is prefill
	Threads    []int         //
	MatrixRows int           // of a weight matrix, outputs
	Cols       int           // inputs
	Bytes      int64         // of weights, gone through in turn; 0: kernels.BeyondCaches, or what Memory allows
	Memory     int64         // for weights and activations; 0: not known
	Time       time.Duration // of a repetition
	Seed       uint64
}

// NewKernels is the experiment "kernels": how fast the CPU executor multiplies matrices in each format, and what share that is of a plain
// read of the same memory with the same threads. Each repetition has a plain read before and after it. The activations are quantised once
// for a repetition, as the projections of a layer share theirs.
func NewKernels(cfg KernelsConfig) (Experiment, error) {
	for _, f := range cfg.Formats {
		if _, err := f.RowBytes(cfg.Cols); err != nil {
			return nil, badSetting("matrices of %d columns: %w; try a multiple of 256", cfg.Cols, err)
		}
	}
	if cfg.MatrixRows < 1 {
		return nil, badSetting("matrices of %d rows", cfg.MatrixRows)
	}
	// A matrix in the widest format, and activations with their products, each as floats and in the form that is multiplied. Bytes may
	// be too many to be counted.
	matrix := 4 * float64(cfg.Cols) * float64(cfg.MatrixRows)
	rows := 8 * float64(slices.Max(append(cfg.Rows, 1))) * (float64(cfg.Cols) + float64(cfg.MatrixRows))
	if need := max(float64(cfg.Bytes), matrix) + rows; cfg.Memory > 0 && need > float64(cfg.Memory) {
		return nil, fmt.Errorf("%w: %.3g GB are needed, and %.3g GB may be used; try smaller matrices, fewer rows of activations or fewer bytes",
			ledger.ErrNoRoom, need/1e9, float64(cfg.Memory)/1e9)
	}
	if cfg.Bytes <= 0 {
		cfg.Bytes = kernels.BeyondCaches()
		if cfg.Memory > 0 {
			cfg.Bytes = min(cfg.Bytes, cfg.Memory-int64(rows))
		}
	}
	cfg.Bytes = max(cfg.Bytes, int64(matrix))
	return &kernelsExperiment{cfg: cfg}, nil
}

type kernelsExperiment struct {
	cfg   KernelsConfig
	block *hugemem.Block // the weights of the last arm; all arms share it
	held  format.Format  // what block holds
	open  int            // arms
}

func (*kernelsExperiment) Name() string { return "kernels" }

func (*kernelsExperiment) Metrics() []Metric {
	return []Metric{
		{Name: "GB/s", Unit: "GB/s", Help: "bytes of weights that were multiplied", Better: 1, Table: true, Digits: 2},
		{Name: "plain GB/s", Unit: "GB/s", Help: "a plain read of the same memory with as many threads", Better: 1, Table: true, Digits: 2},
		{Name: "% of plain", Unit: "%", Help: "the first of the second", Better: 1, Table: true, Digits: 1},
		{Name: "GOPS", Unit: "GOPS", Help: "multiplications and additions, in 10⁹ a second", Better: 1, Table: true, Digits: 1},
		{Name: "ns/weight", Unit: "ns", Help: "time by weight, for all rows of activations together", Better: -1, Table: true, Digits: 4},
	}
}

func (e *kernelsExperiment) Arms() (arms []Arm) {
	for _, f := range e.cfg.Formats {
		k := kernels.For(f)
		name := k.ISA
		if !k.Direct {
			name += ", decodes first"
		}
		for _, rows := range e.cfg.Rows {
			test := "matvec"
			if rows > 1 {
				test = "matmul"
			}
			for _, threads := range e.cfg.Threads {
				arms = append(arms, Arm{
					Test: test,
					Params: []Param{
						{"format", f.String()},
						{"kernel", name},
						{"rows", strconv.Itoa(rows)},
						{"threads", strconv.Itoa(threads)},
						{"shape", fmt.Sprintf("%dx%d", e.cfg.MatrixRows, e.cfg.Cols)},
					},
					Open: func(context.Context) (Run, error) { return e.start(f, rows, threads) },
				})
			}
		}
	}
	return arms
}

// start opens an arm. The weights are not written before a repetition needs them.
func (e *kernelsExperiment) start(f format.Format, rows, threads int) (Run, error) {
	rowBytes, err := f.RowBytes(e.cfg.Cols)
	if err != nil {
		return nil, err
	}
	if e.open == 0 {
		if e.block, err = hugemem.Map(e.cfg.Bytes); err != nil {
			return nil, fmt.Errorf("memory for weights: %w", err)
		}
		e.held = format.Unknown
	}
	e.open++
	r := &kernelsRun{
		e: e, format: f, threads: threads, exec: cpu.New(threads),
		matrix: ops.Matrix{Name: f.String(), Format: f, Rows: e.cfg.MatrixRows, Cols: e.cfg.Cols, RowBytes: rowBytes},
		rows:   rows,
	}
	r.pattern, err = somePattern(f, e.cfg.Cols, rowBytes, e.cfg.Seed)
	return r, err
}

// kernelsRun is an open arm: a format, rows of activations, threads.
type kernelsRun struct {
	e             *kernelsExperiment
	format        format.Format
	threads, rows int
	exec          *cpu.Executor
	matrix        ops.Matrix
	pattern       []byte // some rows of weights
	next          int    // matrix
}

// patternRows is how many different rows the weights consist of.
const patternRows = 64

// somePattern returns rows of weights: normally distributed values where coli can encode the format, any bytes otherwise. How long a
// kernel takes does not depend on the values.
func somePattern(f format.Format, cols, rowBytes int, seed uint64) ([]byte, error) {
	rng := rand.New(rand.NewPCG(seed, uint64(f)))
	b := make([]byte, patternRows*rowBytes)
	if !f.CanEncode() {
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b, nil
	}
	values := make([]float32, cols)
	for r := range patternRows {
		for i := range values {
			values[i] = float32(rng.NormFloat64()) / 32
		}
		if err := format.Encode(f, b[r*rowBytes:][:rowBytes], values); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// fill writes the arm's weights over those of another one.
func (r *kernelsRun) fill() {
	if r.e.held == r.format {
		return
	}
	data, part := r.e.block.Data, len(r.pattern)
	n := (len(data) + part - 1) / part
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wg.Go(func() {
			for i := w * n / workers; i < (w+1)*n/workers; i++ {
				copy(data[i*part:], r.pattern)
			}
		})
	}
	wg.Wait()
	r.e.held = r.format
}

// inputs returns the activations and where the products go, in the executor's memory.
func (r *kernelsRun) inputs() (x, y *ops.Tensor) {
	r.exec.Reset()
	x, y = r.exec.New("x", 0, r.rows, r.matrix.Cols), r.exec.New("y", 0, r.rows, r.matrix.Rows)
	for i := range x.Data {
		x.Data[i] = float32(i%17)/8 - 1
	}
	return x, y
}

// multiply multiplies x with the next matrix.
func (r *kernelsRun) multiply(x, y *ops.Tensor) {
	size := r.matrix.Rows * r.matrix.RowBytes
	r.next %= len(r.e.block.Data) / size
	r.matrix.Data = r.e.block.Data[r.next*size:][:size]
	r.next++
	r.exec.MatMul(x, ops.Projection{Dst: y, W: &r.matrix})
}

func (r *kernelsRun) Warm(ctx context.Context) error {
	r.fill()
	x, y := r.inputs()
	r.multiply(x, y)
	return ctx.Err()
}

func (r *kernelsRun) Measure(ctx context.Context, _ int) (Sample, error) {
	r.fill()
	before := kernels.ReadRateOf(ctx, r.e.block.Data, r.threads, r.e.cfg.Time/4)
	x, y := r.inputs()
	r.multiply(x, y) // which quantises the activations
	calls := 0
	start := time.Now()
	var took time.Duration
	for ; took < r.e.cfg.Time; took = time.Since(start) {
		if err := ctx.Err(); err != nil {
			return Sample{}, err
		}
		r.multiply(x, y)
		calls++
	}
	plain := (before + kernels.ReadRateOf(ctx, r.e.block.Data, r.threads, r.e.cfg.Time/4)) / 2
	if err := ctx.Err(); err != nil {
		return Sample{}, err
	}
	weights := float64(calls) * float64(r.matrix.Rows) * float64(r.matrix.Cols)
	rate := float64(calls) * float64(r.matrix.Rows) * float64(r.matrix.RowBytes) / took.Seconds()
	s := Sample{Values: map[string]float64{
		"GB/s": rate / 1e9, "plain GB/s": plain / 1e9, "% of plain": 100 * rate / plain,
		"GOPS":      2 * weights * float64(r.rows) / took.Seconds() / 1e9,
		"ns/weight": float64(took.Nanoseconds()) / weights,
	}}
	if caches := kernels.Caches(); r.e.cfg.Bytes < 2*caches {
		s.Notes = append(s.Notes, fmt.Sprintf("the weights take %s, and the caches hold %s: memory may be slower", ledger.FormatSize(r.e.cfg.Bytes),
			ledger.FormatSize(caches)))
	}
	return s, nil
}

// Close frees the weights with the last arm.
func (r *kernelsRun) Close() error {
	r.exec.Close()
	if r.e.open--; r.e.open > 0 {
		return nil
	}
	return r.e.block.Close()
}
