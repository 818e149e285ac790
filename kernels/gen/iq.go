package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// iqFormat describes an IQ format: units of eight blocks, whose codes are entries of a codebook, of eight or four columns, with signs
// or, for IQ1, an offset. The codebook has magnitudes, or IQ1's bias in its entries.
type iqFormat struct {
	name, book string
	entry      int   // bytes of an entry
	unit       []int // as unitFormat's
	max        int   // the largest code
	shift      int   // log2 of the bias, which only packed codes have if there are signs
	kind

	// words returns the indices of the entries from entry i of the group on, as words that fill a vector. They are made ahead.
	words func(v *simd, u iqUnits, i int) reg.VecVirtual
	// place, if there are no words, returns where the index of entry i is, a byte.
	place func(u iqUnits, i int) Mem
	// index, unless nil, returns the indices of the entries of block b of the group, with 512 bits those of block b+1 too, a dword each.
	index func(v *simd, u iqUnits, b int) reg.VecVirtual
	// signBits returns the sign bits of the group's blocks, a dword a block, which are made ahead. If they are in the unit, signs are their places.
	signBits func(v *simd, u iqUnits) reg.VecVirtual
	signs    func(u iqUnits, b int) Mem
	// adjust, unless nil, does for whole blocks what lowered is for, in products.
	adjust  func(v *simd, u iqUnits, sums, i reg.VecVirtual)
	lowered func(v *simd, u iqUnits, b int) Op
	// scales returns the scales' numbers and their factor, a lane a block.
	scales func(v *simd, u iqUnits) iqScales
}

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
	signed := f.signs != nil || f.signBits != nil
	signs := func(v *simd, w reg.Register, b int) Mem {
		if f.signs != nil {
			return f.signs(iqUnits{w, size}, b)
		}
		return v.room.Offset(f.wordBytes(v) + 4*b)
	}
	codes := func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
		book := GP64()
		LEAQ(Mem{Symbol: Symbol{Name: "·" + f.book}, Base: reg.StaticBase}, book)
		for b := 0; b < v.lanes; b += v.lanes / 8 {
			emit(b, f.entries(v, iqUnits{w, size}, book, b))
		}
	}
	u := &unitFormat{
		name: f.name, unit: f.unit, unitBlocks: 8, max: f.max, held: true, kind: f.kind,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			codes(v, w, func(_ int, u reg.VecVirtual) { emit(u) })
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			f.ahead(v, iqUnits{w, size})
			var in [8]reg.VecVirtual
			codes(v, w, func(b int, u reg.VecVirtual) {
				switch {
				case signed:
					u = v.signed(u, signs(v, w, b), 1<<f.shift)
				case f.lowered == nil:
				case v.wide():
					VPSUBQ(v.dwords(0x02020202), u, f.lowered(v, iqUnits{w, size}, b), u)
				default:
					VPSUBB(v.and(v.dwords(0x02020202), f.lowered(v, iqUnits{w, size}, b).(reg.VecVirtual)), u, u)
				}
				in[b/(v.lanes/8)] = u
			})
			v.transposed(in, emit)
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual {
			s := f.scales(v, iqUnits{w, size})
			scales := []reg.VecVirtual{s.a}
			if f.halves {
				scales = append(scales, s.b)
			}
			for _, x := range scales {
				s.number(v, x)
				VMULPS(s.d, x, x)
			}
			return scales
		},
	}
	if f.words != nil || f.signBits != nil {
		u.room = f.roomBytes
		u.ahead = func(v *simd, w reg.Register) { f.ahead(v, iqUnits{w, size}) }
	}
	if signed {
		u.negate = func(v *simd, w reg.Register) func(int, reg.VecVirtual) {
			return func(k int, x reg.VecVirtual) { v.negate(x, signs(v, w, k*v.lanes/8)) }
		}
	} else {
		u.bias = 1 << f.shift
	}
	if f.adjust != nil {
		u.adjust = func(v *simd, w reg.Register, sums, i reg.VecVirtual) { f.adjust(v, iqUnits{w, size}, sums, i) }
	}
	return u
}

// wordBytes returns how much of v.room the words take.
func (f *iqFormat) wordBytes(v *simd) int {
	if f.words == nil {
		return 0
	}
	return v.lanes * 64 / f.entry
}

func (f *iqFormat) roomBytes(v *simd) int {
	if f.signBits == nil {
		return f.wordBytes(v)
	}
	return f.wordBytes(v) + 4*v.lanes
}

// ahead makes words and sign bits.
func (f *iqFormat) ahead(v *simd, u iqUnits) {
	if v.room.Base == nil {
		v.room = AllocLocal(f.roomBytes(v))
	}
	for at := 0; at < f.wordBytes(v); at += v.w / 8 {
		v.store(f.words(v, u, at/2), v.room.Offset(at))
	}
	if f.signBits != nil {
		v.store(f.signBits(v, u), v.room.Offset(f.wordBytes(v)))
	}
}

// entries returns the entries of block b, with 512 bits those of block b+1 too.
func (f *iqFormat) entries(v *simd, u iqUnits, book reg.Register, b int) reg.VecVirtual {
	i := b * 32 / f.entry
	switch {
	case f.words == nil && (f.index != nil && (v.wide() || f.place == nil)):
		return v.gather(book, f.index(v, u, b), f.entry)
	case v.wide() || f.entry == 4:
		x := vec(v.w * 4 / f.entry)
		VPMOVZXWD(v.room.Offset(2*i), x)
		return v.gather(book, x, f.entry)
	}
	// Loads one by one are faster than AVX2's gathering of eight bytes.
	var x [4]reg.VecVirtual
	for k := range x {
		x[k] = YMM()
		index := GP32()
		if f.words != nil {
			MOVWLZX(v.room.Offset(2*(i+k)), index)
		} else {
			MOVBLZX(f.place(u, i+k), index)
		}
		VPBROADCASTQ(Mem{Base: book, Index: index.As64(), Scale: 8}, x[k])
	}
	VPBLENDD(Imm(0x0c), x[1], x[0], x[0])
	VPBLENDD(Imm(0xc0), x[3], x[2], x[2])
	VPBLENDD(Imm(0xf0), x[2], x[0], x[0])
	return x[0]
}

// number makes the factors of the numbers x.
func (s *iqScales) number(v *simd, x reg.VecVirtual) {
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
	VFMADD213PS(v.dwords(math.Float32bits(s.offset)), v.inRegister(v.dwords(math.Float32bits(s.slope))), x)
}

// transposed emits the tile of blocks that came one after the other, with 512 bits two a vector.
func (v *simd) transposed(in [8]reg.VecVirtual, emit func(int, reg.VecVirtual)) {
	if !v.wide() {
		transpose256(in, emit)
		return
	}
	// The quarters of these have lane i of the blocks 0 2 4 6, their lane 4+i, and the same of 1 3 5 7; then of the other eight blocks.
	a, b := transposeQuarters(in[:4]), transposeQuarters(in[4:])
	natural := v.inRegister(v.dwords(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15))
	for i := range 4 {
		for half, quarters := range []uint64{0x88, 0xdd} {
			t := ZMM()
			VSHUFI32X4(Imm(quarters), b[i], a[i], t)
			VPERMD(t, natural, t)
			emit(4*half+i, t)
		}
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
		if entry == 8 {
			VPGATHERDQ(all, m, u)
		} else {
			VPGATHERDD(all, m, u)
		}
		return u
	}
	k := K()
	ones("KXNORW", k)
	if entry == 8 {
		VPGATHERDQ(m, k, u)
	} else {
		VPGATHERDD(m, k, u)
	}
	return u
}

// store writes x, with 512 bits in halves: the processor does not forward the upper half of one store to loads.
func (v *simd) store(x reg.VecVirtual, to Mem) {
	load(x.AsY(), to)
	if v.wide() {
		VEXTRACTI64X4(Imm(1), x, to.Offset(32))
	}
}

// highBits are the bits of indices above a byte, of a unit. Word i of the bits of mask are the two bytes that from says of so many, the
// second one being absent if negative, times a power of two, which the words repeat.
type highBits struct {
	bytes   int
	from    func(i int) (int, int)
	factors []uint16
	mask    uint16
}

// words returns a vector of words from entry i of the group on, of which a unit has so many: a byte at low for each, and the bits h, which
// are at high.
func (h *highBits) words(v *simd, u iqUnits, i, entries, low, high int) reg.VecVirtual {
	at := i / entries * u.bytes
	i %= entries
	x, bits := v.new(), v.new()
	VPMOVZXBW(off(u.w, at+low+i), x)
	if h.bytes == 8 {
		VPBROADCASTQ(off(u.w, at+high), bits)
	} else {
		broadcast128(off(u.w, at+high), bits)
	}
	var from []byte
	for k := range 2 * v.lanes {
		a, b := h.from(i + k)
		from = append(from, byte(a), byte(max(b, -128)))
	}
	VPSHUFB(v.keep(from), bits, bits)
	VPMULLW(v.words(h.factors...), bits, bits)
	return v.include(x, bits, uint32(h.mask)*0x00010001)
}

// ones sets all bits of r by an instruction whose result does not depend on it; avo must be told.
func ones(opcode string, r Op) {
	Instruction(&ir.Instruction{Opcode: opcode, Operands: []Op{r, r, r}, Outputs: []Op{r}})
}

// negate changes the sign of x's bytes where the bits of signs are set.
func (v *simd) negate(x reg.VecVirtual, signs Mem) {
	if v.wide() {
		k := K()
		KMOVQ(signs, k)
		VPSUBB(x, v.inRegister(v.dwords(0)), k, x)
		return
	}
	m := v.bytesOf(signs)
	VPOR(v.inRegister(v.dwords(0x01010101)), m, m)
	VPSIGNB(m, x, x)
}

// signed returns bias + u, or bias - u where the bits of signs are set.
func (v *simd) signed(u reg.VecVirtual, signs Mem, bias int) reg.VecVirtual {
	b, x := v.dwords(uint32(bias)*0x01010101), v.new()
	if v.wide() {
		k := K()
		KMOVQ(signs, k)
		VPADDB(b, u, x)
		VPSUBB(u, v.inRegister(b), k, x)
		return x
	}
	m := v.bytesOf(signs)
	VPXOR(m, u, u)
	VPSUBB(m, u, x)
	VPADDB(b, x, x)
	return x
}

// bytesOf returns a byte for each of 32 bits, all ones if it is set.
func (v *simd) bytesOf(bits Mem) reg.VecVirtual {
	m := YMM()
	VPBROADCASTD(bits, m)
	VPSHUFB(v.inRegister(v.dwords(0, 0, 0x01010101, 0x01010101, 0x02020202, 0x02020202, 0x03030303, 0x03030303)), m, m)
	bit := v.inRegister(v.dwords(0x08040201, 0x80402010))
	VPAND(bit, m, m)
	VPCMPEQB(bit, m, m)
	return m
}

// part returns op, a constant of full length, in the length of a vector.
func part(op Op, like reg.VecVirtual) Op {
	r, ok := op.(reg.VecVirtual)
	switch {
	case !ok:
		return op
	case like.Size() == 32:
		return r.AsY()
	}
	return r
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
	VPSHUFB(t, v.inRegister(v.dwords(0x00808000, 0x80000080, 0x80000080, 0x00808000)), odd) // 0x80 for nibbles of an odd number of bits
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
		name: "iq2_xxs", book: "iq2xxsBook", entry: 8, unit: []int{2, 32, 32}, max: 43, shift: 6,
		index: func(v *simd, u iqUnits, b int) reg.VecVirtual {
			x := YMM()
			broadcast128(u.block(b, 2, 8), x)
			bytes := v.dwords(0x80808000, 0x80808001, 0x80808002, 0x80808003, 0x80808008, 0x80808009, 0x8080800a, 0x8080800b)
			VPSHUFB(part(bytes, x), x, x)
			return x
		},
		place:    func(u iqUnits, i int) Mem { return u.block(i/4, 2, 8).Offset(i % 4) },
		signBits: func(v *simd, u iqUnits) reg.VecVirtual { return v.fourSigns(odd(v, u)) },
		scales: func(v *simd, u iqUnits) iqScales {
			return iqScales{v.unitHalves(u.w, u.bytes, 0), topNibbles(odd(v, u)), nil, 15, 0.25, 0.125}
		},
	}
}

// iq2_xs: binary16 d; 32 words of an index of nine bits and seven signs; scale nibbles.
func iq2_xs() *iqFormat {
	return &iqFormat{
		name: "iq2_xs", book: "iq2xsBook", entry: 8, unit: []int{2, 32, 32, 4, 4}, max: 43, shift: 6, kind: halves,
		words: func(v *simd, u iqUnits, i int) reg.VecVirtual {
			x := v.load(u.block(i/4, 2, 8))
			and(v.words(511), x, x)
			return x
		},
		signBits: func(v *simd, u iqUnits) reg.VecVirtual {
			var x [2]reg.VecVirtual
			for i := range x {
				x[i] = v.load(u.block(i*v.lanes/2, 2, 8))
				VPSRLW(Imm(9), x[i], x[i])
			}
			// Words below 128 are narrowed by saturation, which takes the vectors' 128 bits in turn.
			bytes := v.new()
			VPACKUSWB(x[1], x[0], bytes)
			if v.wide() {
				VPERMQ(bytes, v.inRegister(v.dwords(0, 0, 2, 0, 4, 0, 6, 0, 1, 0, 3, 0, 5, 0, 7, 0)), bytes)
			} else {
				VPERMQ(Imm(0xd8), bytes, bytes)
			}
			return v.parity(bytes)
		},
		scales: func(v *simd, u iqUnits) iqScales { return v.nibbleHalves(u, 66) },
	}
}

// iq2_s: binary16 d; the low bytes of the indices; signs; bit pairs above the indices' bytes; scale nibbles.
func iq2_s() *iqFormat {
	pairs := &highBits{8, func(i int) (int, int) { return i / 4, -1 }, []uint16{256, 64, 16, 4}, 0x300}
	return &iqFormat{
		name: "iq2_s", book: "iq2sBook", entry: 8, unit: []int{2, 32, 32, 16}, max: 43, shift: 6, kind: halves,
		words:  func(v *simd, u iqUnits, i int) reg.VecVirtual { return pairs.words(v, u, i, 32, 2, 66) },
		signs:  func(u iqUnits, b int) Mem { return u.block(b, 34, 4) },
		scales: func(v *simd, u iqUnits) iqScales { return v.nibbleHalves(u, 74) },
	}
}

// iq3_xxs: binary16 d; indices; per block a dword of 4×7 signs and the scale.
func iq3_xxs() *iqFormat {
	return &iqFormat{
		name: "iq3_xxs", book: "iq3xxsBook", entry: 4, unit: []int{2, 32, 32, 32}, max: 62, shift: 6,
		index: func(v *simd, u iqUnits, b int) reg.VecVirtual {
			x := v.new()
			VPMOVZXBD(u.block(b, 2, 8), x)
			return x
		},
		signBits: func(v *simd, u iqUnits) reg.VecVirtual { return v.fourSigns(v.dwordsPerBlock(u, 66)) },
		scales: func(v *simd, u iqUnits) iqScales {
			return iqScales{v.unitHalves(u.w, u.bytes, 0), topNibbles(v.dwordsPerBlock(u, 66)), nil, 15, 0.5, 0.25}
		},
	}
}

// iq3_s: binary16 d; the low bytes of the indices; their high bits, a byte a block; signs; scale nibbles.
func iq3_s() *iqFormat {
	return &iqFormat{
		name: "iq3_s", book: "iq3sBook", entry: 4, unit: []int{2, 32, 32, 32, 4, 4, 4}, max: 15, shift: 4,
		index: func(v *simd, u iqUnits, b int) reg.VecVirtual {
			x := v.new()
			VPMOVZXBD(u.block(b, 2, 8), x)
			if v.wide() {
				k := K()
				KMOVW(u.block(b, 66, 1), k)
				VPORD(v.dwords(256), x, k, x)
				return x
			}
			high := v.new()
			VPBROADCASTB(u.block(b, 66, 1), high)
			VPSRLVD(v.inRegister(v.dwords(8, 9, 10, 11, 12, 13, 14, 15)), high, high)
			return v.include(x, high, 0x100)
		},
		signs: func(u iqUnits, b int) Mem { return u.block(b, 74, 4) },
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
	words := func(v *simd, u iqUnits) reg.VecVirtual {
		x := v.new()
		if v.wide() {
			words := YMM()
			broadcast128(off(u.w, 34), words)
			insert128(1, off(u.w, u.bytes+34), words, words)
			VPMOVZXWD(words, x)
		} else {
			VPMOVZXWD(off(u.w, 34), x)
		}
		return x
	}
	threes := &highBits{16, func(i int) (int, int) {
		if i%4 == 3 { // only its upper byte, so that there is a shift to the left for it too
			return i/4*2 + 1, -1
		}
		return i / 4 * 2, i/4*2 + 1
	}, []uint16{256, 32, 4, 128}, 0x700}
	return &iqFormat{
		name: "iq1_s", book: "iq1Book", entry: 8, unit: []int{2, 32, 16}, max: 31, shift: 4,
		words: func(v *simd, u iqUnits, i int) reg.VecVirtual { return threes.words(v, u, i, 32, 2, 34) },
		lowered: func(v *simd, u iqUnits, b int) Op {
			if v.wide() {
				k, high := K(), YMM()
				VPBROADCASTD(u.block(b, 34, 2), high)
				VPTESTMD(part(v.dwords(0x8000, 0x8000, 0x8000, 0x8000, 1<<31, 1<<31, 1<<31, 1<<31), high), high, k)
				return k
			}
			high := v.new()
			VPBROADCASTW(u.block(b, 34, 2), high)
			VPSRAW(Imm(15), high, high)
			return high
		},
		adjust: func(v *simd, u iqUnits, sums, i reg.VecVirtual) {
			x, twice := words(v, u), v.new()
			VPADDD(sums, sums, twice)
			if v.wide() {
				k := K()
				VPTESTMD(v.dwords(0x8000), x, k)
				VPSUBD(twice, i, k, i)
				return
			}
			VPSLLD(Imm(16), x, x)
			VPSRAD(Imm(31), x, x)
			VPSUBD(v.and(twice, x), i, i)
		},
		scales: func(v *simd, u iqUnits) iqScales {
			x := words(v, u)
			VPSRLD(Imm(11), x, x)
			return iqScales{v.unitHalves(u.w, u.bytes, 0), x, nil, 14, 0.125, 0.125}
		},
	}
}

// iq1_m: the low bytes of the indices; nibbles of three bits above them and the offset's sign; four words with d's nibbles on top and
// 4×3 bits of scales below.
func iq1_m() *iqFormat {
	nibbles := &highBits{16, func(i int) (int, int) { return i / 2, -1 }, []uint16{256, 16}, 0xf00}
	return &iqFormat{
		name: "iq1_m", book: "iq1Book", entry: 8, unit: []int{32, 16, 4, 4}, max: 31, shift: 4, kind: halves,
		words: func(v *simd, u iqUnits, i int) reg.VecVirtual { return nibbles.words(v, u, i, 32, 0, 32) },
		scales: func(v *simd, u iqUnits) iqScales {
			x, d := v.new(), v.new()
			VPBROADCASTQ(off(u.w, 48), x)
			VBROADCASTSS(iq1mScale(off(u.w, 48)), d)
			if v.wide() {
				VPBROADCASTQ(off(u.w, u.bytes+48), v.mask(0xf0), x)
				VBROADCASTSS(iq1mScale(off(u.w, u.bytes+48)), v.mask(0xff00), d)
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

// iq1mScale returns the binary16 whose nibbles are on top of four words.
func iq1mScale(words Mem) reg.VecVirtual {
	x, factor, d := GP64(), GP64(), XMM()
	MOVQ(words, x)
	MOVQ(U64(0xf000f000f000f000), factor)
	ANDQ(factor, x)
	SHRQ(Imm(12), x)
	MOVQ(U64(1<<48|1<<36|1<<24|1<<12), factor) // brings the nibbles, at bits 0 16 32 48, to 48 52 56 60, and others only below
	IMULQ(factor, x)
	SHRQ(Imm(48), x)
	VMOVD(x.As32(), d)
	VCVTPH2PS(d, d)
	return d
}
