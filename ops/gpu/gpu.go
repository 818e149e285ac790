// Package gpu executes the op set on a Vulkan device.
//
// Ops append to a list; nothing runs until a host value is asked for (Download, Chosen, ArgMax) or Finish. Then the list is compiled:
// neighbours share kernels (fuse.go), what is left becomes dispatches (lower.go), with barriers between dependent ones only
// (schedule.go), recorded as one frame, or several where it is long. The frame is kept with its list: the same list runs it again without
// recording. So everything that changes from token to token lies in memory that the host writes (params.go), and the same ops in the same
// order get the same addresses (arena.go).
//
// What does not live here: the kernels (package shaders), the device's memory and queue (package device), the watermark of the caches'
// device copies (package kvmirror).
package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/kvmirror"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/weights/format"
)

// gemvRows is the number of rows from which on matrices are multiplied in tiles. Below it a row's bits do not depend on the other rows.
const gemvRows = 16

// Options configure an Executor.
type Options struct {
	// Sizes are those of the model: what Fixed returns for them is taken in whole blocks. Zero takes memory as needed.
	Sizes Sizes
	// Routed is called with the experts that a list chose for the rows of a layer, [rows, top_k]; nil for nobody. That is while the device
	// is at the next list, or in Account; earlier says that Reset was called since the list ran. The ids are valid during the call.
	Routed func(layer int, ids []int32, earlier bool)
	// KV bounds the caches' copies.
	KV kvmirror.Config
	// Actor starts the actor that owns the copies; nil has the executor's goroutine do its work. The channel is closed when it is gone.
	Actor func(*kvmirror.Actor) (messages.Address, <-chan struct{}, error)
	// Separate turns fusion off: every op in kernels of its own, for tests.
	Separate bool
}

// Stats counts what an executor has done since it was made.
type Stats struct {
	MatMuls int64 // weight matrices multiplied on the device, an expert's three each counted
	Pairs   int64 // (row, expert) pairs computed
	Reads   int64 // distinct experts used, summed over steps and layers

	Frames      int64 // lists run
	Recorded    int64 // of these, recorded first
	Submissions int64
	Dispatches  int64
	Barriers    int64 // between dependent dispatches
	Fused       map[string]int64
}

// DeviceError reports that the device failed. It wraps what package device said: ErrLost, ErrNoMemory, ….
type DeviceError struct {
	Device string // its name
	Doing  string // what failed
	Err    error
}

func (e *DeviceError) Error() string { return fmt.Sprintf("%s: %s: %v", e.Device, e.Doing, e.Err) }

// Unwrap returns the cause.
func (e *DeviceError) Unwrap() error { return e.Err }

// errClosed is what every op of a closed executor fails with.
var errClosed = errors.New("the executor is closed")

// Executor is the Vulkan implementation of ops.Executor. One goroutine at a time uses it.
//
// When the device fails an op panics with *ops.Failure, whose error is a *DeviceError; so does every op after it. Close is then still due.
type Executor struct {
	dev  *device.Device
	opt  Options
	err  error // the failure, once there was one
	core cores

	nodes  []node         // recorded, and not run
	guess  *frame         // whose list nodes begins like, instead of nodes; nil once it did not
	same   int            // how many nodes of the guess were recorded
	last   *frame         // of the list before
	frames []*frame       // most recently used first
	points []device.Point // of what was submitted and not waited for

	arena  arena
	inputs bump // rows that the host writes for the device
	params bump // what else it writes: little, and much of it the same in every step
	stage  bump // what the device writes for the host, by step

	// Tensors, routes and tables are handed out in order, the same ones in every step.
	tensors  []*ops.Tensor
	used     int // tensors of the step
	routes   []*ops.Routes
	routed   int // routes of the step
	choices  [2]choices
	choosing int       // which of them the list's are
	owed     *choices  // of the last list, not counted yet
	lists    int       // run
	ids      []byte    // scratch
	seen     []bool    // scratch, by expert
	gone     [][]int32 // the tensors that each list of the step has swallowed

	index  []int32 // scratch
	places placeSlot
	outs   []outward // of the list, not recorded yet
	tables []*cacheTable
	tabled int                  // tables of the step
	needs  []kvmirror.Need      // scratch
	wrote  []kvmirror.Rows      // scratch
	rows   [kvmirror.Slots]bump // rows of caches on their way to the host
	slot   int                  // which of them the list uses
	mirror *mirror

	weights weights
	ropes   map[*ops.Rope]*ropeTable
	zeros   *device.Buffer   // counters
	numbers *device.Buffer   // 0, 1, 2, …
	retired []*device.Buffer // to be freed after the next frame

	fired [fusions]int64
	stats Stats
	times map[string]device.Timing
}

var _ ops.Executor = (*Executor)(nil)

// New returns an executor on a device. Close frees what it holds there; the device stays open.
func New(dev *device.Device, o Options) (*Executor, error) {
	e := &Executor{dev: dev, opt: o, core: coresOf(dev.Info()), ropes: map[*ops.Rope]*ropeTable{}, times: map[string]device.Timing{}}
	alloc := func(use device.Use, name string) func(int64) (*device.Buffer, error) {
		return func(size int64) (*device.Buffer, error) { return dev.Alloc(use, size, name) }
	}
	s := o.Sizes
	e.arena = newArena(alloc(device.DeviceOnly, "activations"), s.kept(), s.layer())
	e.inputs = bump{alloc: alloc(device.HostWrites, "inputs"), first: s.inputs()}
	e.params = bump{alloc: alloc(device.HostWrites, "parameters"), first: s.params(), dense: true, shadow: true}
	e.stage = bump{alloc: alloc(device.HostReads, "results"), first: s.results()}
	for i := range e.rows {
		e.rows[i] = bump{alloc: alloc(device.HostReads, "KV rows"), first: s.kvRows()}
		e.choices[i].memory = bump{alloc: alloc(device.HostReads, "choices"), first: s.choices(), dense: true}
	}
	e.weights = newWeights(dev)
	var err error
	if e.mirror, err = newMirror(dev, o); err != nil {
		return nil, err
	}
	return e, nil
}

// Close frees everything on the device.
func (e *Executor) Close() error {
	e.Account()
	e.err = cmp.Or(e.err, error(errClosed))
	e.dropFrames()
	e.arena.free()
	e.inputs.free()
	e.params.free()
	e.stage.free()
	err := e.mirror.close()
	for i := range e.rows {
		e.rows[i].free()
		e.choices[i].memory.free()
	}
	e.weights.free()
	for _, r := range e.ropes {
		r.free()
	}
	clear(e.ropes)
	for _, b := range slices.Concat(e.retired, []*device.Buffer{e.zeros, e.numbers}) {
		b.Free()
	}
	e.retired, e.zeros, e.numbers = nil, nil, nil
	return err
}

// Name returns the device's name.
func (e *Executor) Name() string { return e.dev.Info().Name }

// Stats returns the counters.
func (e *Executor) Stats() Stats {
	e.Account()
	s := e.stats
	s.Fused = map[string]int64{}
	for f, n := range e.fired {
		s.Fused[fusion(f).String()] = n
	}
	return s
}

// Counted returns the counters as they are, without what the last list chose, and without Fused: it costs a copy.
func (e *Executor) Counted() Stats { return e.stats }

// fail ends the executor's work: this op and all later ones panic. Rows of caches that came back before are the host's first.
func (e *Executor) fail(doing string, err error) {
	if e.err == nil {
		e.Account()
		e.err = &DeviceError{e.Name(), doing, errors.Join(err, e.mirror.Settle())}
	}
	panic(&ops.Failure{Err: e.err})
}

// ok panics if the device has failed.
func (e *Executor) ok() {
	if e.err != nil {
		panic(&ops.Failure{Err: e.err})
	}
}

// integer says whether weights of format f multiply the integer form of activations.
func integer(f format.Format) bool { return kernels.For(f).Form == kernels.FormQ8 }

// tensor is what the executor keeps beside an ops.Tensor.
type tensor struct {
	operand
	epoch int32
	list  int       // of the step, which wrote it last
	quant bool      // the integer form is that of the values
	host  []float32 // the values, if they were downloaded since they were written
}

// aux returns t's device side, which must be valid.
func (e *Executor) aux(t *ops.Tensor) *tensor {
	x, ok := t.Aux.(*tensor)
	if !ok {
		panic(fmt.Sprintf("gpu: %s belongs to another executor", t.Name))
	}
	e.arena.check(t.Name, x.layer, x.epoch)
	return x
}

// read returns t as a source.
func (e *Executor) read(t *ops.Tensor) *tensor {
	x := e.aux(t)
	if x.list < len(e.gone) && slices.ContainsFunc(e.gone[x.list:], func(ids []int32) bool { return slices.Contains(ids, x.id) }) {
		panic(fmt.Sprintf("gpu: %s of layer %d is read, but was only ever an intermediate of one kernel", t.Name, t.Layer))
	}
	return x
}

// write returns t as a destination.
func (e *Executor) write(t *ops.Tensor) *tensor {
	x := e.aux(t)
	x.list, x.quant, x.host = len(e.gone), false, nil
	return x
}

// take returns arena memory for something of a layer.
func (e *Executor) take(layer int, size int64) (piece, int32) {
	e.ok()
	p, epoch, err := e.arena.take(layer, size)
	if err != nil {
		e.fail("memory for activations", err)
	}
	return p, epoch
}

// from takes memory from one of the bumps that the host sees.
func (e *Executor) from(b *bump, size int64) piece {
	e.ok()
	p, err := b.take(size)
	if err != nil {
		e.fail("memory for the host's values", err)
	}
	return p
}

// add records a node. Lists follow each other as they did before: as long as the nodes are those of the guess they are only counted.
func (e *Executor) add(n *node) {
	e.ok()
	if next := e.next(); next != nil && *next == *n {
		e.same++
		return
	}
	e.differ()
	e.nodes = append(e.nodes, *n)
}

// next is the node that is expected, nil if nothing is.
func (e *Executor) next() *node {
	if e.guess == nil || e.same == len(e.guess.nodes) {
		return nil
	}
	return &e.guess.nodes[e.same]
}

// weighted is the next node but for making an integer form, which the weights that an op names are looked for in first.
func (e *Executor) weighted() *node {
	n := e.next()
	if n != nil && n.op == opQuantize && e.same+1 < len(e.guess.nodes) {
		n = &e.guess.nodes[e.same+1]
	}
	return n
}

// differ gives the guess up.
func (e *Executor) differ() {
	if e.guess != nil {
		e.nodes = append(e.nodes[:0], e.guess.nodes[:e.same]...)
	}
	e.guess, e.same = nil, 0
}

// list begins a list, which is taken for the one that followed the last.
func (e *Executor) list() {
	e.nodes, e.guess, e.same = e.nodes[:0], nil, 0
	if e.last != nil {
		e.guess = e.last.next
	}
}

// Reset recycles every tensor. What was recorded and not run is forgotten.
func (e *Executor) Reset() {
	e.list()
	e.arena.reset()
	e.inputs.reset()
	e.params.reset()
	e.stage.reset()
	e.rows[e.slot].reset()
	e.choices[e.choosing].forget()
	if e.owed != nil {
		e.owed.earlier = true
	}
	e.used, e.routed, e.tabled = 0, 0, 0
	e.outs, e.gone = e.outs[:0], e.gone[:0]
	e.places.at, e.places.tile = 0, 0
}

// New returns a tensor from the arena.
func (e *Executor) New(name string, layer, rows, cols int) *ops.Tensor {
	p, epoch := e.take(layer, 4*int64(rows)*int64(cols))
	if e.used == len(e.tensors) {
		e.tensors = append(e.tensors, &ops.Tensor{Aux: new(tensor)})
	}
	t := e.tensors[e.used]
	t.Name, t.Layer, t.Rows, t.Cols = name, layer, rows, cols
	x := t.Aux.(*tensor)
	x.operand = operand{at: p.at(), id: int32(e.used), layer: int32(layer), rows: int32(rows), cols: int32(cols)}
	x.epoch, x.list, x.quant, x.host = epoch, len(e.gone), false, nil
	e.used++
	return t
}

// values is memory as T.
func values[T any](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(zero)))
}

// octets is memory as bytes.
func octets[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}
