package gpu

import (
	"cmp"
	"fmt"
	"math"

	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/shaders"
)

// Upload copies host rows to the device.
func (e *Executor) Upload(name string, layer, rows, cols int, data []float32) *ops.Tensor {
	// A stream handed over by another executor lives as long as one made outside the layers.
	t := e.New(name, -1, rows, cols)
	t.Layer = layer
	src := e.from(&e.inputs, 4*int64(len(data)))
	e.inputs.write(src, octets(data))
	e.add(&node{op: opUpload, dst: e.write(t).operand, host: src.at(), layer: int32(layer)})
	return t
}

// hosted copies bytes to memory that the device reads.
func (e *Executor) hosted(b []byte) piece {
	p := e.from(&e.params, int64(len(b)))
	e.params.write(p, b)
	return p
}

// Download runs what was recorded and returns the values of t. They are valid until Reset.
func (e *Executor) Download(t *ops.Tensor) []float32 {
	x := e.aux(t)
	if x.host == nil {
		e.read(t)
		dst := e.from(&e.stage, 4*int64(t.Rows)*int64(t.Cols))
		e.add(&node{op: opDownload, x: x.operand, host: dst.at(), layer: int32(t.Layer)})
		e.flush()
		x.host = values[float32](dst.bytes())
	}
	return x.host
}

// ArgMax runs what was recorded and returns the column of the highest value of each row of t, the lowest of several; -1 where a value of
// the row is not finite. The result is valid until Reset.
func (e *Executor) ArgMax(t *ops.Tensor) []int32 {
	x := e.read(t)
	scratch, _ := e.take(-1, shaders.ArgMaxScratch(t.Rows, t.Cols))
	dst := e.from(&e.stage, 4*int64(t.Rows))
	e.add(&node{op: opArgMax, x: x.operand, host: dst.at(), scratch: scratch.at(), count: e.counters(4 * int64(t.Rows)), layer: int32(t.Layer)})
	e.flush()
	return values[int32](dst.bytes())
}

// Flush runs what was recorded. The rows of the caches are on their way to the host when it returns: whoever reads them there calls Finish.
func (e *Executor) Flush() (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *ops.Failure:
			err = p.Err
		default:
			panic(p)
		}
	}()
	e.flush()
	return nil
}

// Finish runs what was recorded and waits until the host has the rows of the caches.
func (e *Executor) Finish() error {
	if err := e.Flush(); err != nil {
		return err
	}
	if err := e.mirror.Settle(); err != nil {
		e.err = &DeviceError{e.Name(), "rows of the KV cache", err}
	}
	return e.err
}

// RMSNorm normalises rows.
func (e *Executor) RMSNorm(dst, x *ops.Tensor, p ops.Norm) {
	seg := p.Segment
	if seg == 0 {
		seg = x.Cols
	}
	check(dst.Rows == x.Rows && dst.Cols == x.Cols && x.Cols%seg == 0 && len(p.Weight.Data) == seg, "RMSNorm", dst, x)
	n := node{
		op: opNorm, x: e.read(x).operand, vec: e.vector(p.Weight), layer: int32(dst.Layer), n: [7]uint32{uint32(seg), math.Float32bits(p.Eps)},
	}
	if x.Rows < gemvRows {
		n.count = e.counters(4 * int64(x.Rows))
	}
	n.dst = e.write(dst).operand
	e.add(&n)
}

// MatMul multiplies x with every projection's matrix.
func (e *Executor) MatMul(x *ops.Tensor, out ...ops.Projection) {
	in := e.read(x)
	for _, p := range out {
		check(p.W.Cols == x.Cols && p.Dst.Rows == x.Rows && p.Dst.Cols == p.W.Rows && p.Dst != x, "MatMul", p.Dst, x)
		check(p.Bias == nil || len(p.Bias.Data) == p.W.Rows, "a bias", p.Dst, x)
		w := e.matrix(p.W)
		if w.integer {
			e.quantize(in)
		}
		n := node{op: opMatMul, x: in.operand, w: w, layer: int32(p.Dst.Layer), dst: e.write(p.Dst).operand}
		if p.Bias != nil {
			n.vec = e.vector(p.Bias)
		}
		e.add(&n)
	}
}

// quantize sees to it that the integer form of x's values is made, once for all readers.
func (e *Executor) quantize(x *tensor) {
	if x.quant {
		return
	}
	if x.q == 0 {
		p, _ := e.take(int(x.layer), quantBytes(int(x.rows), int(x.cols)))
		x.q = p.at()
	}
	x.quant = true
	e.add(&node{op: opQuantize, x: x.operand, layer: x.layer})
}

// blocks is how many blocks of the integer form cols columns have.
func blocks(cols int) int { return (cols + 31) / 32 }

// scalesAt is where the scales of an integer form begin, behind its values.
func scalesAt(rows, cols int) int64 { return aligned(int64(rows) * 32 * int64(blocks(cols))) }

// quantBytes is the size of an integer form.
func quantBytes(rows, cols int) int64 {
	return scalesAt(rows, cols) + 8*int64(rows)*int64(blocks(cols))
}

// Clamp limits values.
func (e *Executor) Clamp(x *ops.Tensor, limit float32) {
	e.read(x)
	e.add(&node{op: opClamp, dst: e.write(x).operand, n: [7]uint32{1: math.Float32bits(limit)}, layer: int32(x.Layer)})
}

// RoPE rotates heads in place.
func (e *Executor) RoPE(x *ops.Tensor, places []ops.Place, r *ops.Rope) {
	check(x.Cols%r.HeadDim == 0 && len(places) == x.Rows, "RoPE", x, x)
	e.read(x)
	at := e.place(places)
	table := e.rope(r, e.places.end)
	e.add(&node{
		op: opRope, dst: e.write(x).operand, places: at, host: table, layer: int32(x.Layer), n: [7]uint32{uint32(r.HeadDim), uint32(r.Dim)},
	})
}

// StoreKV writes key and value rows to their conversations' copies on the device, and to the host with the frame.
func (e *Executor) StoreKV(kv []*ops.KV, k, v *ops.Tensor, places []ops.Place) {
	check(k.Rows == len(places) && v.Rows == len(places), "StoreKV", k, v)
	n := node{op: opStore, x: e.read(k).operand, y: e.read(v).operand, places: e.place(places), layer: int32(k.Layer)}
	table := e.table(kv, k.Layer)
	rows := &e.rows[e.slot]
	keys, vals := e.from(rows, 4*int64(k.Rows)*int64(k.Cols)), e.from(rows, 4*int64(v.Rows)*int64(v.Cols))
	table.store(places, values[float32](keys.bytes()), values[float32](vals.bytes()))
	n.table = table.at
	e.add(&n)
	e.out(n.places, k.Rows, shaders.KVPiece{From: table.at, To: keys.at(), Width: uint32(k.Cols), Which: shaders.KVPieceK})
	e.out(n.places, v.Rows, shaders.KVPiece{From: table.at, To: vals.at(), Width: uint32(v.Cols), Which: shaders.KVPieceV})
	if k.Rows >= gemvRows {
		e.copyOut() // while the device is at the layer
	}
}

// Attention computes causal attention of each row over its conversation's cache.
func (e *Executor) Attention(dst, q *ops.Tensor, kv []*ops.KV, places []ops.Place, p ops.Attention) {
	check(q.Cols == p.Heads*p.HeadDim && dst.Cols == q.Cols && dst.Rows == q.Rows && len(places) == q.Rows && dst != q, "Attention", dst, q)
	if !shaders.AttentionFits(p.HeadDim) {
		panic(fmt.Sprintf("gpu: attention with heads of %d values", p.HeadDim))
	}
	n := node{op: opAttend, x: e.read(q).operand, places: e.place(places), layer: int32(dst.Layer)}
	table := e.table(kv, dst.Layer)
	table.read(places)
	n.table = table.at
	n.n = [7]uint32{
		uint32(p.Heads), uint32(p.KVHeads), uint32(p.HeadDim), math.Float32bits(p.Scale), uint32(kv[0].Spec.KWidth), uint32(kv[0].Spec.VWidth),
	}
	if q.Rows < gemvRows {
		splits := e.core.splits(p)
		scratch, _ := e.take(int(e.aux(dst).layer), shaders.AttentionScratch(q.Rows, p.Heads, p.HeadDim, splits))
		n.scratch, n.count = scratch.at(), e.counters(shaders.AttentionCounters(q.Rows, p.Heads))
	} else {
		n.host, n.tiles = e.tiles()
	}
	n.dst = e.write(dst).operand
	e.add(&n)
}

// Gather copies rows.
func (e *Executor) Gather(name string, x *ops.Tensor, rows []int) *ops.Tensor {
	in := e.read(x).operand
	t := e.New(name, -1, len(rows), x.Cols)
	t.Layer = x.Layer
	e.index = e.index[:0]
	for _, r := range rows {
		e.index = append(e.index, int32(r))
	}
	index := e.hosted(octets(e.index))
	e.add(&node{op: opGather, x: in, dst: e.write(t).operand, host: index.at(), layer: int32(x.Layer)})
	return t
}

// Add adds x to dst.
func (e *Executor) Add(dst, x *ops.Tensor) {
	check(dst.Rows == x.Rows && dst.Cols == x.Cols, "Add", dst, x)
	e.read(dst)
	n := node{op: opAdd, x: e.read(x).operand, layer: int32(dst.Layer)}
	n.dst = e.write(dst).operand
	e.add(&n)
}

// GLU computes the gated unit.
func (e *Executor) GLU(dst, gate, up *ops.Tensor, act ops.Activation) {
	check(dst.Rows == gate.Rows && dst.Cols == gate.Cols && up.Cols == gate.Cols && up.Rows == gate.Rows, "GLU", dst, gate)
	known(act)
	n := node{op: opGLU, n: [7]uint32{uint32(act)}, x: e.read(gate).operand, y: e.read(up).operand, layer: int32(dst.Layer)}
	n.dst = e.write(dst).operand
	e.add(&n)
}

func known(act ops.Activation) {
	if act != ops.SiLU {
		panic(fmt.Sprintf("gpu: unknown activation %d", act))
	}
}

// Route chooses experts on the device.
func (e *Executor) Route(logits *ops.Tensor, p router.Params) *ops.Routes {
	if err := p.Check(logits.Cols); err != nil || logits.Cols > shaders.MaxExperts {
		panic(fmt.Sprintf("gpu: routing to %d experts: %v", logits.Cols, err))
	}
	x := e.read(logits)
	pairs := int64(logits.Rows) * int64(p.TopK)
	if e.routed == len(e.routes) {
		e.routes = append(e.routes, &ops.Routes{Aux: new(chosen)})
	}
	r := e.routes[e.routed]
	e.routed++
	r.Rows, r.TopK = logits.Rows, p.TopK
	ids, _ := e.take(-1, 4*pairs)
	weights, _ := e.take(-1, 4*pairs)
	c := r.Aux.(*chosen)
	*c = chosen{
		route: route{ids: ids.at(), weights: weights.at(), rows: int32(logits.Rows), topK: int32(p.TopK)},
		layer: logits.Layer, experts: logits.Cols,
	}
	n := node{
		op: opRoute, x: x.operand, route: c.route, count: e.counters(4 * int64(r.Rows)), layer: int32(logits.Layer),
		n: [7]uint32{uint32(p.Gating), bit(p.Normalize), math.Float32bits(cmp.Or(p.Scale, 1)), uint32(p.Groups), uint32(p.TopKGroups)},
	}
	if p.Bias != nil {
		n.vec = e.vector(&ops.Vector{Name: "e_score_correction_bias", Data: p.Bias})
	}
	e.add(&n)
	e.choose(c, true)
	return r
}

// chosen is what the executor keeps beside routes.
type chosen struct {
	route
	layer       int
	experts     int // of the layer
	list, index int // the list that brings the ids to the host, and which of its choices they are
}

// Chosen runs what was recorded and returns the ids and weights of routes. They are valid until Reset.
func (e *Executor) Chosen(r *ops.Routes) (ids []int32, weights []float32) {
	c := r.Aux.(*chosen)
	pairs := r.Rows * r.TopK
	dst := e.from(&e.stage, c.idsAt()+4*int64(pairs))
	e.add(&node{op: opCopyRoutes, route: c.route, host: dst.at(), layer: int32(c.layer)})
	e.flush()
	return values[int32](dst.bytes()[c.idsAt():]), values[float32](dst.bytes()[:4*pairs])
}

// Experts computes the routed experts.
func (e *Executor) Experts(dst, x *ops.Tensor, routes *ops.Routes, experts ops.ExpertSet, act ops.Activation) {
	check(dst.Rows == x.Rows && dst.Cols == x.Cols && routes.Rows == x.Rows && dst != x, "Experts", dst, x)
	known(act)
	c := routes.Aux.(*chosen)
	set := e.experts(experts)
	in := e.read(x)
	if set.input {
		e.quantize(in)
	}
	scratch, _ := e.take(int(e.aux(dst).layer), set.workspace(x.Rows, routes.TopK).size)
	if c.list == e.lists {
		e.choices[e.choosing].list[c.index].worked++
	} else {
		e.choose(c, false).worked++ // another list has told whom they concern
	}
	e.add(&node{
		op: opExperts, n: [7]uint32{uint32(act)}, x: in.operand, dst: e.write(dst).operand, set: set, route: c.route, scratch: scratch.at(),
		layer: int32(dst.Layer),
	})
}

// Release frees the device's copies of caches whose conversation is over.
func (e *Executor) Release(kvs ...*ops.KV) error { return e.mirror.Release(kvs...) }

// bit is 1 for true.
func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func check(ok bool, op string, dst, x *ops.Tensor) {
	if !ok {
		panic(fmt.Sprintf("gpu: %s: shapes do not fit: dst %s [%d, %d], x %s [%d, %d]",
			op, dst.Name, dst.Rows, dst.Cols, x.Name, x.Rows, x.Cols))
	}
}
