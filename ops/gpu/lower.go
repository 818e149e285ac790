package gpu

import (
	"fmt"
	"math"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/shaders"
	"github.com/coli-moe/coli/weights/format"
)

// cores is what the choice of kernels depends on.
type cores struct {
	subgroup int
	dot      bool // packed dot products
	coop     bool // cooperative matrices, int8
	half     bool // and float16
	tiled    bool // attention of many rows on those
	units    int  // workgroups that fill the device
	speed    speed
}

// speed is a low estimate of what a device does in a second, for cutting frames.
type speed struct{ flops, bytes float64 }

// watchdog is how long a submission may take by that estimate. Drivers reset a device after 2 to 10 seconds; desktops stutter long before.
const watchdog = 0.3

// tailRows is the most rows whose norm is behind a product of one matrix: a single workgroup takes them one after the other, which for four
// rows was slower than a stage of their own (docs/gpu.md).
const tailRows = 1

// coopSubgroup is the subgroup size of the cooperative kernels.
const coopSubgroup = 32

func coresOf(i device.Info) cores {
	f := i.Features
	c := cores{
		subgroup: i.Subgroup, dot: f.IntegerDot && f.IntegerDotAccelerated,
		units: 64, speed: speed{100e9, 10e9},
	}
	if i.MinSubgroup <= coopSubgroup && coopSubgroup <= i.MaxSubgroup {
		c.coop, c.half = f.CoopS8, f.CoopF16
		c.tiled = c.half && i.SharedMemory >= shaders.AttentionCoopShared
	}
	switch i.Type {
	case device.Discrete:
		c.units, c.speed = 512, speed{2e12, 100e9}
	case device.CPU:
		c.units, c.speed = 8, speed{10e9, 3e9}
	}
	return c
}

// splits is into how many parts the rows' positions are cut in attention.
func (c cores) splits(p ops.Attention) int {
	return shaders.AttentionSplits(p.Heads, p.KVHeads, p.HeadDim, c.units)
}

// command is one dispatch.
type command struct {
	touches
	shaders.Launch
	push     []byte
	subgroup int
	label    string
	cost     float64 // seconds, by the estimate
}

// kvSpace marks spans that stand for the caches of a table: their addresses are not known when a list is compiled, and nothing else
// is where they are.
const kvSpace = 1 << 63

// lowering turns units into commands.
type lowering struct {
	cores
	iota uint64 // address of int32 0, 1, 2, …
	out  []command
	late []int  // which of them only the host waits for
	news []span // what the host gets of what was written
}

// emit adds a dispatch. Its estimate is that of its bytes, with flops on top.
func emit[P any](l *lowering, launch shaders.Launch, push P, label string, flops float64, reads, writes []span) {
	c := command{Launch: launch, push: append([]byte(nil), shaders.Bytes(&push)...), subgroup: l.subgroup, label: label}
	bytes := 0.0
	for _, list := range []struct {
		from []span
		to   *[]span
	}{{reads, &c.reads}, {writes, &c.writes}} {
		for _, s := range list.from {
			if s.hi > s.lo {
				*list.to = append(*list.to, s)
				bytes += float64(s.hi - s.lo)
			}
		}
	}
	c.cost = max(flops/l.speed.flops, bytes/l.speed.bytes)
	l.out = append(l.out, c)
}

func at(addr uint64, size int64) span { return span{addr, addr + uint64(size)} }

// f32 is the span of a tensor's values, q8 that of its integer form.
func (r operand) f32() span { return at(r.at, 4*int64(r.rows)*int64(r.cols)) }
func (r operand) q8() span  { return at(r.q, quantBytes(int(r.rows), int(r.cols))) }

// scales is the address of the integer form's scales.
func (r operand) scales() uint64 { return r.q + uint64(scalesAt(int(r.rows), int(r.cols))) }

// input is x as a matrix of format f reads it.
func (r operand) input(f format.Format) (x, xd uint64, s span) {
	if integer(f) {
		return r.q, r.scales(), r.q8()
	}
	return r.at, 0, r.f32()
}

func (w *weight) span() span { return at(w.at(), w.layout.Bytes) }

func (v *vector) span() span {
	if v == nil {
		return span{}
	}
	return at(v.at(), v.buf.Size)
}

func (n *node) cache() span { return span{kvSpace | n.table, kvSpace | n.table + 1} }

func float(bits uint32) float32 { return math.Float32frombits(bits) }

// unit emits the dispatches of a unit.
func (l *lowering) unit(u unit) {
	n := u.node
	label := n.op.String()
	switch n.op {
	case opUpload:
		l.copy(label, n.dst.at, n.host, n.dst.rows, n.dst.cols, nil, []span{n.dst.f32()})
	case opDownload:
		l.copy(label, n.host, n.x.at, n.x.rows, n.x.cols, []span{n.x.f32()}, nil)
	case opCopyRoutes:
		r := n.route
		l.copy(label, n.host, r.weights, r.rows, r.topK, []span{r.span(r.weights)}, nil)
		l.copy(label, n.host+uint64(r.idsAt()), r.ids, r.rows, r.topK, []span{r.span(r.ids)}, nil)
	case opGather:
		p := shaders.GatherPush{Dst: n.dst.at, Src: n.x.at, Index: n.host, N: uint32(n.dst.rows), Cols: uint32(n.dst.cols)}
		emit(l, shaders.GatherLaunch(p), p, label, 0, []span{n.x.f32()}, []span{n.dst.f32()})
	case opNorm:
		l.norm(u)
	case opQuantize:
		l.quantize(label, n.x, operand{}, shaders.ActNone)
	case opMatMul:
		l.matmul(u)
	case opClamp:
		l.elementwise(label, shaders.OpClamp, n.dst, n.dst, n.dst, float(n.n[1]))
	case opAdd:
		l.elementwise(label, shaders.OpAdd, n.dst, n.dst, n.x, 0)
	case opGLU:
		if u.quantize != nil {
			x := n.x
			x.q = u.quantize.x.q
			l.quantize(label, x, n.y, shaders.ActSiLU)
			return
		}
		l.elementwise(label, shaders.OpGLU, n.dst, n.x, n.y, 0)
	case opRope:
		p := shaders.RopePush{
			Q: n.dst.at, Table: n.host, Places: n.places,
			Rows: uint32(n.dst.rows), QHeads: uint32(n.dst.cols) / n.n[0], HeadDim: n.n[0], Dim: n.n[1],
		}
		emit(l, shaders.RopeLaunch(p), p, label, 0, []span{n.dst.f32()}, []span{n.dst.f32()})
	case opStore:
		l.store(u)
	case opAttend:
		l.attend(u)
	case opRoute:
		l.route(n, nil)
	case opExperts:
		l.experts(u)
	case opArgMax:
		rows, cols := int(n.x.rows), int(n.x.cols)
		p := shaders.ArgMaxPush{X: n.x.at, Out: n.host, Partial: n.scratch, Count: n.count, Rows: uint32(rows), Cols: uint32(cols)}
		scratch, count := at(n.scratch, shaders.ArgMaxScratch(rows, cols)), at(n.count, 4*int64(rows))
		emit(l, shaders.ArgMaxLaunch(p), p, label, 0, []span{n.x.f32(), count}, []span{scratch, count})
	case opOut:
		p := shaders.KVOutPush{Pieces: n.host, Places: n.places, Rows: n.n[0]}
		l.late = append(l.late, len(l.out))
		emit(l, shaders.KVOutLaunch(p, int(n.n[1]), int(n.n[2])), p, label, 0, l.news, nil)
	default:
		panic(fmt.Sprintf("gpu: no kernel for op %d", n.op))
	}
}

// copy copies whole rows, to or from host memory too.
func (l *lowering) copy(label string, dst, src uint64, rows, cols int32, reads, writes []span) {
	p := shaders.GatherPush{Dst: dst, Src: src, Index: l.iota, N: uint32(rows), Cols: uint32(cols)}
	emit(l, shaders.GatherLaunch(p), p, label, 0, reads, writes)
}

func (l *lowering) elementwise(label string, op uint32, dst, a, b operand, x float32) {
	p := shaders.ElementwisePush{Dst: dst.at, A: a.at, B: b.at, N: uint32(dst.rows) * uint32(dst.cols), X: x}
	emit(l, shaders.ElementwiseLaunch(op, p), p, label, 0, []span{a.f32(), b.f32()}, []span{dst.f32()})
}

// quantize makes the integer form at x.q of x, or of act(x)·up.
func (l *lowering) quantize(label string, x, up operand, act uint32) {
	p := shaders.QuantizePush{X: x.at, Up: up.at, XQ: x.q, XD: x.scales(), Rows: uint32(x.rows), Cols: uint32(x.cols)}
	emit(l, shaders.QuantizeLaunch(p, act), p, label, 0, []span{x.f32(), up.f32()}, []span{x.q8()})
}

func (l *lowering) norm(u unit) {
	n := u.node
	p := shaders.NormPush{
		X: n.x.at, W: n.vec.at(), Y: n.dst.at,
		Rows: uint32(n.x.rows), Cols: uint32(n.x.cols), Segment: n.n[0], Eps: float(n.n[1]), Flags: shaders.NormOut,
	}
	writes := []span{n.dst.f32()}
	if u.quantize != nil {
		q := u.quantize.x
		p.XQ, p.XD = q.q, q.scales()
		p.Flags |= shaders.NormQ8
		writes = append(writes, q.q8())
	}
	emit(l, shaders.NormLaunch(p, l.subgroup), p, n.op.String(), 0, []span{n.x.f32(), n.vec.span()}, writes)
}

// tail is the norm behind a product, and what it reads and writes.
func (u unit) tail() (t shaders.TailNorm, reads, writes []span) {
	n := u.norm
	if n == nil {
		return t, nil, nil
	}
	t = shaders.TailNorm{NormW: n.vec.at(), NormY: n.dst.at, Count: n.count, Eps: float(n.n[1])}
	count := at(n.count, 4*int64(n.x.rows))
	reads, writes = []span{n.vec.span(), count}, []span{n.dst.f32(), count}
	if u.quantize != nil {
		q := u.quantize.x
		t.NormQ, t.NormD = q.q, uint32(q.scales()-q.q)
		writes = append(writes, q.q8())
	}
	return t, reads, writes
}

func (l *lowering) matmul(u unit) {
	n, w := u.node, u.w.layout
	if u.route != nil {
		l.route(u.route, n)
		return
	}
	dst, reads := n.dst, []span{n.w.span(), n.vec.span()}
	add := uint32(0)
	if u.add != nil {
		dst, add = u.add.dst, 1
		reads = append(reads, dst.f32())
	}
	x, xd, in := n.x.input(w.Format)
	reads = append(reads, in)
	writes := []span{dst.f32()}
	if u.download != nil {
		dst.at, writes = u.download.host, nil
	}
	rows := int(n.x.rows)
	flops := 2 * float64(rows) * float64(w.Rows) * float64(w.Cols)
	if rows < gemvRows {
		tail, more, normed := u.tail()
		p := shaders.GEMVPush{X: x, XD: xd, Y: dst.at, Bias: n.vec.at(), Rows: uint32(rows), Add: add, TailNorm: tail}
		p.SetMatrix(n.w.at(), w)
		emit(l, shaders.GEMVLaunch(p, w.Format, l.dot, l.subgroup), p, n.op.String(), flops, append(reads, more...), append(writes, normed...))
		return
	}
	p := shaders.GEMMPush{
		W: n.w.at(), X: x, XD: xd, Y: dst.at, Bias: n.vec.at(), Rows: uint32(rows), Flags: add * shaders.GEMMAdd,
	}
	p.SetMatrix(w)
	l.gemm(p, shaders.GEMMSpec{Format: w.Format}.Tiled(l.form(w.Format), rows), n.op.String(), flops, reads, writes)
}

// gemm emits a tiled product.
func (l *lowering) gemm(p shaders.GEMMPush, s shaders.GEMMSpec, label string, flops float64, reads, writes []span) {
	emit(l, shaders.GEMMLaunch(p, s), p, label, flops, reads, writes)
	if s.Form == shaders.GEMMCoop || s.Form == shaders.GEMMHalf {
		l.out[len(l.out)-1].subgroup = coopSubgroup
	}
}

// form is how a matrix of format f is multiplied in tiles.
func (l *lowering) form(f format.Format) shaders.GEMMForm {
	switch {
	case !integer(f) && l.half:
		return shaders.GEMMHalf
	case !integer(f):
		return shaders.GEMMFloat
	case l.coop:
		return shaders.GEMMCoop
	case l.dot:
		return shaders.GEMMDot
	}
	return shaders.GEMMBytes
}

func (l *lowering) store(u unit) {
	n := u.node
	l.news = append(l.news, n.cache())
	if u.post == nil {
		p := shaders.StoreKVPush{
			K: n.x.at, V: n.y.at, Places: n.places, Mirrors: n.table,
			Rows: uint32(n.x.rows), KWidth: uint32(n.x.cols), VWidth: uint32(n.y.cols),
		}
		emit(l, shaders.StoreKVLaunch(p), p, n.op.String(), 0, []span{n.x.f32(), n.y.f32()}, []span{n.cache()})
		return
	}
	q, k := u.post.q, u.post.k
	p := u.post.push(n)
	reads := []span{q.dst.f32(), n.x.f32(), n.y.f32(), q.vec.span(), k.vec.span()}
	if u.attend == nil {
		emit(l, shaders.QKVLaunch(p), p, "qkv_post", 0, reads, []span{q.dst.f32(), n.cache()})
		return
	}
	a, splits, more, writes := l.attention(u.attend, u.quantize)
	push, launch := shaders.AttentionQKVLaunch(p, a, splits)
	emit(l, launch, push, u.attend.op.String(), 0, append(reads, more...), append(writes, n.cache()))
}

// push is what qkv_post.comp gets for the work before the store n.
func (x *post) push(n *node) shaders.QKVPush {
	headDim := x.rope.n[0]
	p := shaders.QKVPush{
		Q: x.q.dst.at, K: n.x.at, V: n.y.at, QW: x.q.vec.at(), KW: x.k.vec.at(), Table: x.rope.host, Places: n.places, Mirrors: n.table,
		Rows: uint32(n.x.rows), Heads: uint32(x.q.dst.cols) / headDim, KVHeads: uint32(n.x.cols) / headDim,
		HeadDim: headDim, Dim: x.rope.n[1], Eps: float(x.q.n[1]), Clamp: float(x.clamp), Flags: shaders.QKVNorm,
	}
	if x.q.n[0] != headDim {
		p.Flags |= shaders.QKVWhole
	}
	return p
}

// attentionPush is what the kernels get for attention over what is given.
func attentionPush(n *node) shaders.AttentionPush {
	return shaders.AttentionPush{
		Q: n.x.at, O: n.dst.at, Mirrors: n.table, Places: n.places, Rows: uint32(n.x.rows), Heads: n.n[0], KVHeads: n.n[1],
		KWidth: n.n[4], VWidth: n.n[5], Scale: float(n.n[3]), Flags: shaders.AttentionOut,
	}
}

// attention is what the kernels for few rows get, and touch besides the queries, with the integer form of the result if that is asked for.
func (l *lowering) attention(n, quantize *node) (p shaders.AttentionPush, splits int, reads, writes []span) {
	p, writes = attentionPush(n), []span{n.dst.f32()}
	if quantize != nil {
		q := quantize.x
		p.XQ, p.XD = q.q, q.scales()
		p.Flags |= shaders.AttentionQ8
		writes = append(writes, q.q8())
	}
	heads, kvHeads, headDim := int(n.n[0]), int(n.n[1]), int(n.n[2])
	splits = l.splits(ops.Attention{Heads: heads, KVHeads: kvHeads, HeadDim: headDim})
	p.Partial, p.Count = n.scratch, n.count
	scratch := at(n.scratch, shaders.AttentionScratch(int(n.x.rows), heads, headDim, splits))
	count := at(n.count, shaders.AttentionCounters(int(n.x.rows), heads))
	return p, splits, []span{n.cache(), count}, append(writes, scratch, count)
}

func (l *lowering) attend(u unit) {
	n := u.node
	headDim := int(n.n[2])
	if n.tiles > 0 {
		p := attentionPush(n)
		p.Tiles = n.host
		launch, coop := shaders.AttentionBlockLaunch, l.tiled && shaders.AttentionCoopFits(headDim)
		if coop {
			launch = shaders.AttentionCoopLaunch
		}
		emit(l, launch(p, headDim, int(n.tiles)), p, n.op.String(), 0, []span{n.x.f32(), n.cache()}, []span{n.dst.f32()})
		if coop {
			l.out[len(l.out)-1].subgroup = coopSubgroup
		}
		return
	}
	p, splits, reads, writes := l.attention(n, u.quantize)
	emit(l, shaders.AttentionLaunch(p, headDim, splits), p, n.op.String(), 0, append(reads, n.x.f32()), writes)
}

func (r route) span(addr uint64) span { return at(addr, 4*int64(r.rows)*int64(r.topK)) }

// route chooses experts; with the product that its logits are, or by logits alone.
func (l *lowering) route(n, product *node) {
	r := n.route
	flags := n.n[1] * shaders.RouteNormalize
	if n.vec != nil {
		flags |= shaders.RouteBias
	}
	chosen := []span{r.span(r.ids), r.span(r.weights)}
	l.news = append(l.news, chosen[0])
	if product == nil {
		p := shaders.RoutePush{
			Logits: n.x.at, Bias: n.vec.at(), IDs: r.ids, Weights: r.weights, Rows: uint32(r.rows), Experts: uint32(n.x.cols),
			TopK: uint32(r.topK), Groups: n.n[3], TopKGroups: n.n[4], Scale: float(n.n[2]), Flags: flags,
		}
		emit(l, shaders.RouteLaunch(p, router.Gating(n.n[0])), p, n.op.String(), 0, []span{n.x.f32(), n.vec.span()}, chosen)
		return
	}
	w := product.w
	p := shaders.RouterPush{
		X: product.x.at, WBias: product.vec.at(), Logits: n.x.at, Count: n.count, Bias: n.vec.at(), IDs: r.ids, Weights: r.weights,
		Rows: uint32(r.rows), TopK: uint32(r.topK), Groups: n.n[3], TopKGroups: n.n[4], Scale: float(n.n[2]), Flags: flags,
	}
	p.SetMatrix(w.at(), w.layout)
	count := at(n.count, 4*int64(r.rows))
	emit(l, shaders.RouterLaunch(p, w.layout.Format, router.Gating(n.n[0])), p, "router", 0,
		[]span{w.span(), product.x.f32(), product.vec.span(), n.vec.span(), count}, append(chosen, n.x.f32(), count))
}

// allow says which fusions there are kernels for.
func (c cores) allow(f fusion, n *node) bool {
	switch f {
	case fuseNormQuantize:
		seg := n.n[0]
		return int32(seg) == n.dst.cols || seg%32 == 0
	case fuseAttendQuantize:
		return n.tiles == 0 && n.n[2]%32 == 0
	case fusePostAttend:
		return n.x.rows == 1 // rows of one conversation would not see each other
	case fuseMatMulNorm:
		return n.x.rows <= tailRows && shaders.TailNormFits(int(n.dst.cols))
	case fuseExpertsNorm:
		return n.x.rows < gemvRows && n.set.uniform() && shaders.TailNormFits(int(n.dst.cols))
	case fuseDownload:
		// What a trace looks at inside a layer is read again there.
		return n.layer < 0 && n.x.rows < gemvRows
	case fuseRouter:
		return n.x.rows < gemvRows && shaders.RouterFits(n.w.layout.Format, n.w.layout.Rows)
	}
	return true
}

// allowPost is what qkv_post.comp takes.
func allowPost(x *post, store *node) bool {
	headDim, dim := x.rope.n[0], x.rope.n[1]
	seg := x.q.n[0]
	perHead := seg == headDim && x.k.n[0] == headDim
	whole := int32(seg) == x.q.dst.cols && int32(x.k.n[0]) == x.k.dst.cols
	return shaders.QKVFits(int(headDim), int(dim)) && (perHead || whole) && store.x.cols == store.y.cols
}

// allowPostAttend is what attention_qkv.comp takes.
func allowPostAttend(u unit, attend *node) bool {
	q, a := u.post.push(u.node), attentionPush(attend)
	return attend.tiles == 0 && attend.n[2] == q.HeadDim && a.Heads == q.Heads && a.KVHeads == q.KVHeads && shaders.AttentionQKVFits(q, a)
}
