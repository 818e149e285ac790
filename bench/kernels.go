package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coli-moe/coli/internal/hugemem"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/cpu"
	"github.com/coli-moe/coli/weights/format"
)

// The ops that NewKernels measures.
const (
	opMatMul    = "matmul"
	opAttention = "attention"
)

// KernelOps are all of them.
var KernelOps = []string{opMatMul, opAttention}

// KernelsConfig says what NewKernels compares.
type KernelsConfig struct {
	Ops     []string // of KernelOps
	CPUs    []string // instruction sets, of kernels.Sets; none: the one that is selected
	Rows    []int    // of activations: 1 is decode, more is prefill
	Threads []int    //

	Formats    []format.Format // of weights
	MatrixRows int             // of a weight matrix, outputs
	Cols       int             // inputs

	Heads  []ops.Attention // geometries of attention; Scale plays no part
	Depths []int           // positions before the first row

	Bytes  int64         // of weights, or keys and values, gone through in turn; 0: kernels.BeyondCaches, or what Memory allows
	Memory int64         // for these and activations; 0: not known
	Time   time.Duration // of a repetition
	Seed   uint64
}

// NewKernels is the experiment "kernels": how fast the CPU executor multiplies matrices in each format, and computes attention, with each
// instruction set, and what share that is of a plain read of the same memory with the same threads. Each repetition has a plain read
// before and after it, with the best instruction set of the machine. The activations are quantised once for a repetition, as the
// projections of a layer share theirs.
//
// The process's instruction set is switched between repetitions, and is what it was when the last arm is closed: nothing else may compute
// meanwhile.
func NewKernels(cfg KernelsConfig) (_ Experiment, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	// What a call reads at most, and activations with the results, each as floats and in the form that is multiplied. Bytes may be too
	// many to be counted.
	once, rows := cfg.most()
	if need := max(float64(cfg.Bytes), once) + rows; cfg.Memory > 0 && need > float64(cfg.Memory) {
		return nil, fmt.Errorf("%w: %.3g GB are needed, and %.3g GB may be used; try smaller matrices, fewer rows of activations or fewer bytes",
			ledger.ErrNoRoom, need/1e9, float64(cfg.Memory)/1e9)
	}
	if cfg.Bytes <= 0 {
		cfg.Bytes = kernels.BeyondCaches()
		if cfg.Memory > 0 {
			cfg.Bytes = min(cfg.Bytes, cfg.Memory-int64(rows))
		}
	}
	cfg.Bytes = max(cfg.Bytes, int64(once))
	e := &kernelsExperiment{
		cfg: cfg, was: kernels.Selected(), names: map[kernelOf]string{}, execs: map[executorOf]*cpu.Executor{}, patterns: map[format.Format][]byte{},
	}
	if len(cfg.CPUs) == 0 {
		e.cfg.CPUs = []string{e.was}
	}
	defer func() { err = errors.Join(err, kernels.Select(e.was)) }()
	for _, isa := range e.cfg.CPUs {
		if err := kernels.Select(isa); err != nil {
			return nil, badSetting("--cpu %s: %w", isa, err)
		}
		for _, f := range cfg.Formats {
			e.names[kernelOf{isa, f}] = kernelName(kernels.For(f))
		}
	}
	return e, nil
}

// kernelName is a kernel's instruction set, which is an older one than was asked for where the format has none of that.
func kernelName(k *kernels.Kernel) string {
	if k.Direct {
		return k.ISA
	}
	return k.ISA + ", decodes first"
}

// check is an error if there is no computing what is asked for.
func (cfg *KernelsConfig) check() error {
	if slices.Contains(cfg.Ops, opMatMul) {
		for _, f := range cfg.Formats {
			if _, err := f.RowBytes(cfg.Cols); err != nil {
				return badSetting("matrices of %d columns: %w; try a multiple of 256", cfg.Cols, err)
			}
		}
		if cfg.MatrixRows < 1 {
			return badSetting("matrices of %d rows", cfg.MatrixRows)
		}
	}
	if slices.Contains(cfg.Ops, opAttention) {
		for _, h := range cfg.Heads {
			if h.KVHeads < 1 || h.Heads < 1 || h.HeadDim < 1 || h.Heads%h.KVHeads != 0 {
				return badSetting("%s heads: %d heads of queries cannot share %d of keys and values evenly", geometry(h), h.Heads, h.KVHeads)
			}
		}
	}
	return nil
}

// most is how many bytes a call reads at most, with matrices in the widest format, and how many the most rows of activations take.
func (cfg *KernelsConfig) most() (once, rows float64) {
	n := float64(slices.Max(append(cfg.Rows, 1)))
	if slices.Contains(cfg.Ops, opMatMul) {
		once = 4 * float64(cfg.Cols) * float64(cfg.MatrixRows)
		rows = 8 * n * (float64(cfg.Cols) + float64(cfg.MatrixRows))
	}
	if slices.Contains(cfg.Ops, opAttention) {
		positions := float64(slices.Max(append(cfg.Depths, 0))) + n
		for _, h := range cfg.Heads {
			once = max(once, 8*float64(h.KVHeads)*float64(h.HeadDim)*positions)
			rows = max(rows, 16*n*float64(h.Heads)*float64(h.HeadDim))
		}
	}
	return once, rows
}

// geometry is how users write the heads of attention.
func geometry(h ops.Attention) string { return fmt.Sprintf("%dx%dx%d", h.Heads, h.KVHeads, h.HeadDim) }

type kernelsExperiment struct {
	cfg   KernelsConfig
	was   string              // the instruction set that others use
	names map[kernelOf]string // see kernelName

	// What open arms share.
	block *hugemem.Block // the weights, or keys and values, of the last one
	held  format.Format  // what block holds
	execs map[executorOf]*cpu.Executor
	open  int // arms

	patterns map[format.Format][]byte // what block is filled with
}

type kernelOf struct {
	cpu    string
	format format.Format
}

// executorOf tells executors apart: each is used with one instruction set.
type executorOf struct {
	cpu     string
	threads int
}

func (*kernelsExperiment) Name() string { return "kernels" }

// The names of metrics that more than one place uses. The first instruction set's name follows the last one.
const (
	gops      = "GOPS"
	perWeight = "ns/weight"
	perRow    = "µs/row"
	vsOneRow  = "vs 1 row"
	versus1   = "vs "
)

func (e *kernelsExperiment) Metrics() []Metric {
	list := []Metric{
		{Name: "GB/s", Unit: "GB/s", Help: "bytes of weights that were multiplied, or of keys and values, each counted once for all rows", Better: 1, Table: true, Digits: 2},
		{Name: "plain GB/s", Unit: "GB/s", Help: "a plain read of the same memory with as many threads", Better: 1, Table: true, Digits: 2},
		{Name: "% of plain", Unit: "%", Help: "the first of the second", Better: 1, Table: true, Digits: 1},
		{Name: gops, Unit: gops, Help: "multiplications and additions, in 10⁹ a second", Better: 1, Table: true, Digits: 1},
		{Name: perWeight, Unit: "ns", Help: "time by weight, for all rows of activations together", Better: -1, Table: true, Digits: 4},
		{Name: perRow, Unit: "µs", Help: "time of a row of attention, all heads of a layer together", Better: -1, Table: true, Digits: 1},
	}
	if m, ok := e.vsFirst(); ok {
		list = append(list, m)
	}
	if m, ok := e.vsRow(); ok {
		list = append(list, m)
	}
	return list
}

// vsFirst is the metric that compares instruction sets, if there are several.
func (e *kernelsExperiment) vsFirst() (m Metric, ok bool) {
	first := e.cfg.CPUs[0]
	return Metric{
		Name: versus1 + first, Help: "GOPS by those of " + first + " in the same repetition", Better: 1, Table: true, Digits: 2,
	}, len(e.cfg.CPUs) > 1
}

// vsRow is the metric that compares several rows at a time with one, if both are measured.
func (e *kernelsExperiment) vsRow() (m Metric, ok bool) {
	return Metric{
		Name: vsOneRow, Help: "GOPS by those of one row at a time in the same repetition", Better: 1, Table: true, Digits: 2,
	}, len(e.cfg.Rows) > 1 && slices.Contains(e.cfg.Rows, 1)
}

// Arms are ops × what they compute with × rows × threads × instruction sets: these, which are compared, follow each other.
func (e *kernelsExperiment) Arms() (arms []Arm) {
	each := func(test func(rows int) string, what, behind []Param, kernel func(isa string) []Param, work func(rows int) kernelsWork) {
		for _, rows := range e.cfg.Rows {
			for _, threads := range e.cfg.Threads {
				for _, isa := range e.cfg.CPUs {
					params := append(slices.Clone(what), Param{"rows", strconv.Itoa(rows)}, Param{"threads", strconv.Itoa(threads)}, Param{"cpu", isa})
					arms = append(arms, Arm{
						Test: test(rows), Params: append(append(params, kernel(isa)...), behind...),
						Open: func(context.Context) (Run, error) { return e.start(work(rows), isa, threads) },
					})
				}
			}
		}
	}
	for _, op := range e.cfg.Ops {
		switch op {
		case opMatMul:
			for _, f := range e.cfg.Formats {
				each(productName, []Param{{"format", f.String()}}, []Param{{"shape", fmt.Sprintf("%dx%d", e.cfg.MatrixRows, e.cfg.Cols)}},
					func(isa string) []Param { return []Param{{"kernel", e.names[kernelOf{isa, f}]}} },
					func(rows int) kernelsWork { return e.product(f, rows) })
			}
		case opAttention:
			for _, h := range e.cfg.Heads {
				for _, depth := range e.cfg.Depths {
					each(func(int) string { return opAttention }, []Param{{"heads", geometry(h)}, {"n-depth", strconv.Itoa(depth)}}, nil,
						func(string) []Param { return nil }, func(rows int) kernelsWork { return newAttention(h, depth, rows) })
				}
			}
		}
	}
	return arms
}

// productName tells products with a vector from those with a matrix.
func productName(rows int) string {
	if rows > 1 {
		return opMatMul
	}
	return "matvec"
}

// start opens an arm. Memory is not written before a repetition needs it.
func (e *kernelsExperiment) start(work kernelsWork, isa string, threads int) (_ Run, err error) {
	if e.open == 0 {
		if e.block, err = hugemem.Map(e.cfg.Bytes); err != nil {
			return nil, fmt.Errorf("memory for weights: %w", err)
		}
		e.held = format.Unknown
	}
	e.open++
	key := executorOf{isa, threads}
	if e.execs[key] == nil {
		e.execs[key] = cpu.New(threads)
	}
	return &kernelsRun{e: e, work: work, cpu: isa, threads: threads, exec: e.execs[key]}, nil
}

// patternRows is how many different rows the weights consist of.
const patternRows = 64

// somePattern returns rows of weights: normally distributed values where coli can encode the format, any bytes otherwise. How long a
// kernel takes does not depend on the values.
func somePattern(f format.Format, cols int, seed uint64) ([]byte, error) {
	rowBytes, err := f.RowBytes(cols)
	if err != nil {
		return nil, err
	}
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

// fill writes values in format f over what another arm has left.
func (e *kernelsExperiment) fill(f format.Format) (err error) {
	if e.held == f {
		return nil
	}
	pattern := e.patterns[f]
	if pattern == nil {
		if pattern, err = somePattern(f, e.cfg.Cols, e.cfg.Seed); err != nil {
			return err
		}
		e.patterns[f] = pattern
	}
	data, part := e.block.Data, len(pattern)
	n := (len(data) + part - 1) / part
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wg.Go(func() {
			for i := w * n / workers; i < (w+1)*n/workers; i++ {
				copy(data[i*part:], pattern)
			}
		})
	}
	wg.Wait()
	e.held = f
	return nil
}

// kernelsRun is an open arm.
type kernelsRun struct {
	e       *kernelsExperiment
	work    kernelsWork
	cpu     string
	threads int
	exec    *cpu.Executor
	next    int // piece of memory
}

// prepare makes everything ready for call.
func (r *kernelsRun) prepare() error {
	if err := errors.Join(r.e.fill(r.work.format()), kernels.Select(r.cpu)); err != nil {
		return err
	}
	r.exec.Reset()
	r.work.prepare(r.exec)
	return nil
}

// call computes with the next piece of memory.
func (r *kernelsRun) call() {
	size := r.work.bytes()
	r.next %= len(r.e.block.Data) / size
	r.work.call(r.exec, r.e.block.Data[r.next*size:][:size])
	r.next++
}

// plain is the rate of a plain read, in bytes a second. It does not depend on what the arm computes with.
func (r *kernelsRun) plain(ctx context.Context) (float64, error) {
	if err := errors.Join(r.e.fill(r.work.format()), kernels.Select("")); err != nil {
		return 0, err
	}
	return kernels.ReadRateOf(ctx, r.e.block.Data, r.threads, r.e.cfg.Time/4), nil
}

func (r *kernelsRun) Warm(ctx context.Context) error {
	if err := r.prepare(); err != nil {
		return err
	}
	r.call()
	return ctx.Err()
}

func (r *kernelsRun) Measure(ctx context.Context, _ int) (Sample, error) {
	before, err := r.plain(ctx)
	if err != nil {
		return Sample{}, err
	}
	if err := r.prepare(); err != nil {
		return Sample{}, err
	}
	calls := 0
	start := time.Now()
	var took time.Duration
	for ; took < r.e.cfg.Time; took = time.Since(start) {
		if err := ctx.Err(); err != nil {
			return Sample{}, err
		}
		r.call()
		calls++
	}
	after, err := r.plain(ctx)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return Sample{}, err
	}
	plain, each := (before+after)/2, took.Seconds()/float64(calls)
	rate := float64(r.work.bytes()) / each
	s := Sample{Values: map[string]float64{
		"GB/s": rate / 1e9, "plain GB/s": plain / 1e9, "% of plain": 100 * rate / plain, gops: r.work.operations() / each / 1e9,
	}}
	name, value := r.work.unit(each)
	s.Values[name] = value
	if caches := kernels.Caches(); r.e.cfg.Bytes < 2*caches {
		s.Notes = append(s.Notes, fmt.Sprintf("what is read takes %s, and the caches hold %s: memory may be slower", ledger.FormatSize(r.e.cfg.Bytes),
			ledger.FormatSize(caches)))
	}
	return s, nil
}

// Close frees with the last arm what all share.
func (r *kernelsRun) Close() error {
	e := r.e
	if e.open--; e.open > 0 {
		return nil
	}
	for _, exec := range e.execs {
		exec.Close()
	}
	clear(e.execs)
	return errors.Join(kernels.Select(e.was), e.block.Close())
}

// Conclude compares several rows with one and each instruction set with the first, by repetition, and says what each is worth beside the
// one before it.
func (e *kernelsExperiment) Conclude(records []Record) []string {
	rows, severalRows := e.vsRow()
	cpus, severalCPUs := e.vsFirst()
	for i := range records {
		r := &records[i]
		if severalRows && r.Param("rows") != "1" {
			r.compare(rows, find(records, r, "rows", "1"))
		}
		if severalCPUs {
			r.compare(cpus, find(records, r, "cpu", e.cfg.CPUs[0]))
		}
	}
	if severalCPUs {
		return e.steps(records)
	}
	return nil
}

// compare adds a metric: GOPS by those of another record in the same repetition, the n-th of both, as far as there are both.
func (r *Record) compare(m Metric, base *Record) {
	if base == nil {
		return
	}
	var ratios []float64
	for i, its := range base.Metrics[gops].Samples[:min(base.Reps, r.Reps)] {
		ratios = append(ratios, r.Metrics[gops].Samples[i]/its)
	}
	r.Metrics[m.Name] = summarize(m, ratios)
}

// find returns the record that has a value of a setting and agrees with r in the others; nil if there is none. Which kernel a format has
// follows from the instruction set.
func find(records []Record, r *Record, setting, value string) *Record {
	for i := range records {
		o := &records[i]
		if o.Param(setting) == value && !slices.ContainsFunc(r.Params, func(p Param) bool {
			return p.Name != setting && p.Name != "kernel" && o.Param(p.Name) != p.Value
		}) {
			return o
		}
	}
	return nil
}

// steps are lines that say what each instruction set is worth beside the one before it, for each kind of work.
func (e *kernelsExperiment) steps(records []Record) (lines []string) {
	kind := func(r *Record) string {
		return fmt.Sprintf("%s, rows %s, threads %s", r.Test, r.Param("rows"), r.Param("threads"))
	}
	var kinds []string
	for i := range records {
		if k := kind(&records[i]); !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	for _, k := range kinds {
		line, arms := k+":", 0
		for i, isa := range e.cfg.CPUs[1:] {
			before := e.cfg.CPUs[i]
			var all []float64
			for j := range records {
				r := &records[j]
				if kind(r) != k || r.Param("cpu") != isa {
					continue
				}
				if base := find(records, r, "cpu", before); base != nil {
					all = append(all, r.Metrics[gops].Mean/base.Metrics[gops].Mean)
				}
			}
			if len(all) > 0 {
				mean, _ := geometric(all)
				line += fmt.Sprintf(" %s is %.3g times %s,", isa, mean, before)
				arms = max(arms, len(all))
			}
		}
		if arms > 1 {
			line += fmt.Sprintf(" in the geometric mean of %d arms,", arms)
		}
		lines = append(lines, strings.TrimSuffix(line, ","))
	}
	return lines
}
