package cpu

import (
	"github.com/coli-moe/coli/cpuexperts"
	"github.com/coli-moe/coli/ops"
)

// Pipeline finds the experts of a step wherever they are, and computes them with the executor's help: a step is one issue and one join.
type Pipeline interface {
	// Describe returns the matrices of an expert without their bytes; ok is false if the expert set has these in memory.
	Describe(layer, expert int) (m cpuexperts.Matrices, ok bool)
	// Step computes every run of w. After an error nothing touches w's memory, and w is not to be used again.
	Step(w *cpuexperts.Work, team cpuexperts.Splitter) error
}

// Use makes the executor compute experts through p; nil takes them from the expert sets, as at first. failed is called with the error of
// a step, which is then computed without the pipeline.
func (e *Executor) Use(p Pipeline, failed func(error)) { e.pipeline, e.failed = p, failed }

// Experts groups the pairs by expert, so that an expert's weights are read once for all of its rows, computes every pair into its own
// slot, and adds each row's slots in rank order.
func (e *Executor) Experts(dst, x *ops.Tensor, routes *ops.Routes, experts ops.ExpertSet, act ops.Activation) {
	check(dst.Rows == x.Rows && dst.Cols == x.Cols && routes.Rows == x.Rows, "Experts", dst, x)
	defer e.clock.Enter(e.clock.Enter(ops.PartMemory))
	touch(dst)
	if routes.TopK == 0 || routes.Rows == 0 {
		clear(dst.Data)
		return
	}
	w := e.nextWork()
	w.Group(experts.Layer(), routes.IDs, routes.TopK, experts.Len())
	e.stats.MatMuls += int64(3 * w.Runs())
	e.stats.Pairs += int64(w.Pairs())
	e.stats.Reads += int64(w.Runs())
	if e.pipeline == nil || !e.piped(w, x, dst.Cols, experts, act) {
		e.direct(w, x, dst.Cols, experts, act)
	}
	w.Sum(e.team, dst.Data, routes.Weights)
}

// nextWork alternates between two works: the tier may still look at the step before, but has left the one before that when it answers.
func (e *Executor) nextWork() *cpuexperts.Work {
	e.turn = 1 - e.turn
	if e.works[e.turn] == nil {
		e.works[e.turn] = new(cpuexperts.Work)
	}
	e.works[e.turn].Clock = e.clock
	return e.works[e.turn]
}

// piped computes w through the pipeline; false leaves it to be computed directly, for the last time it is used.
func (e *Executor) piped(w *cpuexperts.Work, x *ops.Tensor, width int, experts ops.ExpertSet, act ops.Activation) bool {
	for i := range w.Runs() {
		if m, ok := e.pipeline.Describe(int(w.Step.Layer), w.Expert(i)); ok {
			w.Bind(i, m)
		} else {
			bind(w, i, experts)
		}
	}
	e.input(w, x, width, act)
	defer e.clock.Enter(e.clock.Enter(ops.PartHandOver))
	err := e.pipeline.Step(w, e.team)
	if err == nil {
		return true
	}
	e.works[e.turn] = new(cpuexperts.Work)
	e.failed(err)
	return false
}

// direct computes w from the expert set's memory.
func (e *Executor) direct(w *cpuexperts.Work, x *ops.Tensor, width int, experts ops.ExpertSet, act ops.Activation) {
	for i := range w.Runs() {
		bind(w, i, experts)
	}
	e.input(w, x, width, act)
	w.Tiled(e.team, e.rows(w.Runs()))
}

// bind gives run i the matrices that the expert set has in memory.
func bind(w *cpuexperts.Work, i int, experts ops.ExpertSet) {
	gate, up, down := experts.Expert(w.Expert(i))
	w.Bind(i, cpuexperts.Matrices{Gate: *gate, Up: *up, Down: *down})
}

func (e *Executor) input(w *cpuexperts.Work, x *ops.Tensor, width int, act ops.Activation) {
	in := prepare(x)
	for i := range w.Runs() {
		gate, up := w.InputFormats(i)
		e.reads(in, gate)
		e.reads(in, up)
	}
	w.Input(&in.Input, width, gatedUnit(act))
}
