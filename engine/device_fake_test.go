package engine

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/cpu"
	"github.com/coli-moe/coli/ops/gpu"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/weights/format"
)

// fakeDevice is a device that computes with the CPU's executor, so that its bits are the CPU's, and is otherwise as strict as a real one:
// its tensors have no values on the host, it multiplies only with weights that were loaded, its caches' rows come to the host with Finish,
// and rows below a cache's mark are not looked at again. It fails when it is told to.
type fakeDevice struct {
	inner *cpu.Executor
	card  card

	failOp    int // the op that fails, from 1 on; 0: none
	failLoad  int // likewise
	failFlush int
	lacks     format.Format // it has no form for
	poison    bool          // it computes NaN

	routed  func(layer int, ids []int32)
	chosen  []func()
	dead    error
	ops     int
	loads   int
	flushes int
	argmax  int
	closed  int
	held    map[any]bool // *ops.Matrix, *ops.Vector and ops.ExpertSet
	mirrors map[*ops.KV]*ops.KV
	pending []func() // rows that the step has written, as they come to the host
	under   []func() // those of earlier steps that have not arrived
	stats   gpu.Stats
}

// fake returns a device that has room for everything, and sets it as the one that opt opens.
func fake(t *testing.T, opt *Options) *fakeDevice {
	t.Helper()
	f := &fakeDevice{inner: cpu.New(1), held: map[any]bool{}, mirrors: map[*ops.KV]*ops.KV{}, lacks: format.Unknown}
	f.card = card{accelerator: f, name: "fake", free: 1 << 40, fixed: 1000}
	opt.fake = func(m *Model) (*card, error) {
		f.routed = func(layer int, ids []int32) {
			m.system.Count(layer, ids)
		}
		c := f.card
		return &c, nil
	}
	t.Cleanup(func() {
		f.inner.Close()
		if f.closed != 1 || len(f.held) > 0 || len(f.mirrors) > 0 {
			t.Errorf("the device was closed %d times with %d weights and %d caches on it", f.closed, len(f.held), len(f.mirrors))
		}
	})
	return f
}

// step begins an op.
func (f *fakeDevice) step() {
	if f.ops++; f.ops == f.failOp {
		f.dead = fmt.Errorf("op %d: %w", f.ops, device.ErrLost)
	}
	if f.dead != nil {
		f.arrive()
		panic(&ops.Failure{Err: f.dead})
	}
}

func (f *fakeDevice) wrap(t *ops.Tensor) *ops.Tensor {
	return &ops.Tensor{Name: t.Name, Layer: t.Layer, Rows: t.Rows, Cols: t.Cols, Aux: t}
}

func in(t *ops.Tensor) *ops.Tensor { return t.Aux.(*ops.Tensor) }

func (f *fakeDevice) need(x any) {
	if !f.held[x] {
		panic(fmt.Sprintf("%v was not loaded", x))
	}
}

func (f *fakeDevice) Name() string { return "fake" }

func (f *fakeDevice) Reset() {
	f.inner.Reset()
	f.pending, f.chosen = nil, nil
}

func (f *fakeDevice) New(name string, layer, rows, cols int) *ops.Tensor {
	f.step()
	return f.wrap(f.inner.New(name, layer, rows, cols))
}

func (f *fakeDevice) Upload(name string, layer, rows, cols int, data []float32) *ops.Tensor {
	f.step()
	return f.wrap(f.inner.Upload(name, layer, rows, cols, data))
}

func (f *fakeDevice) Download(t *ops.Tensor) []float32 {
	f.step()
	return slices.Clone(in(t).Data)
}

func (f *fakeDevice) RMSNorm(dst, x *ops.Tensor, p ops.Norm) {
	f.step()
	f.need(p.Weight)
	f.inner.RMSNorm(in(dst), in(x), p)
}

func (f *fakeDevice) MatMul(x *ops.Tensor, out ...ops.Projection) {
	f.step()
	inner := slices.Clone(out)
	for i, p := range out {
		f.need(p.W)
		if p.Bias != nil {
			f.need(p.Bias)
		}
		inner[i].Dst = in(p.Dst)
	}
	f.inner.MatMul(in(x), inner...)
	f.stats.MatMuls += int64(len(out))
	if f.poison {
		inner[0].Dst.Data[0] = float32(math.NaN())
	}
}

func (f *fakeDevice) Clamp(x *ops.Tensor, limit float32) {
	f.step()
	f.inner.Clamp(in(x), limit)
}

func (f *fakeDevice) RoPE(x *ops.Tensor, places []ops.Place, r *ops.Rope) {
	f.step()
	f.inner.RoPE(in(x), places, r)
}

// copyOf returns the device's copy of a cache, with the host's rows below first.
func (f *fakeDevice) copyOf(kv *ops.KV, first int) *ops.KV {
	c := f.mirrors[kv]
	if c == nil {
		c = ops.NewKV(kv.Spec)
		f.mirrors[kv], kv.Mirror, kv.Mark = c, c, 0
	}
	for pos := kv.Mark; pos < first; pos++ {
		c.Put(pos, kv.K[pos*kv.Spec.KWidth:][:kv.Spec.KWidth], kv.V[pos*kv.Spec.VWidth:][:kv.Spec.VWidth])
	}
	kv.Mark = first
	return c
}

func (f *fakeDevice) StoreKV(kv []*ops.KV, k, v *ops.Tensor, places []ops.Place) {
	f.step()
	f.copyOf(kv[0], places[0].Pos)
	for r, p := range places {
		host, copied := kv[p.Seq], f.mirrors[kv[p.Seq]]
		copied.Put(p.Pos, in(k).Row(r), in(v).Row(r))
		k, v := slices.Clone(in(k).Row(r)), slices.Clone(in(v).Row(r))
		f.pending = append(f.pending, func() {
			mark := host.Mark
			host.Put(p.Pos, k, v)
			host.Mark = mark
		})
		host.Grow(p.Pos + 1)
		host.Mark = p.Pos + 1
	}
}

func (f *fakeDevice) Attention(dst, q *ops.Tensor, kv []*ops.KV, places []ops.Place, p ops.Attention) {
	f.step()
	f.inner.Attention(in(dst), in(q), []*ops.KV{f.mirrors[kv[0]]}, places, p)
}

func (f *fakeDevice) Gather(name string, x *ops.Tensor, rows []int) *ops.Tensor {
	f.step()
	return f.wrap(f.inner.Gather(name, in(x), rows))
}

func (f *fakeDevice) Add(dst, x *ops.Tensor) {
	f.step()
	f.inner.Add(in(dst), in(x))
}

func (f *fakeDevice) GLU(dst, gate, up *ops.Tensor, act ops.Activation) {
	f.step()
	f.inner.GLU(in(dst), in(gate), in(up), act)
}

func (f *fakeDevice) Route(logits *ops.Tensor, p router.Params) *ops.Routes {
	f.step()
	r := f.inner.Route(in(logits), p)
	layer := logits.Layer
	f.chosen = append(f.chosen, func() { f.routed(layer, r.IDs) })
	return &ops.Routes{Rows: r.Rows, TopK: r.TopK, Aux: r}
}

func (f *fakeDevice) Chosen(r *ops.Routes) (ids []int32, weights []float32) {
	f.step()
	return f.inner.Chosen(r.Aux.(*ops.Routes))
}

func (f *fakeDevice) Experts(dst, x *ops.Tensor, routes *ops.Routes, experts ops.ExpertSet, act ops.Activation) {
	f.step()
	f.need(experts)
	f.inner.Experts(in(dst), in(x), routes.Aux.(*ops.Routes), experts, act)
	f.stats.Pairs += int64(routes.Rows * routes.TopK)
	f.stats.MatMuls += 3 * int64(routes.Rows*routes.TopK)
}

func (f *fakeDevice) Supports(x format.Format) bool { return x != f.lacks }

func (f *fakeDevice) Bytes(m *ops.Matrix) int64 { return int64(m.Rows) * int64(m.Cols) }

type fakeLoaded struct {
	f    *fakeDevice
	keys []any
}

func (l *fakeLoaded) Free() {
	for _, k := range l.keys {
		delete(l.f.held, k)
	}
}

func (f *fakeDevice) Load(ctx context.Context, _ string, ms []*ops.Matrix, vs []*ops.Vector, set ops.ExpertSet, progress func(int64)) (freer, error) {
	if f.loads++; f.loads == f.failLoad {
		return nil, fmt.Errorf("load %d", f.loads)
	}
	l := &fakeLoaded{f: f}
	for _, m := range ms {
		l.keys = append(l.keys, m)
		progress(f.Bytes(m))
	}
	for _, v := range vs {
		l.keys = append(l.keys, v)
	}
	if set != nil {
		l.keys = append(l.keys, set)
	}
	for _, k := range l.keys {
		f.held[k] = true
	}
	return l, ctx.Err()
}

func (f *fakeDevice) Flush() error {
	if f.flushes++; f.flushes == f.failFlush {
		f.dead = fmt.Errorf("flush %d: %w", f.flushes, device.ErrLost)
	}
	if f.dead != nil {
		return f.dead
	}
	for _, do := range f.chosen {
		do()
	}
	f.under = append(f.under, f.pending...)
	f.pending, f.chosen = nil, nil
	return nil
}

func (f *fakeDevice) Finish() error {
	err := f.Flush()
	f.arrive()
	return err
}

// arrive brings the rows that are under way to the host.
func (f *fakeDevice) arrive() {
	for _, do := range f.under {
		do()
	}
	f.under = nil
}

func (f *fakeDevice) Release(kvs ...*ops.KV) error {
	for _, kv := range kvs {
		delete(f.mirrors, kv)
		kv.Mirror, kv.Mark = nil, 0
	}
	return f.dead
}

func (f *fakeDevice) ArgMax(t *ops.Tensor) (ids []int32) {
	f.step()
	f.argmax++
	for r := range t.Rows {
		row, best := in(t).Row(r), 0
		for i, v := range row {
			if v > row[best] {
				best = i
			}
		}
		if !finite(row) {
			best = -1
		}
		ids = append(ids, int32(best))
	}
	return ids
}

// Account has nothing to do: Flush counts.
func (f *fakeDevice) Account() {}

func (f *fakeDevice) Stats() gpu.Stats { return f.stats }

func (f *fakeDevice) Counted() gpu.Stats { return f.stats }

func (f *fakeDevice) Times() []device.Timing { return []device.Timing{{Label: "all", Count: f.ops}} }

func (f *fakeDevice) Close() error {
	f.closed++
	f.arrive()
	clear(f.mirrors)
	return f.dead
}
