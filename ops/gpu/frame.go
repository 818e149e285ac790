package gpu

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/shaders"
)

// mostFrames is how many lists stay recorded: a decode step takes one, a prompt some more.
const mostFrames = 16

// frame is a list of nodes with what it was compiled to.
type frame struct {
	nodes     []node
	next      *frame          // of the list that came after it last time
	slices    []*device.Frame // one submission each
	swallowed []int32
	fired     [fusions]int

	matmuls, dispatches, barriers int64
}

func (f *frame) free() {
	for _, s := range f.slices {
		s.Free()
	}
}

// flush runs what was recorded, and waits for it.
func (e *Executor) flush() {
	e.ok()
	e.copyOut()
	if len(e.nodes)+e.same == 0 {
		return
	}
	e.begin()
	f := e.find()
	if f == nil {
		f = e.compile()
	} else {
		for _, s := range f.slices {
			e.submit(s)
		}
	}
	e.Account()
	e.wait()
	e.done(f)
}

// done notes what the frame of the list has done, and begins the next list.
func (e *Executor) done(f *frame) {
	e.gone = append(e.gone, f.swallowed)
	if e.last != nil {
		e.last.next = f
	}
	e.last = f
	e.list()
	e.turn()
	e.end()
	e.account(f)
	for _, b := range e.retired {
		b.Free()
	}
	clear(e.retired)
	e.retired = e.retired[:0]
}

// find returns the frame of the list, and makes it the most recent; nil if there is none.
func (e *Executor) find() *frame {
	is := func(f *frame) bool { return f == e.guess }
	if e.guess == nil || e.same < len(e.guess.nodes) {
		e.differ()
		is = func(f *frame) bool { return slices.Equal(f.nodes, e.nodes) }
	}
	i := slices.IndexFunc(e.frames, is)
	if i < 0 {
		return nil
	}
	f := e.frames[i]
	copy(e.frames[1:i+1], e.frames[:i])
	e.frames[0] = f
	return f
}

func (e *Executor) submit(f *device.Frame) {
	p, err := f.Submit()
	if err != nil {
		e.fail("submitting a frame", err)
	}
	e.points = append(e.points, p)
}

// wait waits for what was submitted.
func (e *Executor) wait() {
	for _, p := range e.points {
		if err := p.Wait(context.Background()); err != nil {
			e.fail("waiting for a frame", err)
		}
	}
	e.points = e.points[:0]
}

// compile makes the list's frame and runs it: while the device is at one slice of a long list the next is recorded.
func (e *Executor) compile() *frame {
	allow := e.core.allow
	if e.opt.Separate {
		allow = func(fusion, *node) bool { return false }
	}
	fused := fuse(e.nodes, allow)
	f := &frame{nodes: slices.Clone(e.nodes), swallowed: fused.swallowed, fired: fused.fired}
	rows := int32(1)
	for i := range f.nodes {
		if n := &f.nodes[i]; n.op == opMatMul {
			f.matmuls++
		}
		rows = max(rows, f.nodes[i].x.rows, f.nodes[i].dst.rows)
	}
	l := lowering{cores: e.core, iota: e.number(int(rows))}
	for _, u := range fused.units {
		l.unit(u)
	}
	used, cost := make([]touches, len(l.out)), make([]float64, len(l.out))
	for i := range l.out {
		used[i], cost[i] = l.out[i].touches, l.out[i].cost
	}
	stages := schedule(used)
	delay(stages, used, cost, l.late)
	// The frame is dropped with the others, whatever happens from here on.
	e.frames = append([]*frame{f}, e.frames...)
	for _, run := range slice(stages, cost, watchdog) {
		s := e.dev.NewFrame()
		f.slices = append(f.slices, s)
		e.record(f, s, run, l.out)
		e.submit(s)
	}
	if n := len(e.frames); n > mostFrames {
		e.forget(e.frames[n-1])
		e.frames = e.frames[:n-1]
	}
	e.stats.Recorded++
	return f
}

// record records stages with a barrier between each two.
func (e *Executor) record(f *frame, s *device.Frame, stages [][]int, all []command) {
	for i, stage := range stages {
		if i > 0 {
			s.Barrier()
			f.barriers++
		}
		for _, k := range stage {
			c := &all[k]
			p, err := e.dev.Pipeline(device.Module(shaders.Get(c.Kernel)), c.Constants, c.subgroup)
			if err != nil {
				e.fail("compiling a shader", err)
			}
			s.Dispatch(p, c.push, c.X, c.Y, c.Z, c.label)
			f.dispatches++
		}
	}
	if err := s.End(); err != nil {
		e.fail("recording a frame", err)
	}
}

// forget frees a frame that is not the last.
func (e *Executor) forget(f *frame) {
	f.free()
	for _, o := range e.frames {
		if o.next == f {
			o.next = nil
		}
	}
}

// dropFrames forgets what was recorded: it refers to memory that goes.
func (e *Executor) dropFrames() {
	e.differ()
	for _, f := range e.frames {
		f.free()
	}
	e.frames, e.last = nil, nil
}

// account counts what a frame did, but for what it chose.
func (e *Executor) account(f *frame) {
	s := &e.stats
	s.Frames++
	s.Submissions += int64(len(f.slices))
	s.Dispatches += f.dispatches
	s.Barriers += f.barriers
	s.MatMuls += f.matmuls
	for i, n := range f.fired {
		e.fired[i] += int64(n)
	}
	for _, part := range f.slices {
		times, err := part.Times()
		if err != nil {
			e.fail("reading the device's clock", err)
		}
		for _, t := range times {
			e.times[t.Label] = device.Timing{Label: t.Label, Time: e.times[t.Label].Time + t.Time, Count: e.times[t.Label].Count + t.Count}
		}
	}
}

// Times returns the device's time by op, the longest first: empty unless the device was opened with Profile.
func (e *Executor) Times() []device.Timing {
	return slices.SortedFunc(maps.Values(e.times), func(a, b device.Timing) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Label, b.Label))
	})
}
