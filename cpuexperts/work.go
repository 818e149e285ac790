// Package cpuexperts computes routed experts on the CPU: the work of one MoE step (Work), and the actor that computes experts whose bytes
// land while the step is under way (Pool).
//
// What does not live here: where bytes come from (packages tier and prefetcher), the arithmetic of a weight row (package kernels), and
// the rest of a layer (package ops/cpu).
package cpuexperts

import (
	"fmt"
	"sync/atomic"

	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/weights/format"
)

// Splitter splits index ranges over threads; ops/cpu's team is one.
type Splitter interface {
	// Run calls fn on disjoint ranges of at most grain indices that cover [0, n).
	Run(n, grain int, fn func(worker, from, to int))
	// Size is the number of threads.
	Size() int
}

// Matrices are the three matrices of an expert: gate and up [I, H], down [H, I]. Without Data they are a description, of a record in which
// they begin at At.
type Matrices struct {
	Gate, Up, Down ops.Matrix
	At             [3]int64 // offsets of gate, up and down in the record
}

// attach points the matrices at the bytes of a record.
func (m *Matrices) attach(record []byte) {
	for i, x := range []*ops.Matrix{&m.Gate, &m.Up, &m.Down} {
		x.Data = record[m.At[i]:][:x.Rows*x.RowBytes]
	}
}

// Work is one MoE step on the CPU. Group, Bind, Input, then Tiled or the pool compute every pair into a slot of its own; Sum adds them up.
// Its memory is kept from step to step.
//
// One goroutine drives a Work. While the pool takes part, several compute experts of it at the same time, each another run.
type Work struct {
	Step  messages.Step // what the tier is asked; Uses[i] belongs to run i
	Clock *ops.Clock    // told by the goroutine that drives the Work what it does; may be nil

	rows, topK int
	act        func(dst, gate, up []float32)

	runs  []run
	count []int32 // rows routed to each expert
	order []int32 // pair numbers (row·topK + rank) sorted by expert
	rowOf []int32 // the input row of each entry of order
	slot  []int32 // place of each pair in order
	all   []int32 // 0, 1, 2, …

	x      *kernels.Input
	hidden kernels.Input // act(gate)·up of each pair, in the order of order
	inter  int
	width  int
	h, up  []float32
	y      []float32 // down outputs, in the order of order

	// What the team runs, with what it runs on: a closure for each hand-over would allocate.
	runTiles, runQuantize, runSum func(worker, from, to int)
	tiles                         tiles
	sum                           sum

	ready chan landed   // runs whose bytes have landed and that nobody has claimed
	left  atomic.Int32  // runs that are not computed
	done  chan struct{} // receives when left reaches 0, or when the step fails
	err   atomic.Pointer[error]
	tier  messages.Address
}

// run is one expert with its pairs, order[from:to].
type run struct {
	m        Matrices
	from, to int32
}

// tiles are the weight rows of runs, cut up for the team.
type tiles struct {
	runs   []int32
	rows   int // of a run
	height int // rows of a tile
	each   int // tiles of a run
	down   bool
}

// sum is what Sum adds up.
type sum struct{ dst, weights []float32 }

type landed struct {
	run  int32
	data []byte
}

// Group sorts the pairs of a step by expert. ids are the routed experts, [rows, topK], of a layer with n experts.
func (w *Work) Group(layer int, ids []int32, topK, n int) {
	if w.runTiles == nil {
		w.runTiles, w.runQuantize, w.runSum = w.computeTiles, w.quantize, w.addUp
	}
	w.rows, w.topK = len(ids)/topK, topK
	w.count = sized(w.count, n+1)
	clear(w.count)
	for _, id := range ids {
		w.count[id+1]++
	}
	w.runs, w.Step.Uses = w.runs[:0], w.Step.Uses[:0]
	w.Step.Layer, w.Step.Rows = int32(layer), int32(w.rows)
	for id := range n {
		from, k := w.count[id], w.count[id+1]
		if k > 0 {
			w.runs = append(w.runs, run{from: from, to: from + k})
			w.Step.Uses = append(w.Step.Uses, messages.Use{Expert: int32(id), Rows: k})
		}
		w.count[id+1] += from
	}
	w.order, w.rowOf, w.slot = sized(w.order, len(ids)), sized(w.rowOf, len(ids)), sized(w.slot, len(ids))
	for pair, id := range ids {
		at := w.count[id]
		w.count[id]++
		w.order[at], w.rowOf[at], w.slot[pair] = int32(pair), int32(pair/topK), at
	}
	for len(w.all) < len(ids) {
		w.all = append(w.all, int32(len(w.all)))
	}
}

// Runs is the number of distinct experts.
func (w *Work) Runs() int { return len(w.runs) }

// Pairs is the number of (row, expert) pairs.
func (w *Work) Pairs() int { return len(w.order) }

// Expert is the expert of run i.
func (w *Work) Expert(i int) int { return int(w.Step.Uses[i].Expert) }

// Bind sets the matrices of run i, with or without their bytes.
func (w *Work) Bind(i int, m Matrices) { w.runs[i].m = m }

// Attach gives run i the bytes of its record.
func (w *Work) Attach(i int, record []byte) { w.runs[i].m.attach(record) }

// InputFormats are the formats that read the input rows in run i.
func (w *Work) InputFormats(i int) (gate, up format.Format) {
	return w.runs[i].m.Gate.Format, w.runs[i].m.Up.Format
}

// Input sets the rows to compute, quantised if a format of InputFormats reads them so, the width of the output, and act, which computes a
// gated unit.
func (w *Work) Input(x *kernels.Input, width int, act func(dst, gate, up []float32)) {
	w.x, w.width, w.act = x, width, act
	w.inter = 0
	for i := range w.runs {
		m := &w.runs[i].m
		if i == 0 {
			w.inter = m.Gate.Rows
		}
		if m.Gate.Rows != w.inter || m.Up.Rows != w.inter || m.Down.Cols != w.inter || m.Down.Rows != width || m.Gate.Cols != x.Cols {
			panic(fmt.Sprintf("cpuexperts: expert %d of layer %d does not fit the step", w.Expert(i), w.Step.Layer))
		}
	}
	pairs := len(w.order)
	w.h, w.up, w.y = sized(w.h, pairs*w.inter), sized(w.up, pairs*w.inter), sized(w.y, pairs*width)
	if pairs > 0 {
		w.hidden.Set(w.h, pairs, w.inter)
	}
}

// Tiled computes the given runs, whose bytes are there, with all threads: the weight rows of every expert are split into tiles, first of
// gate and up, then of down.
func (w *Work) Tiled(team Splitter, runs []int32) {
	if len(runs) == 0 {
		return
	}
	defer w.Clock.Enter(w.Clock.Enter(ops.PartMemory))
	pairs := 0
	hidden := false
	for _, i := range runs {
		r := &w.runs[i]
		pairs += int(r.to - r.from)
		hidden = hidden || kernels.For(r.m.Down.Format).Form == kernels.FormQ8
	}
	each := max(pairs/len(runs), 1)
	w.tiles = tiles{runs: runs, rows: w.inter}
	w.tile(team, 2*each*w.x.Cols)
	if hidden {
		const worth = 16 << 10 // values that are worth a hand-over
		team.Run(len(runs), max(1, worth/(each*w.inter)), w.runQuantize)
	}
	w.tiles.rows, w.tiles.down = w.width, true
	w.tile(team, each*w.inter)
}

// tile splits the weight rows of every run into tiles, each worth a hand-over, and several for each thread, so that a slow core does not
// hold the others up. rowCost is the multiply-adds of a weight row.
func (w *Work) tile(team Splitter, rowCost int) {
	const worth = 64 << 10
	t := &w.tiles
	total := t.rows * len(t.runs)
	t.height = min(t.rows, max(1, worth/max(rowCost, 1), total/(16*team.Size())))
	t.each = (t.rows + t.height - 1) / t.height
	team.Run(t.each*len(t.runs), 1, w.runTiles)
}

func (w *Work) computeTiles(_, from, to int) {
	t := &w.tiles
	for i := from; i < to; i++ {
		r := &w.runs[t.runs[i/t.each]]
		lo := i % t.each * t.height
		hi := min(lo+t.height, t.rows)
		if t.down {
			w.down(r, lo, hi)
		} else {
			w.gateUp(r, lo, hi)
		}
	}
}

// quantize quantises the hidden rows of the runs in tiles.
func (w *Work) quantize(_, from, to int) {
	for _, i := range w.tiles.runs[from:to] {
		w.hidden.Quantize(int(w.runs[i].from), int(w.runs[i].to))
	}
}

// gateUp computes rows lo to hi of gate and up, and their gated unit, for all pairs of r.
func (w *Work) gateUp(r *run, lo, hi int) {
	rows, n := w.rowOf[r.from:r.to], hi-lo
	gate, up := w.h[int(r.from)*w.inter+lo:], w.up[int(r.from)*w.inter+lo:]
	multiply(gate, w.inter, &r.m.Gate, lo, hi, w.x, rows)
	multiply(up, w.inter, &r.m.Up, lo, hi, w.x, rows)
	for j := range rows {
		at := j * w.inter
		w.act(gate[at:at+n], gate[at:at+n], up[at:at+n])
	}
}

// down computes rows lo to hi of down for all pairs of r.
func (w *Work) down(r *run, lo, hi int) {
	multiply(w.y[int(r.from)*w.width+lo:], w.width, &r.m.Down, lo, hi, &w.hidden, w.all[r.from:r.to])
}

func multiply(dst []float32, ldd int, m *ops.Matrix, lo, hi int, x *kernels.Input, rows []int32) {
	kernels.For(m.Format).MatMul(dst, ldd, m.Data[lo*m.RowBytes:hi*m.RowBytes], hi-lo, x, rows)
}

// one computes run i in the calling goroutine.
func (w *Work) one(i int32) {
	r := &w.runs[i]
	w.gateUp(r, 0, w.inter)
	if kernels.For(r.m.Down.Format).Form == kernels.FormQ8 {
		w.hidden.Quantize(int(r.from), int(r.to))
	}
	w.down(r, 0, w.width)
}

// Sum adds each row's pairs into dst [rows, width], weighted, in rank order: so the result does not depend on who computed a pair, or when.
func (w *Work) Sum(team Splitter, dst, weights []float32) {
	const worth = 16 << 10
	w.sum = sum{dst, weights}
	team.Run(w.rows, max(1, worth/(2*w.width*w.topK)), w.runSum)
	w.sum = sum{}
}

// addUp is Sum of some rows.
func (w *Work) addUp(_, from, to int) {
	for r := from; r < to; r++ {
		out := w.sum.dst[r*w.width : (r+1)*w.width]
		clear(out)
		for rank := range w.topK {
			pair := r*w.topK + rank
			at := int(w.slot[pair]) * w.width
			kernels.Axpy(out, w.sum.weights[pair], w.y[at:at+w.width])
		}
	}
}

func sized[T any](x []T, n int) []T {
	if cap(x) < n {
		return make([]T, n)
	}
	return x[:n]
}
