package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// iqFormat describes an IQ format: units of eight blocks, whose codes are entries of a codebook, of eight or four columns, with signs
// or, for IQ1, an offset. The codebook has magnitudes, or IQ1's bias in its entries. Codes are made in octets: an entry of eight columns,
// or two of four, of each of several blocks.
type iqFormat struct {
	name, book string
	entry      int   // bytes of an entry
	unit       []int // as unitFormat's
	max        int   // the largest code
	shift      int   // log2 of the bias, which only packed codes have if there are signs
	kind

	// indices are in the unit, a byte each from indices on and a block every eight bytes, unless there are words, which returns those of a
	// group, a word each; packed tells for what. With mixed, those of 256 bits are the entries 0-7 and 16-23, and then the others.
	indices int
	words   func(v *simd, u iqUnits, packed bool) [2]reg.VecVirtual
	mixed   bool
	// ninth, unless zero, is where the unit has the ninth bits of the indices, a byte for the eight of a block.
	ninth int
	// signs returns the sign bits of the group's blocks, a dword a block: in the blocks' order, or with 256 bits in that of signOrder.
	signs func(v *simd, u iqUnits) reg.VecVirtual
	// adjust is unitFormat's.
	adjust func(v *simd, u iqUnits, sums, i reg.VecVirtual)
	// scales returns the scales' numbers and their factor, a lane a block.
	scales func(v *simd, u iqUnits) iqScales
}

// signOrder, as VPERMQ knows it, takes the blocks 0 1 2 3 4 5 6 7 to 0 1 4 5 2 3 6 7, of which interleaving each 128 bits makes the first
// and the second four.
const signOrder = 0xd8

// iqScales are d·(slope·a + offset) and, for halves, the same with b; of a and b the bits of mask, which is below 16, count.
type iqScales struct {
	d, a, b       reg.VecVirtual
	mask          int
	slope, offset float32
}

// iqUnits are the units of a group.
type iqUnits struct {
	w     reg.Register
	bytes int // of one
}

// block is the memory of block b in a part of the unit that begins at disp and has so many bytes a block.
func (u iqUnits) block(b, disp, bytes int) Mem { return off(u.w, b/8*u.bytes+disp+b%8*bytes) }

func init() {
	for _, f := range []*iqFormat{iq2_xxs(), iq2_xs(), iq2_s(), iq3_xxs(), iq3_s(), iq1_s(), iq1_m()} {
		unitTarget(f.format())
	}
}

func (f *iqFormat) format() *unitFormat {
	size := 0
	for _, n := range f.unit {
		size += n
	}
	u := &unitFormat{
		name: f.name, unit: f.unit, unitBlocks: 8, max: f.max, octets: true, kind: f.kind,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) { f.codes(v, iqUnits{w, size}, emit) },
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			f.tile(v, iqUnits{w, size}, emit)
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual {
			s := f.scales(v, iqUnits{w, size})
			scales := []reg.VecVirtual{s.a}
			if f.halves {
				scales = append(scales, s.b)
			}
			for _, x := range scales {
				s.factors(v, x)
				VMULPS(s.d, x, x)
			}
			return scales
		},
	}
	u.room = f.room
	u.ahead = func(v *simd, w reg.Register) { f.ahead(v, iqUnits{w, size}, false) }
	if f.signs != nil {
		u.negate = func(v *simd, w reg.Register) func(int, reg.VecVirtual) {
			s := f.signsOf(v, iqUnits{w, size})
			return func(k int, x reg.VecVirtual) {
				if v.wide() {
					VPSUBB(x, v.inRegister(v.dwords(0)), s.mask(k), x)
				} else {
					VPSIGNB(s.bytes(k), x, x)
				}
			}
		}
	} else {
		u.bias = 1 << f.shift
	}
	if f.adjust != nil {
		u.adjust = func(v *simd, w reg.Register, sums, i reg.VecVirtual) { f.adjust(v, iqUnits{w, size}, sums, i) }
	}
	return u
}

// room is that of ahead: words of indices and, with 512 bits, masks of signs.
func (f *iqFormat) room(v *simd) int {
	n := f.masks(v)
	if v.wide() && f.signs != nil {
		n += 64
	}
	return n
}

// masks is where the masks of signs are in the room, behind the words.
func (f *iqFormat) masks(v *simd) int {
	if f.words == nil {
		return 0
	}
	return 8 * v.lanes
}

func (f *iqFormat) ahead(v *simd, u iqUnits, packed bool) {
	if f.words != nil {
		for i, x := range f.words(v, u, packed) {
			load(x, v.room.Offset(i*v.w/8))
		}
	}
	if !v.wide() || f.signs == nil {
		return
	}
	// Eight bytes for each eight columns of the eight blocks of a unit.
	s, t := f.signs(v, u), v.new()
	VPSHUFB(v.dwords(0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703), s, t)
	VPERMD(t, v.inRegister(v.dwords(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)), t)
	// The processor does not forward the upper half of a store of 64 bytes to shorter loads.
	m := v.room.Offset(f.masks(v))
	load(t.AsY(), m)
	VEXTRACTI64X4(Imm(1), t, m.Offset(32))
}

// codes emits a group's codes, magnitudes if there are signs.
func (f *iqFormat) codes(v *simd, u iqUnits, emit func(reg.VecVirtual)) {
	book := GP64()
	LEAQ(Mem{Symbol: Symbol{Name: "·" + f.book}, Base: reg.StaticBase}, book)
	if !v.wide() && f.entry == 8 {
		for n := range 2 {
			f.loaded(v, u, book, 4*n, emit)
		}
		return
	}
	// Vectors of all indices of the blocks, from which bytes are picked for each entry: to 64 bits or, for entries of four columns, 32 bits of
	// an index.
	var x, ninth [2]reg.VecVirtual
	pick := func(e int) [16]byte { return picked(4, 2*e, 1) }
	prepare := func(n int) {
		at := off(u.w, f.indices+32*n)
		if v.wide() {
			at = off(u.w, f.indices+u.bytes*n)
		}
		switch {
		case f.words != nil:
			x[n] = v.load(v.room.Offset(64 * n))
			pick = func(e int) [16]byte { return picked(8, 2*e, 2) }
		case f.entry == 8:
			x[n] = v.load(at)
			pick = func(e int) [16]byte { return picked(8, e, 1) }
		default:
			x[n] = v.load(at)
		}
		if f.ninth > 0 {
			ninth[n] = f.ninths(v, u, n)
		}
	}
	entry := func(n, e int) {
		p, indices := pick(e), v.new()
		VPSHUFB(v.bytes(p[:]...), x[n], indices)
		if f.ninth > 0 {
			high := v.new()
			VPSRLVD(v.dwords(uint32(2*e), uint32(2*e+1)), ninth[n], high)
			indices = v.include(indices, high, 0x100)
		}
		emit(v.gather(book, indices, f.entry))
	}
	if v.wide() {
		prepare(0)
		prepare(1)
		for k := range 8 {
			entry(k%2, k/2)
		}
		return
	}
	for n := range 2 {
		prepare(n)
		for e := range 4 {
			entry(n, e)
		}
	}
}

// picked returns what VPSHUFB makes indices of so many bytes by: of two blocks of eight bytes each those from the given one on, size a
// index.
func picked(bytes, from, size int) (p [16]byte) {
	for i := range p {
		p[i] = 0x80
		if i%bytes < size {
			p[i] = byte(i/8*8 + from + i%8/bytes*size + i%bytes)
		}
	}
	return p
}

// ninths returns the bytes at f.ninth in bits 8 to 15 of the 64 bits of the n-th blocks of codes.
func (f *iqFormat) ninths(v *simd, u iqUnits, n int) reg.VecVirtual {
	x := v.new()
	first := 4 * n
	if v.wide() {
		first = 0
		VPBROADCASTQ(off(u.w, u.bytes*n+f.ninth), x)
	} else {
		VPBROADCASTQ(off(u.w, f.ninth), x)
	}
	lanes := make([]uint32, v.lanes)
	for i := range lanes {
		lanes[i] = 0x80800080 | uint32(first+i/2)<<8
	}
	VPSHUFB(v.dwords(lanes...), x, x)
	return x
}

// loaded emits the entries of four blocks for AVX2, which gathers eight bytes more slowly than it loads them one by one. Where there are no
// signs it is loads that limit, and two indices, which are words then, are loaded at a time.
func (f *iqFormat) loaded(v *simd, u iqUnits, book reg.Register, block int, emit func(reg.VecVirtual)) {
	word := func(i int) Mem {
		if f.mixed {
			i = i%8 + i/16*8 + i/8%2*16
		}
		return v.room.Offset(2 * i)
	}
	var two [4]reg.GPVirtual
	for e := range 4 {
		var x [4]reg.VecVirtual
		for k := range x {
			index, i := GP32(), 4*(block+k)+e
			switch {
			case f.words == nil:
				MOVBLZX(u.block(block+k, f.indices, 8).Offset(e), index)
			case f.signs != nil:
				MOVWLZX(word(i), index)
			case e%2 == 0:
				two[k] = GP32()
				MOVL(word(i), two[k])
				MOVWLZX(two[k].As16(), index)
			default:
				index = two[k]
				SHRL(Imm(16), index)
			}
			x[k] = YMM()
			VPBROADCASTQ(Mem{Base: book, Index: index.As64(), Scale: 8}, x[k])
		}
		VPBLENDD(Imm(0x0c), x[1], x[0], x[0])
		VPBLENDD(Imm(0xc0), x[3], x[2], x[2])
		VPBLENDD(Imm(0xf0), x[2], x[0], x[0])
		emit(x[0])
	}
}

// gather returns the entries of the codebook with these indices.
func (v *simd) gather(book reg.Register, indices reg.VecVirtual, entry int) reg.VecVirtual {
	u := v.new()
	zero(u)
	m := Mem{Base: book, Index: indices, Scale: uint8(entry)}
	if !v.wide() {
		all := v.new()
		ones("VPCMPEQD", all)
		VPGATHERDD(all, m, u)
		return u
	}
	k := K()
	ones("KXNORW", k)
	if entry == 8 {
		VPGATHERQQ(m, k, u)
	} else {
		VPGATHERDD(m, k, u)
	}
	return u
}

// ones sets all bits of r by an instruction whose result does not depend on it; avo must be told.
func ones(opcode string, r Op) {
	Instruction(&ir.Instruction{Opcode: opcode, Operands: []Op{r, r, r}, Outputs: []Op{r}})
}

// signs are those of a group's codes.
type signs struct {
	v     *simd
	masks Mem
	// With 256 bits a word for each entry of eight columns, of the first and of the second four blocks: the sign bits and, below, twice them,
	// so that a shift that brings an odd bit to the top of the upper byte brings the one before it to that of the lower. The bytes' lowest
	// bits, which are never at the top, are set: no byte is zero.
	words [2]reg.VecVirtual
}

func (f *iqFormat) signsOf(v *simd, u iqUnits) *signs {
	s := &signs{v: v}
	if v.wide() {
		s.masks = v.room.Offset(f.masks(v))
		return s
	}
	once, twice := f.signs(v, u), YMM()
	VPADDB(once, once, twice)
	low := v.dwords(0x01010101)
	VPOR(low, once, once)
	VPOR(low, twice, twice)
	s.words[0], s.words[1] = interleave{VPUNPCKLBW, VPUNPCKHBW}.of(v, twice, once)
	return s
}

// mask returns a bit for each code of the k-th vector, which ahead made.
func (s *signs) mask(k int) reg.OpmaskVirtual {
	m := K()
	KMOVQ(s.masks.Offset(8*k), m)
	return m
}

// bytes returns a byte for each code of the k-th vector, below zero or above it: an entry's word shifted by an even number of bits for each two.
func (s *signs) bytes(k int) reg.VecVirtual {
	m := YMM()
	e := uint32(k%4*2) * 0x01010101
	VPSHUFB(s.v.inRegister(s.v.dwords(0x01000100+e, 0x01000100+e, 0x09080908+e, 0x09080908+e)), s.words[k/4], m)
	VPMULLW(s.v.inRegister(s.v.words(64, 16, 4, 1)), m, m)
	return m
}

// tile emits the tile of a group.
func (f *iqFormat) tile(v *simd, u iqUnits, emit func(int, reg.VecVirtual)) {
	if f.room(v) > 0 && v.room.Base == nil {
		v.room = AllocLocal(f.room(v))
	}
	f.ahead(v, u, true)
	var s *signs
	if f.signs != nil {
		s = f.signsOf(v, u)
	}
	var in []reg.VecVirtual
	f.codes(v, u, func(u reg.VecVirtual) {
		if s != nil {
			bias, k := v.dwords(uint32(1)<<f.shift*0x01010101), len(in)
			if v.wide() {
				k = k%2*4 + k/2
				x := v.new()
				VPADDB(bias, u, x)
				VPSUBB(u, v.inRegister(bias), s.mask(k), x)
				u = x
			} else {
				VPSIGNB(s.bytes(k), u, u)
				VPADDB(bias, u, u)
			}
		}
		in = append(in, u)
	})
	for e := range 4 {
		a, b := in[e], in[4+e]
		if v.wide() {
			a, b = in[2*e], in[2*e+1]
		}
		even, odd := v.evenOdd(a, b)
		for j, x := range []reg.VecVirtual{even, odd} {
			if !v.wide() {
				VPERMQ(Imm(0xd8), x, x)
			}
			emit(2*e+j, x)
		}
	}
}

// factors makes the factors of the numbers x.
func (s *iqScales) factors(v *simd, x reg.VecVirtual) {
	if v.wide() {
		var table []uint32
		for n := range 16 {
			table = append(table, math.Float32bits(s.slope*float32(n&s.mask)+s.offset))
		}
		VPERMD(v.inRegister(v.dwords(table...)), x, x)
		return
	}
	and(v.dwords(uint32(s.mask)), x, x)
	VCVTDQ2PS(x, x)
	slope := v.new()
	load(v.dwords(math.Float32bits(s.slope)), slope)
	VFMADD213PS(v.dwords(math.Float32bits(s.offset)), slope, x)
}

// highBits are the bits of indices above a byte: word i has those of mask of the two bytes that from says of so many, the second one
// being absent if negative, times a factor, which the words repeat.
type highBits struct {
	bytes   int
	from    func(i int) (int, int)
	factors []uint16
	mask    uint16
	held    bool // there are registers for these constants
}

// words returns words of a group's entries, of which a unit has 32: a byte at low for each, and the bits h, which are at high.
func (h *highBits) words(v *simd, u iqUnits, low, high int) (words [2]reg.VecVirtual) {
	for n := range words {
		i := 2 * v.lanes * n
		x := v.new()
		VPMOVZXBW(off(u.w, i/32*u.bytes+low+i%32), x)
		words[n] = h.add(v, u, x, i, high)
	}
	return words
}

// add adds the bits h to x, words from entry i of the group on.
func (h *highBits) add(v *simd, u iqUnits, x reg.VecVirtual, i, high int) reg.VecVirtual {
	bits, mask := h.spread(v, u, i, high), uint32(h.mask)*0x00010001
	if h.held && !v.wide() {
		return v.or(v.and(v.inRegister(v.dwords(mask)), bits), x)
	}
	return v.include(x, bits, mask)
}

// spread returns the words of the bits h, with others around them.
func (h *highBits) spread(v *simd, u iqUnits, i, high int) reg.VecVirtual {
	at, bits := off(u.w, i/32*u.bytes+high), v.new()
	if h.bytes == 8 {
		VPBROADCASTQ(at, bits)
	} else {
		broadcast128(at, bits)
	}
	var from []byte
	for k := range 2 * v.lanes {
		a, b := h.from(i%32 + k)
		from = append(from, byte(a), byte(max(b, -128)))
	}
	order, factors := v.bytes(from...), v.words(h.factors...)
	if h.held {
		order, factors = v.inRegister(order), v.inRegister(factors)
	}
	VPSHUFB(order, bits, bits)
	VPMULLW(factors, bits, bits)
	return bits
}

// bytesPerBlock returns a byte of each block, from disp of the unit on, in the blocks' lanes.
func (v *simd) bytesPerBlock(u iqUnits, disp int) reg.VecVirtual {
	x := v.new()
	if !v.wide() {
		VPMOVZXBD(off(u.w, disp), x)
		return x
	}
	b := XMM()
	VMOVQ(off(u.w, disp), b)
	VPINSRQ(Imm(1), off(u.w, u.bytes+disp), b, b)
	VPMOVZXBD(b, x)
	return x
}

// dwordsPerBlock returns the 32 bytes at disp of each unit.
func (v *simd) dwordsPerBlock(u iqUnits, disp int) reg.VecVirtual {
	x := v.new()
	if !v.wide() {
		load(off(u.w, disp), x)
		return x
	}
	loadLow(off(u.w, disp), x)
	VINSERTI64X4(Imm(1), off(u.w, u.bytes+disp), x, x)
	return x
}

// half returns the constant op in half the length if it is in a register.
func half(op Op) Op {
	if r, ok := op.(reg.VecVirtual); ok {
		return r.AsY()
	}
	return op
}

// wholeSigns returns the sign bits that the unit has at disp.
func (v *simd) wholeSigns(u iqUnits, disp int) reg.VecVirtual {
	if v.wide() {
		return v.dwordsPerBlock(u, disp)
	}
	x := v.new()
	VPERMQ(Imm(signOrder), off(u.w, disp), x)
	return x
}

// parity sets bit 7 of x's bytes, which must be clear, so that an even number of bits is set.
func (v *simd) parity(x reg.VecVirtual) reg.VecVirtual {
	t, odd := v.new(), v.new()
	VPSRLD(Imm(4), x, t)
	if v.wide() {
		VPTERNLOGD(Imm(0x28), v.dwords(0x0f0f0f0f), x, t) // (t ^ x) & mask
	} else {
		xor(x, t, t)
		and(v.dwords(0x0f0f0f0f), t, t)
	}
	table := v.dwords(0x00808000, 0x80000080, 0x80000080, 0x00808000)
	if !v.wide() {
		r := v.new()
		load(table, r)
		table = r
	}
	VPSHUFB(t, table, odd) // 0x80 for nibbles of an odd number of bits
	return v.or(odd, x)
}

// fourSigns returns the sign bits that the dwords of x have in four fields of seven bits.
func (v *simd) fourSigns(x reg.VecVirtual) reg.VecVirtual {
	y := v.and(v.dwords(0x7f), x)
	for i, mask := range []uint32{0x7f00, 0x7f0000, 0x7f000000} {
		t := v.new()
		VPSLLD(Imm(uint64(i+1)), x, t)
		y = v.include(y, t, mask)
	}
	return v.parity(y)
}

// pairSigns is fourSigns for the dwords that each 128 bits of x have at the given bytes, two and two, with 256 bits.
func (v *simd) pairSigns(x [2]reg.VecVirtual, at [2][2]int) reg.VecVirtual {
	for i := range x {
		var from [16]byte // field n begins in byte n-1, if it does not in byte 0
		for k, first := range at[i] {
			for n := range 4 {
				from[8*k+2*n], from[8*k+2*n+1] = byte(first+n-1), byte(first+n)
			}
			from[8*k] = 0x80
		}
		t := v.new()
		VPSHUFB(v.bytes(from[:]...), x[i], t)
		VPMULHUW(v.words(1<<8, 1<<9, 1<<10, 1<<11), t, t)
		x[i] = v.and(v.words(0x7f), t)
	}
	VPACKUSWB(x[1], x[0], x[0])
	return v.parity(x[0])
}

// topNibbles returns the scales of blocks whose dwords x have them above their signs.
func topNibbles(x reg.VecVirtual) reg.VecVirtual {
	VPSRLD(Imm(28), x, x)
	return x
}

// nibbleHalves returns the scales of blocks with a byte each.
func (v *simd) nibbleHalves(u iqUnits, disp int) iqScales {
	x, high := v.bytesPerBlock(u, disp), v.new()
	VPSRLD(Imm(4), x, high)
	return iqScales{v.unitHalves(u.w, u.bytes, 0), x, high, 15, 0.25, 0.125}
}

// iq2_xxs: binary16 d; per block four bytes of indices and a dword of 4×7 signs and the scale.
func iq2_xxs() *iqFormat {
	odd := func(v *simd, u iqUnits) reg.VecVirtual {
		if v.wide() {
			lo, hi := v.load(off(u.w, 2)), v.load(off(u.w, u.bytes+2))
			var lanes []uint32
			for i := range uint32(16) {
				lanes = append(lanes, 2*i+1)
			}
			VPERMT2D(hi, v.inRegister(v.dwords(lanes...)), lo)
			return lo
		}
		lo := v.load(off(u.w, 2))
		VSHUFPS(Imm(0xdd), off(u.w, 34), lo, lo)
		VPERMQ(Imm(0xd8), lo, lo)
		return lo
	}
	return &iqFormat{
		name: "iq2_xxs", book: "iq2xxsBook", entry: 8, unit: []int{2, 32, 32}, max: 43, shift: 6, indices: 2,
		signs: func(v *simd, u iqUnits) reg.VecVirtual {
			if v.wide() {
				return v.fourSigns(odd(v, u))
			}
			return v.pairSigns([2]reg.VecVirtual{v.load(off(u.w, 2)), v.load(off(u.w, 34))}, [2][2]int{{4, 12}, {4, 12}})
		},
		scales: func(v *simd, u iqUnits) iqScales {
			return iqScales{v.unitHalves(u.w, u.bytes, 0), topNibbles(odd(v, u)), nil, 15, 0.25, 0.125}
		},
	}
}

// iq2_xs: binary16 d; 32 words of an index of nine bits and seven signs; scale nibbles.
func iq2_xs() *iqFormat {
	return &iqFormat{
		name: "iq2_xs", book: "iq2xsBook", entry: 8, unit: []int{2, 32, 32, 4, 4}, max: 43, shift: 6, kind: halves,
		words: func(v *simd, u iqUnits, _ bool) (words [2]reg.VecVirtual) {
			for i := range words {
				words[i] = v.load(u.block(i*v.lanes/2, 2, 8))
				and(v.words(511), words[i], words[i])
			}
			return words
		},
		signs: func(v *simd, u iqUnits) reg.VecVirtual {
			var x [2]reg.VecVirtual
			for i := range x {
				x[i] = v.load(u.block(i*v.lanes/2, 2, 8))
				VPSRLW(Imm(9), x[i], x[i])
			}
			// Words below 128 are narrowed by saturation, which takes the vectors' 128 bits in turn: with 256 bits that is signOrder.
			bytes := v.new()
			VPACKUSWB(x[1], x[0], bytes)
			if v.wide() {
				VPERMQ(bytes, v.inRegister(v.dwords(0, 0, 2, 0, 4, 0, 6, 0, 1, 0, 3, 0, 5, 0, 7, 0)), bytes)
			}
			return v.parity(bytes)
		},
		scales: func(v *simd, u iqUnits) iqScales { return v.nibbleHalves(u, 66) },
	}
}

// iq2_s: binary16 d; the low bytes of the indices; signs; bit pairs above the indices' bytes; scale nibbles.
func iq2_s() *iqFormat {
	pairs := &highBits{8, func(i int) (int, int) { return i / 4, -1 }, []uint16{256, 64, 16, 4}, 0x300, false}
	return &iqFormat{
		name: "iq2_s", book: "iq2sBook", entry: 8, unit: []int{2, 32, 32, 16}, max: 43, shift: 6, kind: halves,
		words:  func(v *simd, u iqUnits, _ bool) [2]reg.VecVirtual { return pairs.words(v, u, 2, 66) },
		signs:  func(v *simd, u iqUnits) reg.VecVirtual { return v.wholeSigns(u, 34) },
		scales: func(v *simd, u iqUnits) iqScales { return v.nibbleHalves(u, 74) },
	}
}

// iq3_xxs: binary16 d; indices; per block a dword of 4×7 signs and the scale.
func iq3_xxs() *iqFormat {
	return &iqFormat{
		name: "iq3_xxs", book: "iq3xxsBook", entry: 4, unit: []int{2, 32, 32, 32}, max: 62, shift: 6, indices: 2,
		signs: func(v *simd, u iqUnits) reg.VecVirtual {
			if v.wide() {
				return v.fourSigns(v.dwordsPerBlock(u, 66))
			}
			x := v.wholeSigns(u, 66)
			return v.pairSigns([2]reg.VecVirtual{x, x}, [2][2]int{{0, 4}, {8, 12}})
		},
		scales: func(v *simd, u iqUnits) iqScales {
			return iqScales{v.unitHalves(u.w, u.bytes, 0), topNibbles(v.dwordsPerBlock(u, 66)), nil, 15, 0.5, 0.25}
		},
	}
}

// iq3_s: binary16 d; the low bytes of the indices; their ninth bits; signs; scale nibbles.
func iq3_s() *iqFormat {
	return &iqFormat{
		name: "iq3_s", book: "iq3sBook", entry: 4, unit: []int{2, 32, 32, 32, 4, 4, 4}, max: 15, shift: 4, indices: 2, ninth: 66,
		signs: func(v *simd, u iqUnits) reg.VecVirtual { return v.wholeSigns(u, 74) },
		scales: func(v *simd, u iqUnits) iqScales {
			x := v.new()
			VPBROADCASTD(off(u.w, 106), x)
			if v.wide() {
				VPBROADCASTD(off(u.w, u.bytes+106), v.mask(0xff00), x)
			}
			VPSRLVD(v.dwords(0, 4, 8, 12, 16, 20, 24, 28), x, x)
			return iqScales{v.unitHalves(u.w, u.bytes, 0), x, nil, 15, 2, 1}
		},
	}
}

// iq1_s: binary16 d; the low bytes of the indices; per block a word of 4×3 bits above them, the scale and the offset's sign.
func iq1_s() *iqFormat {
	// numbers returns the scales' numbers, with the sign above.
	numbers := func(v *simd, u iqUnits) reg.VecVirtual {
		return v.once("numbers", func() reg.VecVirtual {
			x := v.new()
			if v.wide() {
				words := YMM()
				broadcast128(off(u.w, 34), words)
				insert128(1, off(u.w, u.bytes+34), words, words)
				VPMOVZXWD(words, x)
			} else {
				VPMOVZXWD(off(u.w, 34), x)
			}
			VPSRLD(Imm(12), x, x)
			return x
		})
	}
	threes := &highBits{16, func(i int) (int, int) {
		if i%4 == 3 { // only the upper byte, so that there is a shift to the left for it too
			return i/4*2 + 1, -1
		}
		return i / 4 * 2, i/4*2 + 1
	}, []uint16{256, 32, 4, 128}, 0x700, true}
	// The offset's sign is in the upper byte's top bit: a word with that byte below is multiplied by 16.
	sign := &highBits{16, func(i int) (int, int) { return i/4*2 + 1, -1 }, []uint16{16}, 0x800, true}
	return &iqFormat{
		name: "iq1_s", book: "iq1Book", entry: 8, unit: []int{2, 32, 16}, max: 31, shift: 4,
		words: func(v *simd, u iqUnits, packed bool) [2]reg.VecVirtual {
			words := threes.words(v, u, 2, 34)
			for i := range words {
				if packed { // rows leave it to adjust
					words[i] = sign.add(v, u, words[i], 2*v.lanes*i, 34)
				}
			}
			return words
		},
		adjust: func(v *simd, u iqUnits, sums, i reg.VecVirtual) {
			// The bias is 16, or 18 for a negative offset.
			x := numbers(v, u)
			if v.wide() {
				var minus []uint32
				for n := range 16 {
					minus = append(minus, uint32(uint16(-16-n/8*2)))
				}
				bias := v.new()
				VPERMD(v.inRegister(v.dwords(minus...)), x, bias)
				vpdpwssd(bias, sums, i)
				return
			}
			bias := v.new()
			VPSRLD(Imm(2), x, bias)
			bias = v.or(v.dwords(16), v.and(v.dwords(2), bias))
			VPMADDWD(sums, bias, bias)
			VPSUBD(bias, i, i)
		},
		scales: func(v *simd, u iqUnits) iqScales {
			return iqScales{v.unitHalves(u.w, u.bytes, 0), numbers(v, u), nil, 7, 0.25, 0.125}
		},
	}
}

// iq1_m: the low bytes of the indices; nibbles of three bits above them and the offset's sign; four words with d's nibbles on top and
// 4×3 bits of scales below.
func iq1_m() *iqFormat {
	nibbles := &highBits{16, func(i int) (int, int) { return i / 2, -1 }, []uint16{256, 16}, 0xf00, false}
	return &iqFormat{
		name: "iq1_m", book: "iq1Book", entry: 8, unit: []int{32, 16, 4, 4}, max: 31, shift: 4, kind: halves,
		mixed: true,
		words: func(v *simd, u iqUnits, _ bool) (words [2]reg.VecVirtual) {
			if v.wide() {
				return nibbles.words(v, u, 0, 32)
			}
			high, t := YMM(), YMM()
			VPMOVZXBW(off(u.w, 32), high)
			VPSLLW(Imm(4), high, t)
			high = v.and(v.inRegister(v.dwords(0x0f0f0f0f)), v.or(t, high))
			words[0], words[1] = interleave{VPUNPCKLBW, VPUNPCKHBW}.of(v, v.load(off(u.w, 0)), high)
			return words
		},
		scales: func(v *simd, u iqUnits) iqScales {
			x, d, top := v.new(), v.new(), YMM()
			VPBROADCASTQ(off(u.w, 48), x)
			VPBROADCASTQ(off(u.w, 48), top)
			if v.wide() {
				VPBROADCASTQ(off(u.w, u.bytes+48), v.mask(0xf0), x)
				VPBROADCASTQ(off(u.w, u.bytes+48), v.mask(0x0c), top)
			}
			// Of d's bytes, the low and the high nibbles are the high ones of two bytes each.
			low, high := YMM(), YMM()
			VPSHUFB(half(v.dwords(0x05010501)), top, low)
			VPSHUFB(half(v.dwords(0x07030703)), top, high)
			VPSRLD(Imm(4), low, low)
			m := half(v.dwords(0x0f0f0f0f))
			if v.wide() {
				VPTERNLOGD(Imm(0xe4), m, high, low) // low where the mask is set
				VCVTPH2PS(low, d)
			} else {
				VPAND(m, low, low)
				mask := YMM()
				load(m, mask)
				VPANDN(high, mask, high)
				VPOR(high, low, low)
				VCVTPH2PS(low.AsX(), d)
			}
			// A word for two blocks, at the top of a dword.
			VPSHUFB(v.dwords(0x01008080, 0x01008080, 0x03028080, 0x03028080, 0x05048080, 0x05048080, 0x07068080, 0x07068080), x, x)
			b := v.new()
			VPSRLVD(v.dwords(18, 24), x, b)
			VPSRLVD(v.dwords(15, 21), x, x)
			return iqScales{d, x, b, 14, 0.125, 0.125}
		},
	}
}
