package gpu

import (
	"math/bits"
	"slices"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/kvmirror"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/shaders"
)

// placeSlot is the step's places on the device. The ops of a step are given the same places again and again.
type placeSlot struct {
	at    uint64
	list  []ops.Place
	end   int        // the highest position + 1
	pairs [][2]int32 // (position, conversation)
	tiles []shaders.AttentionTile
	tile  uint64 // where tiles are on the device; 0: not made
}

// place returns the address of places.
func (e *Executor) place(places []ops.Place) uint64 {
	s := &e.places
	if s.at != 0 && slices.Equal(places, s.list) {
		return s.at
	}
	*s = placeSlot{list: append(s.list[:0], places...), pairs: s.pairs[:0], tiles: s.tiles[:0]}
	for _, pl := range places {
		s.pairs = append(s.pairs, [2]int32{int32(pl.Pos), int32(pl.Seq)})
		s.end = max(s.end, pl.Pos+1)
	}
	s.at = e.hosted(octets(s.pairs)).at()
	return s.at
}

// tiles returns the address and the number of the tiles that attention takes the places' rows in.
func (e *Executor) tiles() (uint64, uint32) {
	s := &e.places
	if s.tile == 0 {
		s.tiles = shaders.AttentionTiles(s.tiles[:0], s.pairs, 0)
		s.tile = e.hosted(octets(s.tiles)).at()
	}
	return s.tile, uint32(len(s.tiles))
}

// cacheTable is where kernels find the caches of one layer, by conversation, and what a list does with them.
type cacheTable struct {
	at        uint64
	memory    piece // uint64 [conversations, 2]
	needs     []kvmirror.Need
	rows      []kvmirror.Rows // on their way to the host
	addresses [][2]uint64     // what is in memory
}

// table returns the table of the caches, one for all ops of a step that name the same.
func (e *Executor) table(kv []*ops.KV, layer int) *cacheTable {
	for i := e.tabled - 1; i >= 0; i-- {
		t := e.tables[i]
		if t.of(kv) {
			return t
		}
	}
	if e.tabled == len(e.tables) {
		e.tables = append(e.tables, new(cacheTable))
	}
	t := e.tables[e.tabled]
	e.tabled++
	p := e.from(&e.params, 16*int64(len(kv)))
	t.at, t.memory, t.needs, t.rows = p.at(), p, t.needs[:0], t.rows[:0]
	t.addresses = append(t.addresses[:0], make([][2]uint64, len(kv))...)
	for _, c := range kv {
		t.needs = append(t.needs, kvmirror.Need{KV: c, Layer: layer, First: -1})
	}
	return t
}

// of says whether the table is that of these caches.
func (t *cacheTable) of(kv []*ops.KV) bool {
	return slices.EqualFunc(t.needs, kv, func(n kvmirror.Need, c *ops.KV) bool { return n.KV == c })
}

// store notes that the frame writes the places' rows, and where in host memory they come back.
func (t *cacheTable) store(places []ops.Place, k, v []float32) {
	for i := 0; i < len(places); {
		n, p := 1, places[i]
		for i+n < len(places) && places[i+n] == (ops.Place{Pos: p.Pos + n, Seq: p.Seq}) {
			n++
		}
		need := &t.needs[p.Seq]
		if need.First < 0 || p.Pos < need.First {
			need.First = p.Pos
		}
		need.End = max(need.End, p.Pos+n)
		kw, vw := need.KV.Spec.KWidth, need.KV.Spec.VWidth
		t.rows = append(t.rows, kvmirror.Rows{KV: need.KV, From: p.Pos, K: k[i*kw : (i+n)*kw], V: v[i*vw : (i+n)*vw]})
		i += n
	}
}

// read notes that the frame reads the caches up to the places.
func (t *cacheTable) read(places []ops.Place) {
	for _, p := range places {
		need := &t.needs[p.Seq]
		need.End = max(need.End, p.Pos+1)
	}
}

// outward is what one dispatch copies to the host: pieces of so many rows, those of caches at places.
type outward struct {
	places uint64 // 0: none has any
	rows   int
	pieces []shaders.KVPiece
}

// out notes a piece for the host. No kernel of a layer writes there itself: the stage after it would wait for the way to the host's memory.
func (e *Executor) out(places uint64, rows int, p shaders.KVPiece) {
	for i := range e.outs {
		o := &e.outs[i]
		if o.rows == rows && (places == 0 || o.places == 0 || o.places == places) {
			o.places, o.pieces = max(o.places, places), append(o.pieces, p)
			return
		}
	}
	n := len(e.outs)
	e.outs = slices.Grow(e.outs, 1)[:n+1]
	o := &e.outs[n]
	*o = outward{places, rows, append(o.pieces[:0], p)}
}

// copyOut records the copy of what was noted.
func (e *Executor) copyOut() {
	for _, o := range e.outs {
		widest := uint32(0)
		for _, p := range o.pieces {
			widest = max(widest, p.Width)
		}
		pieces := e.hosted(octets(o.pieces))
		e.add(&node{op: opOut, places: o.places, host: pieces.at(), n: [7]uint32{uint32(o.rows), uint32(len(o.pieces)), widest}, layer: -1})
	}
	e.outs = e.outs[:0]
}

// begin sees to it that the device has the rows that the list needs, and tells the kernels where.
func (e *Executor) begin() {
	e.needs = e.needs[:0]
	for _, t := range e.tables[:e.tabled] {
		for _, n := range t.needs {
			if n.End > 0 {
				if n.First < 0 {
					n.First = n.End
				}
				e.needs = append(e.needs, n)
			}
		}
	}
	if len(e.needs) == 0 {
		return
	}
	if err := e.mirror.Ready(e.needs); err != nil {
		e.fail("the KV cache", err)
	}
	done := e.needs
	for _, t := range e.tables[:e.tabled] {
		for i, n := range t.needs {
			if n.End > 0 {
				t.addresses[i] = [2]uint64{done[0].K, done[0].V}
				done = done[1:]
			}
		}
		e.params.write(t.memory, octets(t.addresses))
	}
}

// end hands the rows that the frame wrote over to the host's caches. The next frame's go to other memory meanwhile.
func (e *Executor) end() {
	e.wrote = e.wrote[:0]
	for _, t := range e.tables[:e.tabled] {
		e.wrote = append(e.wrote, t.rows...)
		t.forget()
	}
	if len(e.wrote) == 0 {
		return
	}
	e.mirror.Wrote(e.slot, e.wrote)
	e.slot = (e.slot + 1) % kvmirror.Slots
	if err := e.mirror.Reuse(e.slot); err != nil {
		e.fail("rows of the KV cache", err)
	}
	e.rows[e.slot].reset()
}

// forget forgets what the list did with the caches.
func (t *cacheTable) forget() {
	t.rows = t.rows[:0]
	for i := range t.needs {
		t.needs[i].First, t.needs[i].End = -1, 0
	}
}

// ropeTable is the device's copy of a rotary table: (cos, sin) of every position.
type ropeTable struct {
	buf  *device.Buffer
	rows int
}

func (r *ropeTable) free() { r.buf.Free() }

// rotaryRows is how many positions a table has that must have n: a power of two, at least 4096.
func rotaryRows(n int) int { return max(1<<12, 1<<bits.Len(uint(max(n, 1)-1))) }

// rope returns the address of r's table for positions below n.
func (e *Executor) rope(r *ops.Rope, n int) uint64 {
	t := e.ropes[r]
	if t == nil {
		t = new(ropeTable)
		e.ropes[r] = t
	}
	if t.rows >= n {
		return t.buf.Addr
	}
	rows := rotaryRows(n)
	half := r.Dim / 2
	r.Grow(rows)
	table := make([]float32, 0, rows*half*2)
	for pos := range rows {
		cos, sin := r.At(pos)
		for i := range half {
			table = append(table, cos[i], sin[i])
		}
	}
	e.retire(t.buf)
	t.buf, t.rows = e.fixed(octets(table), "tables"), rows
	return t.buf.Addr
}

// fixed returns device memory with the given contents.
func (e *Executor) fixed(b []byte, name string) *device.Buffer {
	e.ok()
	buf, err := e.dev.Alloc(device.DeviceOnly, aligned(int64(len(b))), name)
	if err == nil {
		if err = e.dev.Write(buf, 0, b); err != nil {
			buf.Free()
		}
	}
	if err != nil {
		e.fail("memory for "+name, err)
	}
	return buf
}

// retire frees a buffer when the list that may refer to it has run.
func (e *Executor) retire(b *device.Buffer) {
	if b != nil {
		e.retired = append(e.retired, b)
	}
}

// counters returns the address of so many bytes of zeros, which kernels leave as zeros.
func (e *Executor) counters(size int64) uint64 {
	if e.zeros == nil || e.zeros.Size < size {
		e.retire(e.zeros)
		e.zeros = nil
		e.zeros = e.fixed(make([]byte, max(aligned(size), 4096)), "tables")
	}
	return e.zeros.Addr
}

// number returns the address of the numbers from 0 to n-1. Where there were fewer, it forgets what is recorded, which reads those: no node
// names them.
func (e *Executor) number(n int) uint64 {
	if e.numbers == nil || e.numbers.Size < 4*int64(n) {
		list := make([]int32, max(n, 1024))
		for i := range list {
			list[i] = int32(i)
		}
		e.dropFrames()
		e.numbers.Free()
		e.numbers = nil
		e.numbers = e.fixed(octets(list), "tables")
	}
	return e.numbers.Addr
}
