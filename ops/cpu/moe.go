package cpu

import (
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/weights/format"
)

// moeScratch is the memory of Experts, kept between steps.
type moeScratch struct {
	count  []int32 // rows routed to each expert
	order  []int32 // pair numbers (row·TopK + rank) sorted by expert
	rowOf  []int32 // the input row of each entry of order
	used   []expertRun
	hidden input // act(gate)·up of each pair, in the order of order
	h, up  []float32
	y      []float32 // down outputs, in the order of order: each pair has its own slot
	slot   []int32   // place of each pair in order
}

// expertRun is one expert with its pairs, order[from:to].
type expertRun struct {
	gate, up, down *ops.Matrix
	from, to       int
}

// Experts groups the pairs by expert, so that an expert's weights are read once for all of its rows, computes every pair into its own
// slot, and adds each row's slots in rank order.
func (e *Executor) Experts(dst, x *ops.Tensor, routes *ops.Routes, experts ops.ExpertSet, act ops.Activation) {
	check(dst.Rows == x.Rows && dst.Cols == x.Cols && routes.Rows == x.Rows, "Experts", dst, x)
	touch(dst)
	m := &e.moe
	m.group(routes, experts)
	pairs := len(m.order)
	if pairs == 0 {
		clear(dst.Data)
		return
	}
	inter := m.used[0].gate.Rows
	m.h, m.up, m.y = sized(m.h, pairs*inter), sized(m.up, pairs*inter), sized(m.y, pairs*dst.Cols)
	e.stats.MatMuls += int64(3 * len(m.used))
	e.stats.Pairs += int64(pairs)
	e.stats.Reads += int64(len(m.used))

	in := e.prepare(x, func(yield func(format.Format)) {
		for _, u := range m.used {
			yield(u.gate.Format)
			yield(u.up.Format)
		}
	})
	perExpert := pairs / len(m.used)
	tile := e.tile(len(m.used)*inter, 2*perExpert*x.Cols)
	e.eachTile(inter, tile, func(u *expertRun, lo, hi int) {
		rows, n := m.rowOf[u.from:u.to], hi-lo
		gate, up := m.h[u.from*inter+lo:], m.up[u.from*inter+lo:]
		e.kernels[u.gate.Format].MatMul(gate, inter, u.gate.Data[lo*u.gate.RowBytes:hi*u.gate.RowBytes], n, &in.Input, rows)
		e.kernels[u.up.Format].MatMul(up, inter, u.up.Data[lo*u.up.RowBytes:hi*u.up.RowBytes], n, &in.Input, rows)
		for r := range rows {
			at := r * inter
			activate(gate[at:at+n], gate[at:at+n], up[at:at+n], act)
		}
	})

	hidden := &m.hidden
	hidden.Set(m.h, pairs, inter)
	integer := false
	for _, u := range m.used {
		integer = e.kernel(u.down.Format).Form == kernels.FormQ8 || integer
	}
	if integer {
		e.forRows(pairs, inter*2, func(_, from, to int) { hidden.Quantize(from, to) })
	}
	all := e.rows(pairs)
	tile = e.tile(len(m.used)*dst.Cols, perExpert*inter)
	e.eachTile(dst.Cols, tile, func(u *expertRun, lo, hi int) {
		e.kernels[u.down.Format].MatMul(m.y[u.from*dst.Cols+lo:], dst.Cols, u.down.Data[lo*u.down.RowBytes:hi*u.down.RowBytes], hi-lo,
			&hidden.Input, all[u.from:u.to])
	})

	m.slot = sized(m.slot, pairs)
	for i, pair := range m.order {
		m.slot[pair] = int32(i)
	}
	e.forRows(dst.Rows, dst.Cols*routes.TopK*2, func(_, from, to int) {
		for r := from; r < to; r++ {
			out := dst.Row(r)
			clear(out)
			for rank := range routes.TopK {
				pair := r*routes.TopK + rank
				at := int(m.slot[pair]) * dst.Cols
				kernels.Axpy(out, routes.Weights[pair], m.y[at:at+dst.Cols])
			}
		}
	})
}

// eachTile splits the rows of every used expert's matrix (n rows each) into tiles of at most tile rows and runs fn on each.
func (e *Executor) eachTile(n, tile int, fn func(u *expertRun, lo, hi int)) {
	tile = min(tile, n)
	per := (n + tile - 1) / tile
	e.team.Run(per*len(e.moe.used), 1, func(_, from, to int) {
		for i := from; i < to; i++ {
			lo := i % per * tile
			fn(&e.moe.used[i/per], lo, min(lo+tile, n))
		}
	})
}

// group sorts the pairs by expert.
func (m *moeScratch) group(routes *ops.Routes, experts ops.ExpertSet) {
	pairs := len(routes.IDs)
	m.count = sized(m.count, experts.Len()+1)
	clear(m.count)
	for _, id := range routes.IDs {
		m.count[id+1]++
	}
	m.used = m.used[:0]
	for id := range experts.Len() {
		from := m.count[id]
		if n := m.count[id+1]; n > 0 {
			gate, up, down := experts.Expert(id)
			m.used = append(m.used, expertRun{gate, up, down, int(from), int(from + n)})
		}
		m.count[id+1] += from
	}
	m.order, m.rowOf = sized(m.order, pairs), sized(m.rowOf, pairs)
	for pair, id := range routes.IDs {
		at := m.count[id]
		m.count[id]++
		m.order[at], m.rowOf[at] = int32(pair), int32(pair/routes.TopK)
	}
}

func sized[T any](x []T, n int) []T {
	if cap(x) < n {
		return make([]T, n)
	}
	return x[:n]
}
