// Package cpu executes the op set on the CPU, at once, with a team of threads and the SIMD kernels of package kernels.
//
// What does not live here: the arithmetic of one weight row (package kernels) and the choice of threads (package engine).
package cpu

import (
	"fmt"
	"slices"
	"time"

	"github.com/coli-moe/coli/cpuexperts"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/weights/format"
)

// Executor is the CPU implementation of ops.Executor. One goroutine at a time uses it; it splits the work over its team.
type Executor struct {
	team  *Team
	arena arena
	all   []int32     // 0, 1, 2, …: the row list of a whole tensor
	work  [][]float32 // scratch of each worker
	works [2]*cpuexperts.Work
	turn  int
	stats Stats

	routes    []*ops.Routes // of the step, in order of request, like the arena's tensors
	routed    int           // of these, in use
	attention attention
	op        operands
	runs      runs

	pipeline Pipeline
	failed   func(error)

	clock       *ops.Clock // nil: nobody asks where the time goes
	product     *ops.Tensor
	productTook time.Duration // of the last product, whose first output is product
}

var _ ops.Executor = (*Executor)(nil)

// operands is what the op under way works on. The team runs methods that find it here: a closure for each op would allocate.
type operands struct {
	dst, x, up *ops.Tensor

	norm    ops.Norm
	segment int

	in          *input
	projections []ops.Projection
	all         []int32

	places []ops.Place
	rope   *ops.Rope

	unit func(dst, gate, up []float32)

	routes *ops.Routes
	params router.Params
}

// runs are the methods that the team runs, bound once.
type runs struct{ norm, multiply, rotate, add, glu, route func(worker, from, to int) }

// Stats counts what an executor has done since it was made.
type Stats struct {
	MatMuls int64 // weight matrices multiplied, an expert's three each counted
	Pairs   int64 // (row, expert) pairs computed
	Reads   int64 // distinct experts used, summed over steps and layers: what a cold cache would have to read
}

// New returns an executor with a team of threads. Close frees the team.
func New(threads int) *Executor {
	t := NewTeam(threads)
	e := &Executor{team: t, work: make([][]float32, t.Size())}
	e.runs = runs{e.norm, e.multiply, e.rotate, e.add, e.glu, e.route}
	return e
}

// Close ends the team. The executor must be idle.
func (e *Executor) Close() { e.team.Close() }

// Name returns "CPU".
func (e *Executor) Name() string { return "CPU" }

// Threads is the size of the team.
func (e *Executor) Threads() int { return e.team.Size() }

// Stats returns the counters.
func (e *Executor) Stats() Stats { return e.stats }

// Measure has c told what the time goes into, from the next op on; nil ends that.
func (e *Executor) Measure(c *ops.Clock) { e.clock = c }

// input is what the executor keeps beside a tensor: its rows as the kernels read them, made when the first matrix asks for them.
type input struct {
	kernels.Input
	set, quantized bool
	quantize       func(worker, from, to int) // made once
}

// Reset recycles every tensor, and the routes.
func (e *Executor) Reset() {
	e.arena.reset()
	e.routed = 0
}

// New returns a tensor from the arena.
func (e *Executor) New(name string, layer, rows, cols int) *ops.Tensor {
	return e.arena.tensor(name, layer, rows, cols)
}

// Upload copies host rows into a tensor.
func (e *Executor) Upload(name string, layer, rows, cols int, data []float32) *ops.Tensor {
	t := e.New(name, layer, rows, cols)
	copy(t.Data, data)
	return t
}

// Download returns the tensor's own memory.
func (e *Executor) Download(t *ops.Tensor) []float32 { return t.Data }

// touch says that t's values change: what was derived from them is stale.
func touch(t *ops.Tensor) {
	in := t.Aux.(*input)
	in.set, in.quantized = false, false
}

// rows returns the list 0…n-1.
func (e *Executor) rows(n int) []int32 {
	for len(e.all) < n {
		e.all = append(e.all, int32(len(e.all)))
	}
	return e.all[:n]
}

// scratch returns n values private to a worker.
func (e *Executor) scratch(worker, n int) []float32 {
	if len(e.work[worker]) < n {
		e.work[worker] = make([]float32, n)
	}
	return e.work[worker][:n]
}

// grain splits rows of the given cost (multiply-adds or similar) so that a range is worth a hand-over and every worker gets several.
func (e *Executor) grain(rows, cost int) int {
	const worth = 16 << 10
	return max(1, worth/max(cost, 1), rows/(8*e.team.Size()))
}

// forRows runs fn over ranges of rows.
func (e *Executor) forRows(rows, cost int, fn func(worker, from, to int)) {
	e.team.Run(rows, e.grain(rows, cost), fn)
}

// with runs fn over ranges of rows, on op.
func (e *Executor) with(op operands, rows, cost int, fn func(worker, from, to int)) {
	e.op = op
	e.forRows(rows, cost, fn)
	e.op = operands{}
}

// RMSNorm normalises rows.
func (e *Executor) RMSNorm(dst, x *ops.Tensor, p ops.Norm) {
	seg := p.Segment
	if seg == 0 {
		seg = x.Cols
	}
	check(dst.Rows == x.Rows && dst.Cols == x.Cols && x.Cols%seg == 0 && len(p.Weight.Data) == seg, "RMSNorm", dst, x)
	touch(dst)
	e.with(operands{dst: dst, x: x, norm: p, segment: seg}, x.Rows, x.Cols*2, e.runs.norm)
}

func (e *Executor) norm(_, from, to int) {
	op, seg := &e.op, e.op.segment
	for i := from * op.x.Cols; i < to*op.x.Cols; i += seg {
		kernels.RMSNormRow(op.dst.Data[i:i+seg], op.x.Data[i:i+seg], op.norm.Weight.Data, op.norm.Eps, false)
	}
}

// MatMul multiplies x with every projection's matrix in one hand-over to the team.
func (e *Executor) MatMul(x *ops.Tensor, out ...ops.Projection) {
	was := e.clock.Enter(ops.PartDense)
	in := prepare(x)
	for _, p := range out {
		e.reads(in, p.W.Format)
	}
	total, rowCost := 0, x.Rows*x.Cols
	for _, p := range out {
		if p.W.Cols != x.Cols || p.Dst.Rows != x.Rows || p.Dst.Cols != p.W.Rows {
			misfit("MatMul "+p.W.Name, p.Dst, x)
		}
		touch(p.Dst)
		total += p.W.Rows
	}
	e.stats.MatMuls += int64(len(out))
	e.op = operands{x: x, in: in, projections: out, all: e.rows(x.Rows)}
	e.team.Run(total, e.tile(total, rowCost), e.runs.multiply)
	e.op = operands{}
	if e.clock != nil {
		e.clock.Enter(was)
		e.product, e.productTook = out[0].Dst, e.clock.Last()
	}
}

// multiply computes some of the weight rows of all projections, counted on from one to the next.
func (e *Executor) multiply(_, from, to int) {
	op, base := &e.op, 0
	for i := range op.projections {
		p := &op.projections[i]
		lo, hi := max(from-base, 0), min(to-base, p.W.Rows)
		base += p.W.Rows
		if lo >= hi {
			continue
		}
		kernels.For(p.W.Format).MatMul(p.Dst.Data[lo:], p.Dst.Cols, p.W.Data[lo*p.W.RowBytes:hi*p.W.RowBytes], hi-lo, &op.in.Input, op.all)
		if p.Bias != nil {
			for r := range op.x.Rows {
				kernels.Add(p.Dst.Row(r)[lo:hi], p.Bias.Data[lo:hi])
			}
		}
	}
}

// tile splits weight rows: a range is worth a hand-over, and each worker gets several so that a slow core does not hold the others up.
func (e *Executor) tile(weightRows, rowCost int) int {
	const worth = 32 << 10 // multiply-adds: a microsecond with a core's weights in its cache, several from memory
	ranges := min(max(weightRows*rowCost/worth, 1), 16*e.team.Size())
	return (weightRows + ranges - 1) / ranges
}

// prepare points the kernels' input at x.
func prepare(x *ops.Tensor) *input {
	in := x.Aux.(*input)
	if !in.set {
		in.Set(x.Data, x.Rows, x.Cols)
		in.set = true
	}
	return in
}

// reads says that weights of format f are multiplied with in: its rows are quantised if the format asks for it, once for all users.
func (e *Executor) reads(in *input, f format.Format) {
	if in.quantized || kernels.For(f).Form != kernels.FormQ8 {
		return
	}
	if in.quantize == nil {
		in.quantize = func(_, from, to int) { in.Quantize(from, to) }
	}
	e.forRows(in.Rows, in.Cols*2, in.quantize)
	in.quantized = true
}

// Clamp limits values.
func (e *Executor) Clamp(x *ops.Tensor, limit float32) {
	touch(x)
	for i, v := range x.Data {
		x.Data[i] = min(max(v, -limit), limit)
	}
}

// RoPE rotates heads in place.
func (e *Executor) RoPE(x *ops.Tensor, places []ops.Place, r *ops.Rope) {
	defer e.clock.Enter(e.clock.Enter(ops.PartAttention))
	check(x.Cols%r.HeadDim == 0 && len(places) == x.Rows, "RoPE", x, x)
	touch(x)
	for _, p := range places {
		r.Grow(p.Pos + 1)
	}
	e.with(operands{x: x, places: places, rope: r}, x.Rows, x.Cols*2, e.runs.rotate)
}

func (e *Executor) rotate(_, from, to int) {
	x, r := e.op.x, e.op.rope
	half := r.Dim / 2
	for row := from; row < to; row++ {
		cos, sin := r.At(e.op.places[row].Pos)
		for data := x.Row(row); len(data) > 0; data = data[r.HeadDim:] {
			a, b := data[:half], data[half:r.Dim]
			for i, c := range cos {
				s, u, v := sin[i], a[i], b[i]
				a[i], b[i] = u*c-v*s, v*c+u*s
			}
		}
	}
}

// StoreKV writes key and value rows to their conversations.
func (e *Executor) StoreKV(kv []*ops.KV, k, v *ops.Tensor, places []ops.Place) {
	defer e.clock.Enter(e.clock.Enter(ops.PartAttention))
	for r, p := range places {
		kv[p.Seq].Put(p.Pos, k.Row(r), v.Row(r))
	}
}

// Gather copies rows.
func (e *Executor) Gather(name string, x *ops.Tensor, rows []int) *ops.Tensor {
	t := e.New(name, x.Layer, len(rows), x.Cols)
	for i, r := range rows {
		copy(t.Row(i), x.Row(r))
	}
	return t
}

// Add adds x to dst.
func (e *Executor) Add(dst, x *ops.Tensor) {
	check(dst.Rows == x.Rows && dst.Cols == x.Cols, "Add", dst, x)
	touch(dst)
	e.with(operands{dst: dst, x: x}, x.Rows, x.Cols, e.runs.add)
}

func (e *Executor) add(_, from, to int) {
	lo, hi := from*e.op.x.Cols, to*e.op.x.Cols
	kernels.Add(e.op.dst.Data[lo:hi], e.op.x.Data[lo:hi])
}

// GLU computes the gated unit.
func (e *Executor) GLU(dst, gate, up *ops.Tensor, act ops.Activation) {
	defer e.clock.Enter(e.clock.Enter(ops.PartDense))
	check(dst.Rows == gate.Rows && dst.Cols == gate.Cols && up.Cols == gate.Cols && up.Rows == gate.Rows, "GLU", dst, gate)
	touch(dst)
	e.with(operands{dst: dst, x: gate, up: up, unit: gatedUnit(act)}, gate.Rows, gate.Cols*8, e.runs.glu)
}

func (e *Executor) glu(_, from, to int) {
	op := &e.op
	lo, hi := from*op.x.Cols, to*op.x.Cols
	op.unit(op.dst.Data[lo:hi], op.x.Data[lo:hi], op.up.Data[lo:hi])
}

// gatedUnit returns the function that computes dst = act(gate)·up.
func gatedUnit(act ops.Activation) func(dst, gate, up []float32) {
	switch act {
	case ops.SiLU:
		return kernels.SiLUMul
	default:
		panic(fmt.Sprintf("cpu: unknown activation %d", act))
	}
}

// Route chooses experts row by row. The routes are valid until Reset.
func (e *Executor) Route(logits *ops.Tensor, p router.Params) *ops.Routes {
	if logits == e.product {
		e.clock.Rebook(e.productTook, ops.PartDense, ops.PartRouter)
	}
	defer e.clock.Enter(e.clock.Enter(ops.PartRouter))
	if e.routed == len(e.routes) {
		e.routes = append(e.routes, new(ops.Routes))
	}
	routes := e.routes[e.routed]
	e.routed++
	pairs := logits.Rows * p.TopK
	routes.Rows, routes.TopK = logits.Rows, p.TopK
	routes.IDs, routes.Weights = slices.Grow(routes.IDs[:0], pairs)[:pairs], slices.Grow(routes.Weights[:0], pairs)[:pairs]
	e.with(operands{x: logits, routes: routes, params: p}, logits.Rows, logits.Cols*(p.TopK+16), e.runs.route)
	return routes
}

// Chosen returns the routes' own memory.
func (e *Executor) Chosen(r *ops.Routes) (ids []int32, weights []float32) { return r.IDs, r.Weights }

func (e *Executor) route(worker, from, to int) {
	op, k := &e.op, e.op.params.TopK
	for r := from; r < to; r++ {
		at := r * k
		scratch := e.scratch(worker, op.x.Cols)
		router.Route(op.routes.IDs[at:at+k], op.routes.Weights[at:at+k], op.x.Row(r), scratch, op.params)
	}
}

func check(ok bool, op string, dst, x *ops.Tensor) {
	if !ok {
		misfit(op, dst, x)
	}
}

func misfit(op string, dst, x *ops.Tensor) {
	panic(fmt.Sprintf("cpu: %s: shapes do not fit: dst %s [%d, %d], x %s [%d, %d]",
		op, dst.Name, dst.Rows, dst.Cols, x.Name, x.Rows, x.Cols))
}
