package gpu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/shaders/layout"
	"github.com/coli-moe/coli/weights/format"
)

// weight is a matrix on the device.
type weight struct {
	of      *ops.Matrix
	integer bool // multiplies the integer form of activations
	layout  layout.Layout
	buf     *device.Buffer
	off     int64 // in the buffer
}

func (w *weight) at() uint64 { return w.buf.Addr + uint64(w.off) }

// vector is a float32 vector on the device.
type vector struct {
	of  *float32 // the first value
	buf *device.Buffer
}

func (v *vector) at() uint64 {
	if v == nil {
		return 0
	}
	return v.buf.Addr
}

// experts are the routed experts of a layer on the device.
type experts struct {
	of            *ops.Matrix // the first gate
	n             int
	hidden, inter int
	// groups are the formats that the gate, up and down matrices come in; a mixed set has several.
	groups [3][]group
	input  bool // gate or up matrices multiply the integer form
}

// group is the matrices of one kind that have one format.
type group struct {
	layout layout.Layout
	table  uint64 // address of uint64 [experts, 3]; 0 where an expert's matrix is not of the group
}

// uniform says whether gate and up of all experts have one layout, and down has one, so that kernels take the whole set at once.
func (s *experts) uniform() bool {
	g := &s.groups
	return len(g[0]) == 1 && len(g[1]) == 1 && len(g[2]) == 1 && g[0][0].layout == g[1][0].layout
}

// float says whether one of the gate and up matrices multiplies float32 activations.
func (s *experts) float() bool {
	return slices.ContainsFunc(slices.Concat(s.groups[gate], s.groups[up]), func(g group) bool { return !integer(g.layout.Format) })
}

// wants says whether one of the matrices of a kind multiplies the integer form.
func (s *experts) wants(kinds ...int) bool {
	return slices.ContainsFunc(kinds, func(k int) bool {
		return slices.ContainsFunc(s.groups[k], func(g group) bool { return integer(g.layout.Format) })
	})
}

// weights are what the device holds of the model. Matrices and vectors are known by their pointers, an expert set by its first gate.
type weights struct {
	dev      *device.Device
	matrices map[*ops.Matrix]*weight
	vectors  map[*float32]*vector // by the first value
	sets     map[*ops.Matrix]*experts
	loads    map[*Loaded]bool // all that are not freed
}

func newWeights(dev *device.Device) weights {
	return weights{
		dev: dev, loads: map[*Loaded]bool{},
		matrices: map[*ops.Matrix]*weight{}, vectors: map[*float32]*vector{}, sets: map[*ops.Matrix]*experts{},
	}
}

// free frees everything, also what was loaded by Load and not freed.
func (w *weights) free() {
	for l := range w.loads {
		l.drop()
	}
}

// Supports says whether the device multiplies weights in format f.
func (e *Executor) Supports(f format.Format) bool {
	_, ok := layout.For(f, 1, f.Info().Block)
	return ok
}

// Bytes is the device memory of a matrix, 0 if its format has no device form. A vector takes 4 bytes a value, rounded up to 256.
func (e *Executor) Bytes(m *ops.Matrix) int64 {
	l, _ := layout.For(m.Format, m.Rows, m.Cols)
	return aligned(l.Bytes)
}

// Loaded are weights on the device that were loaded together.
type Loaded struct {
	e        *Executor
	matrices []*ops.Matrix
	vectors  []*float32
	sets     []*ops.Matrix
	buffers  []*device.Buffer
}

// Free gives the memory back. The executor must be idle; ops that meet the weights again load them again.
func (l *Loaded) Free() {
	l.e.dropFrames()
	l.drop()
}

func (l *Loaded) drop() {
	for _, m := range l.matrices {
		delete(l.e.weights.matrices, m)
	}
	for _, v := range l.vectors {
		delete(l.e.weights.vectors, v)
	}
	for _, s := range l.sets {
		delete(l.e.weights.sets, s)
	}
	for _, b := range l.buffers {
		b.Free()
	}
	delete(l.e.weights.loads, l)
	*l = Loaded{e: l.e}
}

// Load puts a layer's weights on the device: all of them, or none and an error. progress, if not nil, is called now and then with the bytes
// uploaded since its last call, by one goroutine at a time. What is on the device already is not loaded again, nor freed with the result.
func (e *Executor) Load(ctx context.Context, name string, ms []*ops.Matrix, vs []*ops.Vector, set ops.ExpertSet,
	progress func(int64),
) (*Loaded, error) {
	if e.err != nil {
		return nil, e.err
	}
	l := &Loaded{e: e}
	u := upload{ctx: ctx, loaded: l, name: name, progress: progress}
	err := u.add(ms, vs, set)
	if err == nil {
		err = u.run()
	}
	if err != nil {
		l.drop()
		return nil, &DeviceError{e.Name(), "loading " + name, err}
	}
	e.weights.loads[l] = true
	return l, nil
}

// upload is one Load under way.
type upload struct {
	ctx      context.Context
	loaded   *Loaded
	name     string
	progress func(int64)
	jobs     []job
}

// job is some rows of a matrix to be packed and written.
type job struct {
	m        *ops.Matrix
	w        *weight
	from, to int
}

// jobBytes is about how much of a matrix a job packs.
const jobBytes = 1 << 20

func (u *upload) add(ms []*ops.Matrix, vs []*ops.Vector, set ops.ExpertSet) error {
	w := &u.loaded.e.weights
	for _, m := range ms {
		if m == nil || w.matrices[m] != nil {
			continue
		}
		buf, l, err := u.matrix(m)
		if err != nil {
			return err
		}
		w.matrices[m] = &weight{of: m, integer: integer(m.Format), layout: l, buf: buf}
		u.loaded.matrices = append(u.loaded.matrices, m)
		u.pack(m, w.matrices[m])
	}
	for _, v := range vs {
		if v != nil {
			if err := u.vector(v.Name, v.Data); err != nil {
				return err
			}
		}
	}
	if set == nil {
		return nil
	}
	return u.experts(set)
}

func (u *upload) alloc(use device.Use, bytes int64) (*device.Buffer, error) {
	buf, err := u.loaded.e.dev.Alloc(use, bytes, u.name)
	if err == nil {
		u.loaded.buffers = append(u.loaded.buffers, buf)
	}
	return buf, err
}

func (u *upload) matrix(m *ops.Matrix) (*device.Buffer, layout.Layout, error) {
	l, err := layoutOf(m)
	if err != nil {
		return nil, l, err
	}
	buf, err := u.alloc(device.Weights, aligned(l.Bytes))
	return buf, l, err
}

func layoutOf(m *ops.Matrix) (layout.Layout, error) {
	l, ok := layout.For(m.Format, m.Rows, m.Cols)
	if !ok {
		return l, fmt.Errorf("%s [%d, %d]: %s has no form on the device; leave its layer on the CPU (--gpu-layers)",
			m.Name, m.Rows, m.Cols, m.Format)
	}
	return l, nil
}

func (u *upload) vector(name string, data []float32) error {
	w := &u.loaded.e.weights
	if len(data) == 0 || w.vectors[&data[0]] != nil {
		return nil
	}
	buf, err := u.alloc(device.DeviceOnly, aligned(4*int64(len(data))))
	if err == nil {
		err = w.dev.Write(buf, 0, octets(data))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	w.vectors[&data[0]] = &vector{&data[0], buf}
	u.loaded.vectors = append(u.loaded.vectors, &data[0])
	return nil
}

// experts allocates an expert at a time, and one table for each group of matrices of a format.
func (u *upload) experts(set ops.ExpertSet) error {
	w := &u.loaded.e.weights
	key, _, down := set.Expert(0)
	if w.sets[key] != nil {
		return nil
	}
	x := &experts{of: key, n: set.Len(), hidden: down.Rows, inter: key.Rows}
	var tables [3][][]uint64 // by kind and group
	for i := range x.n {
		var l [3]layout.Layout
		var of [3]*ops.Matrix
		of[0], of[1], of[2] = set.Expert(i)
		bytes := int64(0)
		for k, m := range of {
			var err error
			if l[k], err = layoutOf(m); err != nil {
				return err
			}
			if out, in := x.shape(k); m.Rows != out || m.Cols != in {
				return fmt.Errorf("%s is [%d, %d], other experts' [%d, %d]", m.Name, m.Rows, m.Cols, out, in)
			}
			bytes += aligned(l[k].Bytes)
		}
		buf, err := u.alloc(device.Weights, bytes)
		if err != nil {
			return err
		}
		off := int64(0)
		for k, m := range of {
			at := &weight{of: m, integer: integer(m.Format), layout: l[k], buf: buf, off: off}
			off += aligned(l[k].Bytes)
			u.pack(m, at)
			g := slices.IndexFunc(x.groups[k], func(g group) bool { return g.layout == l[k] })
			if g < 0 {
				g = len(x.groups[k])
				x.groups[k] = append(x.groups[k], group{layout: l[k]})
				tables[k] = append(tables[k], make([]uint64, 3*x.n))
			}
			tables[k][g][3*i+k] = at.at()
		}
	}
	if err := u.tables(x, tables); err != nil {
		return err
	}
	x.input = x.wants(gate, up)
	w.sets[key] = x
	u.loaded.sets = append(u.loaded.sets, key)
	return nil
}

// shape is that of the matrices of a kind: 0 gate, 1 up, 2 down.
func (s *experts) shape(kind int) (out, in int) {
	if kind == 2 {
		return s.hidden, s.inter
	}
	return s.inter, s.hidden
}

// tables writes the groups' tables; a uniform set has one for all.
func (u *upload) tables(x *experts, tables [3][][]uint64) error {
	var all []uint64
	if x.uniform() {
		all = make([]uint64, 3*x.n)
		for k := range tables {
			for i, at := range tables[k][0] {
				all[i] |= at
			}
		}
	} else {
		all = slices.Concat(slices.Concat(tables[:]...)...)
	}
	buf, err := u.alloc(device.DeviceOnly, aligned(8*int64(len(all))))
	if err != nil {
		return err
	}
	at := buf.Addr
	for k := range x.groups {
		for g := range x.groups[k] {
			x.groups[k][g].table = at
			if !x.uniform() {
				at += 24 * uint64(x.n)
			}
		}
	}
	return u.loaded.e.dev.Write(buf, 0, octets(all))
}

// pack plans the upload of a matrix in pieces.
func (u *upload) pack(m *ops.Matrix, w *weight) {
	step := max(1, jobBytes/int(w.layout.QStride+w.layout.SStride))
	for r := 0; r < m.Rows; r += step {
		u.jobs = append(u.jobs, job{m, w, r, min(r+step, m.Rows)})
	}
}

// run does the jobs with several goroutines: packing costs more than the copy.
func (u *upload) run() error {
	var (
		mu   sync.Mutex
		next int
		errs error
		wg   sync.WaitGroup
	)
	take := func(done int64) (j job, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if done > 0 && u.progress != nil {
			u.progress(done)
		}
		if errs == nil {
			errs = u.ctx.Err()
		}
		if errs != nil || next == len(u.jobs) {
			return job{}, false
		}
		next++
		return u.jobs[next-1], true
	}
	for range min(runtime.GOMAXPROCS(0), len(u.jobs)) {
		wg.Go(func() {
			debug.SetPanicOnFault(true) // reading a mapped file that was truncated is a panic
			var buf []byte
			done := int64(0)
			for {
				j, ok := take(done)
				if !ok {
					return
				}
				var err error
				if buf, done, err = j.do(u.loaded.e.dev, buf); err != nil {
					mu.Lock()
					errs = errors.Join(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return errs
}

// do packs into buf, which it returns grown, and writes.
func (j job) do(dev *device.Device, buf []byte) (_ []byte, done int64, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // runtime's memory fault
			err = fmt.Errorf("%s: its file was truncated, or could not be read; check the disk and the file", j.m.Name)
		default:
			panic(p)
		}
	}()
	l, n := j.w.layout, int64(j.to-j.from)
	q, s := n*l.QStride, n*l.SStride
	buf = slices.Grow(buf[:0], int(q+s))[:q+s]
	l.PackRows(buf[:q], buf[q:], j.m.Data[j.from*j.m.RowBytes:j.to*j.m.RowBytes], int(n))
	err = dev.Write(j.w.buf, j.w.off+int64(j.from)*l.QStride, buf[:q])
	if err == nil && s > 0 {
		err = dev.Write(j.w.buf, j.w.off+l.SOffset+int64(j.from)*l.SStride, buf[q:])
	}
	if err != nil {
		return buf, 0, fmt.Errorf("%s: %w", j.m.Name, err)
	}
	return buf, q + s, nil
}

// load puts on the device what an op met there without.
func (e *Executor) load(name string, ms []*ops.Matrix, vs []*ops.Vector, set ops.ExpertSet) {
	e.ok()
	if _, err := e.Load(context.Background(), name, ms, vs, set, nil); err != nil {
		e.fail("loading "+name, err)
	}
}

func (e *Executor) matrix(m *ops.Matrix) *weight {
	if n := e.weighted(); n != nil && n.w != nil && n.w.of == m {
		return n.w
	}
	if e.weights.matrices[m] == nil {
		e.load(m.Name, []*ops.Matrix{m}, nil, nil)
	}
	return e.weights.matrices[m]
}

func (e *Executor) vector(v *ops.Vector) *vector {
	if n := e.weighted(); n != nil && n.vec != nil && n.vec.of == &v.Data[0] {
		return n.vec
	}
	if e.weights.vectors[&v.Data[0]] == nil {
		e.load(v.Name, nil, []*ops.Vector{v}, nil)
	}
	return e.weights.vectors[&v.Data[0]]
}

func (e *Executor) experts(set ops.ExpertSet) *experts {
	key, _, _ := set.Expert(0)
	if n := e.weighted(); n != nil && n.set != nil && n.set.of == key {
		return n.set
	}
	if e.weights.sets[key] == nil {
		e.load(fmt.Sprintf("the experts of layer %d", set.Layer()), nil, nil, set)
	}
	return e.weights.sets[key]
}
