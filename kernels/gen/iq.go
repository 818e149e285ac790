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

	// indices returns the indices of the entries of block b of the group at w, with 512 bits those of block b+1 too, a dword each; and
	// for IQ1 what lowered uses.
	indices func(v *simd, u iqUnits, b int) (indices, high reg.VecVirtual)
	// places, for AVX2 unless nil, prepares the places of the indices of a group's entries, to be used instead.
	places func(v *simd, u iqUnits) places
	// signs returns the places of the blocks' sign bits, 32 each, which it prepares; nil for IQ1.
	signs func(v *simd, u iqUnits) func(b int) Mem
	// lowered says where the codes of the same blocks as indices', whose second result it has with 512 bits, are two less: a mask of
	// quadwords then, else a vector of bytes; nil for IQ2 and IQ3.
	lowered func(v *simd, u iqUnits, b int, high reg.VecVirtual) Op
	// adjust, unless nil, does for whole blocks what lowered is for, in products.
	adjust func(v *simd, u iqUnits, sums, i reg.VecVirtual)
	// scales returns the scales' numbers and their factor, a lane a block.
	scales func(v *simd, u iqUnits) iqScales
}

// iqScales are d·(slope·a + offset) and, for halves, the same with b.
type iqScales struct {
	d, a, b       reg.VecVirtual
	slope, offset float32
}

// places are of indices in memory: number i is so many bytes at at(i), and the offset of its entry scale times as much.
type places struct {
	at    func(i int) Mem
	bytes int
	scale uint8
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
	codes := func(v *simd, w reg.Register, packed bool, emit func(reg.VecVirtual)) {
		units := iqUnits{w, size}
		book := GP64()
		LEAQ(Mem{Symbol: Symbol{Name: "·" + f.book}, Base: reg.StaticBase}, book)
		var signs func(int) Mem
		if f.signs != nil && packed {
			signs = f.signs(v, units)
		}
		var from places
		scalar := !v.wide() && f.places != nil
		if scalar {
			from = f.places(v, units)
		}
		for b := 0; b < v.lanes; b += v.lanes / 8 {
			var u, high reg.VecVirtual
			if scalar {
				u = v.lookUp(book, from, b)
			} else {
				var indices reg.VecVirtual
				indices, high = f.indices(v, units, b)
				u = v.gather(book, indices, f.entry)
			}
			switch {
			case signs != nil:
				u = v.signed(u, signs(b), 1<<f.shift)
			case f.lowered == nil || f.adjust != nil && !packed:
			case v.wide():
				VPSUBQ(v.dwords(0x02020202), u, f.lowered(v, units, b, high), u)
			default:
				VPSUBB(v.and(v.dwords(0x02020202), f.lowered(v, units, b, nil).(reg.VecVirtual)), u, u)
			}
			emit(u)
		}
	}
	u := &unitFormat{
		name: f.name, unit: f.unit, unitBlocks: 8, max: f.max, held: true, kind: f.kind,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) { codes(v, w, false, emit) },
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			var in [8]reg.VecVirtual
			k := 0
			codes(v, w, true, func(u reg.VecVirtual) {
				in[k] = u
				k++
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
				VCVTDQ2PS(x, x)
				VFMADD213PS(v.dwords(math.Float32bits(s.offset)), v.inRegister(v.dwords(math.Float32bits(s.slope))), x)
				VMULPS(s.d, x, x)
			}
			return scales
		},
	}
	if f.signs != nil {
		u.negate = func(v *simd, w reg.Register) func(int, reg.VecVirtual) {
			signs := f.signs(v, iqUnits{w, size})
			return func(k int, x reg.VecVirtual) { v.negate(x, signs(k*v.lanes/8)) }
		}
	} else {
		u.bias = 1 << f.shift
	}
	if f.adjust != nil {
		u.adjust = func(v *simd, w reg.Register, sums, i reg.VecVirtual) { f.adjust(v, iqUnits{w, size}, sums, i) }
	}
	return u
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

// lookUp returns the entries of eight bytes of the codebook for block b, for AVX2. Loads one by one are faster than gathering these.
func (v *simd) lookUp(book reg.Register, from places, b int) reg.VecVirtual {
	n := 4 * b
	next := func() Mem {
		i := GP32()
		if from.bytes == 1 {
			MOVBLZX(from.at(n), i)
		} else {
			MOVWLZX(from.at(n), i)
		}
		n++
		return Mem{Base: book, Index: i.As64(), Scale: from.scale}
	}
	var halves [2]reg.VecVirtual
	for h := range halves {
		x := YMM()
		loadLow64(next(), x)
		VPINSRQ(Imm(1), next(), x.AsX(), x.AsX())
		halves[h] = x
	}
	VINSERTI128(Imm(1), halves[1].AsX(), halves[0], halves[0])
	return halves[0]
}

// loadLow64 loads the low 64 bits of v and clears the rest, as loadLow does.
func loadLow64(from Op, v reg.VecVirtual) {
	Instruction(&ir.Instruction{Opcode: "VMOVQ", Operands: []Op{from, v.AsX()}, Inputs: []Op{from}, Outputs: []Op{v}})
}

// wordsAt returns the places of a unit's 32 indices of a word, which make makes sixteen at a time.
func (v *simd) wordsAt(scale uint8, make func(i int) reg.VecVirtual) places {
	m := AllocLocal(64)
	for i := 0; i < 32; i += 16 {
		load(make(i), m.Offset(2*i))
	}
	return places{func(i int) Mem { return m.Offset(2 * i) }, 2, scale}
}

// highBits returns x with the bits of mask of sixteen words: those that have the bytes from of all 128 bits of high, multiplied by factors.
func (v *simd) highBits(x, high reg.VecVirtual, from [32]uint8, mask uint16, factors ...uint16) reg.VecVirtual {
	VPSHUFB(v.keep(from[:]), high, high)
	VPMULLW(v.words(factors...), high, high)
	return v.or(v.and(v.words(mask), high), x)
}

// repeated repeats n bytes for words: word i has byte i/count and, if two, the one behind it, of elements of so many bytes.
func repeated(count, bytes int) (from [32]uint8) {
	for i := range 16 {
		from[2*i], from[2*i+1] = uint8(i/count*bytes), 0x80
		if bytes == 2 {
			from[2*i+1] = from[2*i] + 1
		}
	}
	return from
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

// fewer is a vector of the indices of entries of eight bytes: half as long.
func (v *simd) fewer() reg.VecVirtual { return vec(v.w / 2) }

// field returns the bits of mask of x's lanes after a shift to the right.
func (v *simd) field(x reg.VecVirtual, mask uint32, counts ...uint32) reg.VecVirtual {
	t := vec(int(x.Size()) * 8)
	VPSRLVD(part(v.dwords(counts...), x), x, t)
	and(part(v.dwords(mask), x), t, t)
	return t
}

// addBits returns x | high & mask.
func (v *simd) addBits(mask uint32, high, x reg.VecVirtual) reg.VecVirtual {
	m := part(v.dwords(mask), x)
	if v.wide() {
		VPTERNLOGD(Imm(0xf8), m, high, x)
		return x
	}
	t := vec(int(x.Size()) * 8)
	VPAND(m, high, t)
	VPOR(t, x, x)
	return x
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

// store keeps x in the function's frame, four bytes a block.
func (v *simd) store(x reg.VecVirtual) func(b int) Mem {
	m := AllocLocal(v.w / 8)
	load(x, m)
	return func(b int) Mem { return m.Offset(4 * b) }
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
		y = v.addBits(mask, t, y)
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
	return iqScales{v.unitHalves(u.w, u.bytes, 0), v.and(v.dwords(15), x), high, 0.25, 0.125}
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
		indices: func(v *simd, u iqUnits, b int) (indices, high reg.VecVirtual) {
			x := v.fewer()
			broadcast128(u.block(b, 2, 8), x)
			bytes := v.dwords(0x80808000, 0x80808001, 0x80808002, 0x80808003, 0x80808008, 0x80808009, 0x8080800a, 0x8080800b)
			VPSHUFB(part(bytes, x), x, x)
			return x, nil
		},
		places: func(_ *simd, u iqUnits) places {
			return places{func(i int) Mem { return u.block(i/4, 2, 8).Offset(i % 4) }, 1, 8}
		},
		signs: func(v *simd, u iqUnits) func(int) Mem { return v.store(v.fourSigns(odd(v, u))) },
		scales: func(v *simd, u iqUnits) iqScales {
			return iqScales{v.unitHalves(u.w, u.bytes, 0), topNibbles(odd(v, u)), nil, 0.25, 0.125}
		},
	}
}

// iq2_xs: binary16 d; 32 words of an index of nine bits and seven signs; scale nibbles.
func iq2_xs() *iqFormat {
	return &iqFormat{
		name: "iq2_xs", book: "iq2xsBook", entry: 8, unit: []int{2, 32, 32, 4, 4}, max: 43, shift: 6, kind: halves,
		indices: func(v *simd, u iqUnits, b int) (indices, high reg.VecVirtual) {
			x := v.fewer()
			VPMOVZXWD(u.block(b, 2, 8), x)
			and(part(v.dwords(511), x), x, x)
			return x, nil
		},
		places: func(v *simd, u iqUnits) places {
			return v.wordsAt(8, func(i int) reg.VecVirtual { return v.and(u.block(i/4, 2, 8), v.inRegister(v.words(511))) })
		},
		signs: func(v *simd, u iqUnits) func(int) Mem {
			var x [2]reg.VecVirtual
			for i := range x {
				w := v.new()
				VPSRLW(Imm(9), u.block(i*v.lanes/2, 2, 8), w)
				x[i] = w
			}
			// Words below 128 are narrowed by saturation, which takes the vectors' 128 bits in turn.
			bytes := v.new()
			VPACKUSWB(x[1], x[0], bytes)
			if v.wide() {
				VPERMQ(bytes, v.inRegister(v.dwords(0, 0, 2, 0, 4, 0, 6, 0, 1, 0, 3, 0, 5, 0, 7, 0)), bytes)
			} else {
				VPERMQ(Imm(0xd8), bytes, bytes)
			}
			return v.store(v.parity(bytes))
		},
		scales: func(v *simd, u iqUnits) iqScales { return v.nibbleHalves(u, 66) },
	}
}

// iq2_s: binary16 d; the low bytes of the indices; signs; bit pairs above the indices' bytes; scale nibbles.
func iq2_s() *iqFormat {
	return &iqFormat{
		name: "iq2_s", book: "iq2sBook", entry: 8, unit: []int{2, 32, 32, 16}, max: 43, shift: 6, kind: halves,
		indices: func(v *simd, u iqUnits, b int) (indices, high reg.VecVirtual) {
			x := v.fewer()
			high = v.fewer()
			VPMOVZXBD(u.block(b, 2, 4), x)
			// Copies of the bytes of pairs fill the dwords; bits 2i and on of the one above bit 16 go to bit 8.
			VPBROADCASTW(u.block(b, 66, 1), high)
			VPSRLVD(part(v.dwords(8, 10, 12, 14, 16, 18, 20, 22), high), high, high)
			return v.addBits(0x300, high, x), nil
		},
		places: func(v *simd, u iqUnits) places {
			return v.wordsAt(8, func(i int) reg.VecVirtual {
				x, high := v.new(), v.new()
				VPMOVZXBW(u.block(i/4, 2, 4), x)
				VPBROADCASTD(u.block(i/4, 66, 1), high)
				return v.highBits(x, high, repeated(4, 1), 0x300, 256, 64, 16, 4)
			})
		},
		signs:  func(_ *simd, u iqUnits) func(int) Mem { return func(b int) Mem { return u.block(b, 34, 4) } },
		scales: func(v *simd, u iqUnits) iqScales { return v.nibbleHalves(u, 74) },
	}
}

// iq3_xxs: binary16 d; indices; per block a dword of 4×7 signs and the scale.
func iq3_xxs() *iqFormat {
	return &iqFormat{
		name: "iq3_xxs", book: "iq3xxsBook", entry: 4, unit: []int{2, 32, 32, 32}, max: 62, shift: 6,
		indices: func(v *simd, u iqUnits, b int) (indices, high reg.VecVirtual) {
			x := v.new()
			VPMOVZXBD(u.block(b, 2, 8), x)
			return x, nil
		},
		signs: func(v *simd, u iqUnits) func(int) Mem { return v.store(v.fourSigns(v.dwordsPerBlock(u, 66))) },
		scales: func(v *simd, u iqUnits) iqScales {
			return iqScales{v.unitHalves(u.w, u.bytes, 0), topNibbles(v.dwordsPerBlock(u, 66)), nil, 0.5, 0.25}
		},
	}
}

// iq3_s: binary16 d; the low bytes of the indices; their high bits, a byte a block; signs; scale nibbles.
func iq3_s() *iqFormat {
	return &iqFormat{
		name: "iq3_s", book: "iq3sBook", entry: 4, unit: []int{2, 32, 32, 32, 4, 4, 4}, max: 15, shift: 4,
		indices: func(v *simd, u iqUnits, b int) (indices, high reg.VecVirtual) {
			x := v.new()
			VPMOVZXBD(u.block(b, 2, 8), x)
			if v.wide() {
				k := K()
				KMOVW(u.block(b, 66, 1), k)
				VPORD(v.dwords(256), x, k, x)
				return x, nil
			}
			high = v.new()
			VPBROADCASTB(u.block(b, 66, 1), high)
			VPSRLVD(v.inRegister(v.dwords(8, 9, 10, 11, 12, 13, 14, 15)), high, high)
			return v.addBits(0x100, high, x), nil
		},
		signs: func(_ *simd, u iqUnits) func(int) Mem { return func(b int) Mem { return u.block(b, 74, 4) } },
		scales: func(v *simd, u iqUnits) iqScales {
			x := v.new()
			VPBROADCASTD(off(u.w, 106), x)
			if v.wide() {
				VPBROADCASTD(off(u.w, u.bytes+106), v.mask(0xff00), x)
			}
			return iqScales{v.unitHalves(u.w, u.bytes, 0), v.field(x, 15, 0, 4, 8, 12, 16, 20, 24, 28), nil, 2, 1}
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
	return &iqFormat{
		name: "iq1_s", book: "iq1Book", entry: 8, unit: []int{2, 32, 16}, max: 31, shift: 4,
		indices: func(v *simd, u iqUnits, b int) (indices, high reg.VecVirtual) {
			x, bits := v.fewer(), v.fewer()
			VPMOVZXBD(u.block(b, 2, 4), x)
			high = v.fewer()
			VPBROADCASTD(u.block(b, 34, 2), high)
			VPRORVD(part(v.dwords(24, 27, 30, 1, 8, 11, 14, 17), high), high, bits)
			return v.addBits(0x700, bits, x), high
		},
		places: func(v *simd, u iqUnits) places {
			// Twice the indices: the upper bits of all come to bit 9 by shifts to the left.
			return v.wordsAt(4, func(i int) reg.VecVirtual {
				x, high := v.new(), v.new()
				VPMOVZXBW(u.block(i/4, 2, 4), x)
				VPADDW(x, x, x)
				VPBROADCASTQ(u.block(i/4, 34, 2), high)
				return v.highBits(x, high, repeated(4, 2), 0xe00, 512, 64, 8, 1)
			})
		},
		lowered: func(v *simd, u iqUnits, b int, high reg.VecVirtual) Op {
			if v.wide() {
				k := K()
				VPTESTMD(part(v.dwords(0x8000, 0x8000, 0x8000, 0x8000, 1<<31, 1<<31, 1<<31, 1<<31), high), high, k)
				return k
			}
			high = v.new()
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
			return iqScales{v.unitHalves(u.w, u.bytes, 0), v.field(words(v, u), 7, 12), nil, 0.25, 0.125}
		},
	}
}

// iq1_m: the low bytes of the indices; nibbles of three bits above them and the offset's sign; four words with d's nibbles on top and
// 4×3 bits of scales below.
func iq1_m() *iqFormat {
	return &iqFormat{
		name: "iq1_m", book: "iq1Book", entry: 8, unit: []int{32, 16, 4, 4}, max: 31, shift: 4, kind: halves,
		indices: func(v *simd, u iqUnits, b int) (indices, high reg.VecVirtual) {
			x := v.fewer()
			high = v.fewer()
			VPMOVZXBD(u.block(b, 0, 4), x)
			// The nibbles, copies of which fill the dwords, go to bit 8.
			VPBROADCASTD(u.block(b, 32, 2), high)
			VPRORVD(part(v.dwords(24, 28, 0, 4, 8, 12, 16, 20), high), high, high)
			return v.addBits(0x700, high, x), high
		},
		places: func(v *simd, u iqUnits) places {
			return v.wordsAt(8, func(i int) reg.VecVirtual {
				x, high := v.new(), v.new()
				VPMOVZXBW(u.block(i/4, 0, 4), x)
				VPBROADCASTQ(u.block(i/4, 32, 2), high)
				return v.highBits(x, high, repeated(2, 1), 0x700, 256, 16)
			})
		},
		lowered: func(v *simd, u iqUnits, b int, high reg.VecVirtual) Op {
			if v.wide() {
				k := K()
				VPTESTMD(part(v.dwords(0x800), high), high, k)
				return k
			}
			x, bit := v.new(), v.inRegister(v.dwords(1<<19, 1<<19, 1<<23, 1<<23, 1<<27, 1<<27, 1<<31, 1<<31))
			VPBROADCASTD(u.block(b, 30, 2), x) // the block's word is the upper one
			and(bit, x, x)
			VPCMPEQD(bit, x, x)
			return x
		},
		scales: func(v *simd, u iqUnits) iqScales {
			x, d := v.new(), v.new()
			VPBROADCASTQ(off(u.w, 48), x)
			VBROADCASTSS(iq1mScale(off(u.w, 48)), d)
			if v.wide() {
				VPBROADCASTQ(off(u.w, u.bytes+48), v.mask(0xf0), x)
				VBROADCASTSS(iq1mScale(off(u.w, u.bytes+48)), v.mask(0xff00), d)
			}
			// A word for two blocks.
			VPSHUFB(v.dwords(0x80800100, 0x80800100, 0x80800302, 0x80800302, 0x80800504, 0x80800504, 0x80800706, 0x80800706), x, x)
			return iqScales{d, v.field(x, 7, 0, 6), v.field(x, 7, 3, 9), 0.25, 0.125}
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
