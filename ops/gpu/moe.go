package gpu

import (
	"slices"

	"github.com/coli-moe/coli/shaders"
)

// The kinds of matrices of an expert, as kernels number them.
const (
	gate = iota
	up
	down
)

// planned are the heights of tiles that there is room for plans of.
var planned = [3]int{16, 32, 64}

// workspace is where the parts of a MoE step lie behind its scratch address. A pair is a row and one of its experts.
type workspace struct {
	h     int64                           // float32 [pairs, inter]: act(gate)·up
	u     int64                           // float32 [pairs, inter]: up, of a mixed set
	hq    int64                           // the integer form of h
	slots int64                           // float32 [pairs, hidden]: each pair's output
	plans [3]struct{ tiles, pairs int64 } // of the tiled form
	size  int64
}

func (s *experts) workspace(rows, topK int) (w workspace) {
	pairs := int64(rows) * int64(topK)
	take := func(n int64) int64 {
		at := w.size
		w.size += aligned(n)
		return at
	}
	w.h = take(4 * pairs * int64(s.inter))
	if !s.uniform() {
		w.u = take(4 * pairs * int64(s.inter))
	}
	w.hq = take(quantBytes(int(pairs), s.inter))
	w.slots = take(4 * pairs * int64(s.hidden))
	if rows >= gemvRows {
		for k, tile := range planned {
			w.plans[k].tiles = take(16 * int64(shaders.GroupTiles(int(pairs), s.n, tile)))
			w.plans[k].pairs = take(4 * pairs)
		}
	}
	return w
}

// moe is a MoE step being lowered.
type moe struct {
	*lowering
	n            *node
	unit         unit
	rows, topK   int
	h, u, y, dst operand // [pairs, inter], [pairs, inter], [pairs, hidden], [rows, hidden]
	plans        [3]plan // those made
	ids, weights span
}

// plan is where a plan is.
type plan struct{ tiles, pairs span }

func (l *lowering) experts(x unit) {
	n := x.node
	rows, topK := int(n.x.rows), int(n.route.topK)
	w, pairs := n.set.workspace(rows, topK), int32(rows*topK)
	m := moe{
		lowering: l, n: n, unit: x, rows: rows, topK: topK, dst: n.dst,
		h:   operand{at: n.scratch + uint64(w.h), q: n.scratch + uint64(w.hq), rows: pairs, cols: int32(n.set.inter)},
		u:   operand{at: n.scratch + uint64(w.u), rows: pairs, cols: int32(n.set.inter)},
		y:   operand{at: n.scratch + uint64(w.slots), rows: pairs, cols: int32(n.set.hidden)},
		ids: n.route.span(n.route.ids), weights: n.route.span(n.route.weights),
	}
	if x.add != nil {
		m.dst = x.add.dst
	}
	switch {
	case rows < gemvRows && n.set.uniform():
		m.gateUp()
		m.down()
		return
	case rows < gemvRows:
		m.each(gate, n.x, m.h)
		m.each(up, n.x, m.u)
		m.glu()
		m.each(down, m.h, m.y)
	default:
		if n.set.uniform() {
			m.tiled(gate, n.set.groups[gate][0], n.x, m.h, true)
			if n.set.wants(down) {
				l.quantize("experts quantize", m.h, operand{}, shaders.ActNone)
			}
		} else {
			for _, g := range n.set.groups[gate] {
				m.tiled(gate, g, n.x, m.h, false)
			}
			for _, g := range n.set.groups[up] {
				m.tiled(up, g, n.x, m.u, false)
			}
			m.glu()
		}
		for _, g := range n.set.groups[down] {
			m.tiled(down, g, m.h, m.y, false)
		}
	}
	m.sum()
}

// flops is the work of the pairs of a group, if all pairs are of it.
func (m *moe) flops(g group, matrices int) float64 {
	return 2 * float64(matrices) * float64(m.rows) * float64(m.topK) * float64(g.layout.Rows) * float64(g.layout.Cols)
}

// table is the memory of a group's addresses.
func (m *moe) table(g group) span { return at(g.table, 24*int64(m.n.set.n)) }

// gateUp computes h of every pair, in the form that the down matrices read.
func (m *moe) gateUp() {
	g := m.n.set.groups[gate][0]
	x, xd, in := m.n.x.input(g.layout.Format)
	p := shaders.GateUpPush{
		Table: g.table, IDs: m.n.route.ids, X: x, XD: xd,
		Pairs: uint32(m.h.rows), Experts: uint32(m.n.set.n), TopK: uint32(m.topK), Act: activation(m.n.n[0]),
	}
	p.SetMatrix(g.layout)
	var out span
	if m.n.set.wants(down) {
		p.YQ, p.YD, out = m.h.q, m.h.scales(), m.h.q8()
	} else {
		p.Y, out = m.h.at, m.h.f32()
	}
	emit(m.lowering, shaders.GateUpLaunch(p, g.layout.Format, m.dot, m.subgroup), p, "experts gate_up", m.flops(g, 2),
		[]span{in, m.ids, m.table(g)}, []span{out})
}

// down multiplies h and sums the ranks; behind that, the norm.
func (m *moe) down() {
	g := m.n.set.groups[down][0]
	x, xd, in := m.h.input(g.layout.Format)
	tail, reads, writes := m.unit.tail()
	p := shaders.DownPush{
		Table: g.table, IDs: m.n.route.ids, Weights: m.n.route.weights, X: x, XD: xd, Y: m.dst.at,
		Rows: uint32(m.rows), Experts: uint32(m.n.set.n), TopK: uint32(m.topK), Add: m.adds(1), TailNorm: tail,
	}
	p.SetMatrix(g.layout)
	emit(m.lowering, shaders.DownLaunch(p, g.layout.Format, m.dot, m.subgroup), p, "experts down", m.flops(g, 1),
		append(reads, in, m.ids, m.weights, m.table(g), m.adding()), append(writes, m.dst.f32()))
}

// adds is flag if the sum joins what dst holds.
func (m *moe) adds(flag uint32) uint32 {
	if m.unit.add == nil {
		return 0
	}
	return flag
}

func (m *moe) adding() span {
	if m.unit.add == nil {
		return span{}
	}
	return m.dst.f32()
}

// each multiplies every pair's row with its expert's matrix of a kind, a group of formats after the other: for few rows of a mixed set.
func (m *moe) each(kind uint32, x, y operand) {
	for _, g := range m.n.set.groups[kind] {
		src, xd, in := x.input(g.layout.Format)
		p := shaders.ExpertPush{
			Table: g.table, IDs: m.n.route.ids, X: src, XD: xd, Y: y.at, Pairs: uint32(y.rows), Experts: uint32(m.n.set.n), Matrix: kind,
			Divide: uint32(y.rows / x.rows),
		}
		p.SetMatrix(g.layout)
		emit(m.lowering, shaders.ExpertLaunch(p, g.layout.Format, m.dot, m.subgroup), p, "experts", m.flops(g, 1),
			[]span{in, m.ids, m.table(g)}, []span{y.f32()})
	}
}

// glu makes h of gate and up, and its integer form where a down matrix reads it.
func (m *moe) glu() {
	m.elementwise("experts glu", shaders.OpGLU, m.h, m.h, m.u, 0)
	if m.n.set.wants(down) {
		m.quantize("experts quantize", m.h, operand{}, shaders.ActNone)
	}
}

// plan sorts the pairs by expert, once for each height of tiles, and returns where the tiles and the pairs are.
func (m *moe) plan(tile int) (tiles, pairs span) {
	k := slices.Index(planned[:], tile)
	if plan := &m.plans[k]; plan.tiles.lo != 0 {
		return plan.tiles, plan.pairs
	}
	w, n := m.n.set.workspace(m.rows, m.topK).plans[k], m.rows*m.topK
	tiles = at(m.n.scratch+uint64(w.tiles), 16*int64(shaders.GroupTiles(n, m.n.set.n, tile)))
	pairs = at(m.n.scratch+uint64(w.pairs), 4*int64(n))
	m.plans[k] = plan{tiles, pairs}
	p := shaders.GroupPush{
		IDs: m.n.route.ids, Tiles: tiles.lo, Pairs: pairs.lo, Count: uint32(n), Experts: uint32(m.n.set.n), TileRows: uint32(tile),
	}
	emit(m.lowering, shaders.GroupLaunch(p), p, "experts plan", 0, []span{m.ids}, []span{tiles, pairs})
	return tiles, pairs
}

// tiled multiplies the pairs of a group's experts; gated, with gate and up at once.
func (m *moe) tiled(kind uint32, g group, x, y operand, gated bool) {
	s := shaders.GEMMSpec{Format: g.layout.Format, Experts: m.n.set.n}
	label, matrices := "experts down", 1
	switch {
	case gated:
		label, matrices, s.Act = "experts gate_up", 2, activation(m.n.n[0])
	case kind != down:
		label = "experts"
	}
	s = s.Tiled(m.form(s.Format), m.rows*m.topK/m.n.set.n)
	tiles, pairs := m.plan(s.TileRows)
	src, xd, in := x.input(s.Format)
	p := shaders.GEMMPush{
		W: g.table, X: src, XD: xd, Y: y.at, Tiles: tiles.lo, Pairs: pairs.lo,
		Rows: uint32(y.rows), Matrix: kind, Divide: uint32(y.rows / x.rows),
	}
	p.SetMatrix(g.layout)
	m.gemm(p, s, label, m.flops(g, matrices), []span{in, tiles, pairs, m.table(g)}, []span{y.f32()})
}

// sum adds each row's pairs in order of rank.
func (m *moe) sum() {
	p := shaders.MoESumPush{
		Slots: m.y.at, Weights: m.n.route.weights, Y: m.dst.at, Rows: uint32(m.rows), Cols: uint32(m.dst.cols), TopK: uint32(m.topK),
		Flags: m.adds(shaders.MoESumAdd),
	}
	emit(m.lowering, shaders.MoESumLaunch(p), p, "experts sum", 0, []span{m.y.f32(), m.weights, m.adding()}, []span{m.dst.f32()})
}

// activation is an ops.Activation as kernels number it.
func activation(a uint32) uint32 { return a + 1 }
