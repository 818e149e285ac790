package main

import (
	"fmt"
	"math"
	"slices"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Tiles multiply weight rows of floats, in groups of floatGroup, with a few activation rows, whose sums are all in registers. Of the vectors
// that the columns are summed in, each has a pass of its own, which leaves the registers to more rows.

// floatGroup is how many weight rows a tile takes.
const floatGroup = 4

// floatTiles are the numbers of activation rows that there are tiles for: with the sums, and the vectors of one factor and one of the other,
// nearly all registers are used.
var floatTiles = map[int][]int{512: {6, 4}, 256: {3, 2}}

// The layout of floatArgs.
const (
	floatDst       = 0
	floatX         = 48
	floatW         = 96
	floatStride    = 104
	floatPanel     = 112
	floatPanelStep = 120
	floatAcc       = 128
	floatAccStride = 136
	floatCols      = 144
	floatGroups    = 152
	floatFirst     = 160
	floatLast      = 168
	floatRow       = 176
	floatPass      = 184
)

func init() {
	target("floattile", func() {
		for _, w := range []int{512, 256} {
			for _, rows := range floatTiles[w] {
				for _, f := range floatFormats {
					f.tile(w, rows)
				}
				packed.tile(w, rows)
				f8Tile(w, rows)
			}
			f8Pack(w)
		}
	})
}

// packed stands for the panel that tiles of the formats of 16 bits leave behind, for the tiles that follow: for each block of columns, group,
// and pass, the vectors of each step by weight row. It has zeros where columns are absent.
var packed = floatFormat{name: "packed"}

// floatTile is what tile functions have in common.
type floatTile struct {
	*simd
	args, i, left, acc reg.GPVirtual
	weights            reg.GPVirtual // the first row of the group, stride bytes before the second
	stride, stride3    reg.GPVirtual
	x                  []reg.GPVirtual
	sums               [][]reg.VecVirtual // by weight row and activation row
	// What is there of the columns after the last whole step: a bit each with AVX-512, and a word each in memory with AVX2.
	mask  reg.OpmaskVirtual
	table reg.GPVirtual
}

func newFloatTile(name string, w, rows int) *floatTile {
	t := &floatTile{simd: newSimd(w), i: GP64(), left: GP64(), acc: GP64(), weights: GP64()}
	function(fmt.Sprintf("%sTile%d%s", name, rows, t.isa()), w, "func(args *byte)")
	t.args = param("args")
	MOVQ(off(t.args, floatAcc), t.acc)
	if name == packed.name || name == "f8" {
		MOVQ(off(t.args, floatPanel), t.weights)
	} else {
		t.stride, t.stride3 = GP64(), GP64()
		MOVQ(off(t.args, floatStride), t.stride)
		LEAQ(at(t.stride, t.stride, 2, 0), t.stride3)
	}
	for g := range rows {
		t.x = append(t.x, GP64())
		MOVQ(off(t.args, floatX+8*g), t.x[g])
	}
	for range floatGroup {
		t.sums = append(t.sums, vecs(rows, w))
	}
	tail := GP64()
	MOVQ(off(t.args, floatCols), tail)
	ANDQ(Imm(floatStep-1), tail)
	if t.wide() {
		bits := GP64()
		MOVQ(I32(-1), bits)
		BZHIQ(tail, bits, bits)
		t.mask = K()
		KMOVD(bits.As32(), t.mask)
		return t
	}
	t.table = GP64()
	table := append(repeat(math.MaxUint32, floatStep), repeat(0, floatStep)...)
	LEAQ(dwordsConst("stepMasks", table...).Offset(4*floatStep), t.table)
	SHLQ(Imm(2), tail)
	SUBQ(tail, t.table)
	return t
}

func repeat(v uint32, n int) []uint32 { return slices.Repeat([]uint32{v}, n) }

// each calls f for every pair of a weight row and an activation row.
func (t *floatTile) each(f func(r, g int)) {
	for r := range t.sums {
		for g := range t.sums[r] {
			f(r, g)
		}
	}
}

// setBytes is the size of the sums of all pairs.
func (t *floatTile) setBytes() int { return floatGroup * len(t.x) * t.w / 8 }

// saved is where a pair's sums of n passes ago are kept.
func (t *floatTile) saved(n, r, g int) Mem { return off(t.acc, (r*len(t.x)+g)*t.w/8-n*t.setBytes()) }

// weight is the memory of weight row r.
func (t *floatTile) weight(r, disp int) Mem {
	switch {
	case t.stride == nil:
		return off(t.weights, r*t.w/8)
	case r == 0:
		return off(t.weights, disp)
	case r == 3:
		return at(t.weights, t.stride3, 1, disp)
	default:
		return at(t.weights, t.stride, uint8(r), disp)
	}
}

// activation returns the vector v after column i of activation row g, zeros where it has ended if mask is not nil.
func (t *floatTile) activation(g, v int, mask Op) reg.VecVirtual {
	x, m := t.new(), at(t.x[g], t.i, 4, v*t.w/8)
	switch k := mask.(type) {
	case nil:
		VMOVUPS(m, x)
	case reg.OpmaskVirtual:
		VMOVUPS_Z(m, k, x)
	default:
		VMOVUPS(k, x)
		VMASKMOVPS(m, x, x)
	}
	return x
}

// multiply adds the products of vector v to sums.
func (t *floatTile) multiply(v int, mask Op, weight func(r int) reg.VecVirtual) {
	if t.wide() {
		u := make([]reg.VecVirtual, floatGroup)
		for r := range u {
			u[r] = weight(r)
		}
		for g := range t.x {
			x := t.activation(g, v, mask)
			for r := range u {
				VFMADD231PS(u[r], x, t.sums[r][g])
			}
		}
		return
	}
	x := make([]reg.VecVirtual, len(t.x))
	for g := range x {
		x[g] = t.activation(g, v, mask)
	}
	for r := range floatGroup {
		u := weight(r)
		for g := range x {
			VFMADD231PS(u, x[g], t.sums[r][g])
		}
	}
}

// finish sums over the lanes and stores the results of a group; sum adds up the vectors of a pair.
func (t *floatTile) finish(sum func(r, g int) reg.VecVirtual) {
	for g := range t.x {
		to := GP64()
		MOVQ(off(t.args, floatDst+8*g), to)
		ADDQ(off(t.args, floatRow), to)
		VMOVUPS(sumFour(sum(0, g), sum(1, g), sum(2, g), sum(3, g)), off(to, 0))
	}
}

// next goes to the next group, if there is one.
func (t *floatTile) next(group string) {
	done := label("done")
	DECQ(off(t.args, floatGroups))
	JEQ(LabelRef(done)) // the pointer must not leave the weights
	ADDQ(off(t.args, floatAccStride), t.acc)
	ADDQ(Imm(4*floatGroup), off(t.args, floatRow))
	if t.stride != nil {
		LEAQ(at(t.stride, t.stride3, 1, 0), t.left)
		ADDQ(t.left, off(t.args, floatW))
	}
	JMP(LabelRef(group))
	Label(done)
	VZEROUPPER()
	RET()
}

// tile emits the product of groups of weight rows with rows activation rows.
func (f *floatFormat) tile(w, rows int) {
	t := newFloatTile(f.name, w, rows)
	lanes, count := w/32, vectors(w)
	var panel reg.GPVirtual
	var copies []Mem // AVX2: a group's last columns
	if f.size == 2 {
		panel = GP64()
		MOVQ(off(t.args, floatPanel), panel)
		for range floatGroup {
			if !t.wide() {
				copies = append(copies, AllocLocal(floatStep*f.size))
			}
		}
	}
	group, pass, first, begun, step, tail := label("group"), label("pass"), label("first"), label("begun"), label("step"), label("tail")
	done, save, after := label("done"), label("save"), label("after")
	Label(group)
	MOVQ(I32(0), off(t.args, floatPass))
	var mask reg.OpmaskVirtual
	if t.wide() {
		mask = K()
		KMOVD(t.mask, mask)
	}
	Label(pass)
	CMPQ(off(t.args, floatFirst), Imm(0))
	JNE(LabelRef(first))
	t.each(func(r, g int) { VMOVUPS(t.saved(0, r, g), t.sums[r][g]) })
	JMP(LabelRef(begun))
	Label(first)
	t.each(func(r, g int) { zero(t.sums[r][g]) })
	Label(begun)
	MOVQ(off(t.args, floatPass), t.i)
	if t.stride != nil {
		MOVQ(off(t.args, floatW), t.weights)
		LEAQ(at(t.weights, t.i, uint8(f.size), 0), t.weights)
	}
	advance := func() {
		if t.stride == nil {
			ADDQ(I32(int32(floatGroup*w/8)), t.weights)
			return
		}
		ADDQ(Imm(uint64(floatStep*f.size)), t.weights)
		if panel != nil {
			ADDQ(off(t.args, floatPanelStep), panel)
		}
	}
	// weight returns the vector of row r that load loads.
	weight := func(load func(r int, u reg.VecVirtual)) func(r int) reg.VecVirtual {
		return func(r int) reg.VecVirtual {
			u := t.new()
			load(r, u)
			if panel != nil {
				VMOVUPS(u, off(panel, r*w/8))
			}
			return u
		}
	}
	whole := func(r int, u reg.VecVirtual) {
		if t.stride == nil {
			VMOVUPS(t.weight(r, 0), u)
		} else {
			f.load(t.weight(r, 0), nil, u)
		}
	}
	MOVQ(off(t.args, floatCols), t.left)
	SUBQ(Imm(floatStep), t.left)
	JL(LabelRef(tail))
	Label(step)
	t.multiply(0, nil, weight(whole))
	advance()
	ADDQ(Imm(floatStep), t.i)
	SUBQ(Imm(floatStep), t.left)
	JGE(LabelRef(step))
	Label(tail)
	ADDQ(Imm(floatStep), t.left)
	JEQ(LabelRef(done))
	switch {
	case t.stride == nil && t.wide():
		t.multiply(0, mask, weight(whole))
	case t.stride == nil:
		t.multiply(0, off(t.table, 0), weight(whole))
	case t.wide():
		t.multiply(0, mask, weight(func(r int, u reg.VecVirtual) { f.load(t.weight(r, 0), mask, u) }))
	case copies == nil:
		t.multiply(0, off(t.table, 0), weight(func(r int, u reg.VecVirtual) {
			VMOVUPS(off(t.table, 0), u)
			VMASKMOVPS(t.weight(r, 0), u, u)
		}))
	default:
		// What there is from this pass's vector on is copied, if anything.
		none := label("none")
		for _, to := range copies {
			f.clear(to, floatStep)
		}
		SUBQ(off(t.args, floatPass), t.left)
		JLE(LabelRef(none))
		for r, to := range copies {
			from := GP64()
			LEAQ(t.weight(r, 0), from)
			f.copyTail(from, t.left, to, floatStep)
		}
		Label(none)
		t.multiply(0, off(t.table, 0), weight(func(r int, u reg.VecVirtual) { f.load(copies[r], nil, u) }))
	}
	advance()
	Label(done)
	CMPQ(off(t.args, floatPass), Imm(uint64((count-1)*lanes)))
	JNE(LabelRef(save))
	CMPQ(off(t.args, floatLast), Imm(0))
	JEQ(LabelRef(save))
	t.finish(func(r, g int) reg.VecVirtual {
		a := t.sums[r][g]
		if count == 2 {
			VADDPS(t.saved(1, r, g), a, a)
			return a
		}
		s := t.new()
		VMOVUPS(t.saved(3, r, g), s)
		VADDPS(t.saved(2, r, g), s, s)
		VADDPS(t.saved(1, r, g), a, a)
		VADDPS(a, s, s)
		return s
	})
	JMP(LabelRef(after))
	Label(save)
	t.each(func(r, g int) { VMOVUPS(t.sums[r][g], t.saved(0, r, g)) })
	Label(after)
	ADDQ(I32(int32(t.setBytes())), t.acc)
	if t.wide() {
		KSHIFTRD(Imm(16), mask, mask)
	} else {
		ADDQ(Imm(uint64(w/8)), t.table)
	}
	ADDQ(Imm(uint64(lanes)), off(t.args, floatPass))
	CMPQ(off(t.args, floatPass), Imm(floatStep))
	JNE(LabelRef(pass))
	SUBQ(I32(int32(count*t.setBytes())), t.acc)
	if !t.wide() {
		SUBQ(I32(int32(count*w/8)), t.table)
	}
	t.next(group)
}

// A packed group of F8E4M3 is, for each scale, f8Head bytes that begin with those of the rows, and then the vectors of up to f8Scale
// columns, whole steps, by weight row. The values are those that the row kernel has, 256th parts, but NaN is NaN.
const f8Head = 64

// f8Pack emits the function that packs columns from..from+cols-1 of a group, of rows of total columns; from is a multiple of f8Scale.
func f8Pack(w int) {
	v := newSimd(w)
	function("f8Pack"+v.isa(), w, "func(t *float32, w *byte, stride, from, cols, total int)")
	t, first, stride, i, left := param("t"), param("w"), param("stride"), param("from"), param("cols")
	var rows [floatGroup]reg.GPVirtual
	for r := range rows {
		if rows[r] = first; r > 0 {
			rows[r] = GP64()
			LEAQ(at(rows[r-1], stride, 1, 0), rows[r])
		}
	}
	scales := GP64()
	MOVQ(i, scales)
	SHRQ(Imm(5), scales)
	ADDQ(param("total"), scales)
	v.begin()
	convert := func(r int, codes func(part int) Op) {
		for part := range floatStep * 16 / w {
			words, magnitude := v.new(), v.new()
			VPMOVSXBW(codes(part), words)
			VPSLLW(Imm(7), words, words)
			and(v.dwords(0xbf80bf80), words, words)
			and(v.dwords(0x7fff7fff), words, magnitude)
			if v.wide() {
				k := K()
				VPCMPEQW(v.dwords(0x3f803f80), magnitude, k)
				VPBLENDMW(v.dwords(0x7e007e00), words, k, words)
			} else {
				VPCMPEQW(v.dwords(0x3f803f80), magnitude, magnitude)
				VPBLENDVB(magnitude, v.dwords(0x7e007e00), words, words)
			}
			for k := range 2 {
				value := v.new()
				VCVTPH2PS(v.half(k, words), value)
				VMOVUPS(value, off(t, ((2*part+k)*floatGroup+r)*w/8))
			}
		}
	}
	Label("block")
	for r := range rows {
		scale := GP32()
		MOVL(at(rows[r], scales, 1, 0), scale)
		MOVL(scale, off(t, 4*r))
	}
	ADDQ(Imm(4), scales)
	ADDQ(Imm(f8Head), t)
	Label("step")
	CMPQ(left, Imm(floatStep))
	JL(LabelRef("tail"))
	for r := range rows {
		convert(r, func(part int) Op { return at(rows[r], i, 1, part*w/16) })
	}
	ADDQ(I32(4*floatGroup*floatStep), t)
	ADDQ(Imm(floatStep), i)
	SUBQ(Imm(floatStep), left)
	JEQ(LabelRef("done"))
	TESTQ(I32(f8Scale-1), i)
	JNE(LabelRef("step"))
	JMP(LabelRef("block"))
	Label("tail")
	copied := AllocLocal(floatStep)
	for r := range rows {
		from := GP64()
		LEAQ(at(rows[r], i, 1, 0), from)
		(&floatFormat{size: 1}).copyTail(from, left, copied, floatStep)
		convert(r, func(part int) Op { return copied.Offset(part * w / 16) })
	}
	Label("done")
	VZEROUPPER()
	RET()
	v.end()
}

// f8Tile emits the product of packed groups of F8E4M3 with rows activation rows. The sums over the columns of a scale are in registers,
// and those of the scaled ones in memory.
func f8Tile(w, rows int) {
	t := newFloatTile("f8", w, rows)
	group, begun, block, step, tail, finish, stored := label("group"), label("begun"), label("block"), label("step"), label("tail"),
		label("finish"), label("stored")
	factor := dwordsConst(fmt.Sprintf("factor%d", w), repeat(math.Float32bits(256), w/32)...)
	Label(group)
	CMPQ(off(t.args, floatFirst), Imm(0))
	JEQ(LabelRef(begun))
	z := t.new()
	zero(z)
	t.each(func(r, g int) { VMOVUPS(z, t.saved(0, r, g)) })
	Label(begun)
	XORQ(t.i, t.i)
	MOVQ(off(t.args, floatCols), t.left)
	Label(block)
	t.each(func(r, g int) { zero(t.sums[r][g]) })
	scales := GP64()
	MOVQ(t.weights, scales)
	ADDQ(Imm(f8Head), t.weights)
	vectorsOfStep := func(masks func(v int) Op) {
		for v := range floatStep / t.lanes {
			t.multiply(v, masks(v), func(r int) reg.VecVirtual {
				u := t.new()
				VMOVUPS(off(t.weights, (v*floatGroup+r)*w/8), u)
				return u
			})
		}
		ADDQ(I32(4*floatGroup*floatStep), t.weights)
	}
	Label(step)
	CMPQ(t.left, Imm(floatStep))
	JL(LabelRef(tail))
	vectorsOfStep(func(int) Op { return nil })
	ADDQ(Imm(floatStep), t.i)
	SUBQ(Imm(floatStep), t.left)
	JEQ(LabelRef(finish))
	TESTQ(I32(f8Scale-1), t.i)
	JNE(LabelRef(step))
	JMP(LabelRef(finish))
	Label(tail)
	vectorsOfStep(func(v int) Op {
		if !t.wide() {
			return off(t.table, v*w/8)
		}
		k := K()
		KSHIFTRD(Imm(uint64(16*v)), t.mask, k)
		return k
	})
	XORQ(t.left, t.left)
	Label(finish)
	for r := range t.sums {
		scale := t.new()
		VBROADCASTSS(off(scales, 4*r), scale)
		for g := range t.sums[r] {
			a := t.new()
			VMOVUPS(t.saved(0, r, g), a)
			VMULPS(factor, t.sums[r][g], t.sums[r][g])
			VFMADD231PS(scale, t.sums[r][g], a)
			VMOVUPS(a, t.saved(0, r, g))
		}
	}
	TESTQ(t.left, t.left)
	JNE(LabelRef(block))
	CMPQ(off(t.args, floatLast), Imm(0))
	JEQ(LabelRef(stored))
	t.finish(func(r, g int) reg.VecVirtual {
		a := t.new()
		VMOVUPS(t.saved(0, r, g), a)
		return a
	})
	Label(stored)
	t.next(group)
}
