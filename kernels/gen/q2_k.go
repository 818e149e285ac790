package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() {
	unitTarget(q2_k())
	unitTarget(q3_k())
	unitTarget(tq2_0())
}

// twoBits are the codes of formats that keep two bits of a value in 2×32 bytes, at w+at in each unit of so many bytes: of four blocks, block
// t has bits 2t and 2t+1.
type twoBits struct{ unit, at int }

// codes emits the codes of a group, block after block.
func (t twoBits) codes(v *simd, w reg.Register, emit func(k int, u reg.VecVirtual)) {
	for k := 0; k < v.lanes; k += v.lanes / 8 {
		x, from, bit := v.new(), off(w, k/8*t.unit+t.at+k%8/4*32), k%4*2
		if v.wide() {
			VBROADCASTI64X4(from, x)
			a, b := uint32(bit), uint32(bit+2)
			VPSRLVD(v.dwords(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b), x, x)
		} else {
			load(from, x)
			VPSRLD(Imm(uint64(bit)), x, x)
		}
		emit(k, v.and(v.dwords(0x03030303), x))
	}
}

// tile emits the codes of a group transposed.
func (t twoBits) tile(v *simd, w reg.Register, emit func(j int, u reg.VecVirtual)) {
	for g := range 2 {
		bits := v.quarters(w, func(i int) int { return i/2*t.unit + t.at + i%2*32 + g*16 })
		for j := range 4 {
			x := v.new()
			VPSHUFD(Imm(uint64(0x55*j)), bits, x)
			VPSRLVD(v.dwords(0, 2, 4, 6), x, x)
			emit(4*g+j, v.and(v.dwords(0x03030303), x))
		}
	}
}

// q2_k: a unit of eight blocks is a byte for each 16 columns with their scale in the low and their minimum in the high nibble, 64 bytes of
// twoBits, and binary16 d and dmin.
func q2_k() *unitFormat {
	bits := twoBits{84, 16}
	return &unitFormat{
		name: "q2_k", unit: []int{16, 32, 32, 4}, unitBlocks: 8, max: 3, kind: halvesWithMin,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			bits.codes(v, w, func(_ int, u reg.VecVirtual) { emit(u) })
		},
		tile: bits.tile,
		scales: func(v *simd, w reg.Register) []reg.VecVirtual {
			d, dmin := v.new(), v.new()
			both := YMM()
			VPBROADCASTD(off(w, 80), both)
			if v.wide() {
				second := XMM()
				VPBROADCASTD(off(w, 84+80), second)
				insert128(1, second, both, both)
				VCVTPH2PS(both, d)
			} else {
				VCVTPH2PS(both.AsX(), d)
			}
			VMOVSHDUP(d, dmin)
			VMOVSLDUP(d, d)

			// Of a block: scale, minimum, scale and minimum in the nibbles of a word.
			nibbles := v.blockWords(v.units128(w, 84, 0))
			var s []reg.VecVirtual
			for _, shift := range []uint64{0, 8, 4, 12} {
				x, factor := nibbles, d
				if shift > 0 {
					x = v.new()
					VPSRLD(Imm(shift), nibbles, x)
				}
				if shift < 12 {
					x = v.and(v.dwords(15), x)
				}
				if len(s) >= 2 {
					factor = dmin
				}
				VCVTDQ2PS(x, x)
				VMULPS(factor, x, x)
				s = append(s, x)
			}
			return s
		},
	}
}

// q3_k: a unit of eight blocks is 32 bytes with the third bits, of which bit j is block j's, 64 bytes of twoBits, 16 six-bit scales in 12
// bytes, and binary16 d. 4 is subtracted from the values, 32 from the scales.
func q3_k() *unitFormat {
	bits := twoBits{110, 32}
	return &unitFormat{
		name: "q3_k", unit: []int{32, 32, 32, 4, 4, 4, 2}, unitBlocks: 8, max: 7, bias: 4, kind: halves,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			bits.codes(v, w, func(k int, low reg.VecVirtual) {
				high, third := v.new(), off(w, k/8*110)
				if v.wide() {
					VBROADCASTI64X4(third, high)
					a, b := 2-k%8, 1-k%8
					high = v.rolled(high, a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b)
				} else {
					high = v.rolled(v.load(third), 2-k%8)
				}
				emit(v.include(low, high, 0x04040404))
			})
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			var third reg.VecVirtual
			bits.tile(v, w, func(j int, low reg.VecVirtual) {
				if j%4 == 0 {
					third = v.quarters(w, func(i int) int { return i/2*110 + j/4*16 })
				}
				high := v.new()
				VPSHUFD(Imm(uint64(0x55*(j%4))), third, high)
				emit(j, v.include(low, v.rolled(high, 2, 1, 0, -1, -2, -3, -4, -5), 0x04040404))
			})
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual {
			// Of the 12 bytes A B C, in dwords, the low four bits of the scales are the low nibbles of A and B and then the high ones, and
			// the upper two bits are four times C's bit pairs, in rising order.
			x, y := v.units128(w, 110, 94), newSimd(256) // the 12 bytes are 2 bytes up
			low, high := YMM(), YMM()
			VPSHUFB(y.dwords(0x05040302, 0x09080706, 0x05040302, 0x09080706), x, low)
			VPSHUFB(y.dwords(0x0d0c0b0a), x, high)
			VPSRLVD(y.dwords(0, 0, 4, 4), low, low)
			low = y.and(y.dwords(0x0f0f0f0f), low)
			high = y.and(y.dwords(0x30303030), y.rolled(high, 4, 2, 0, -2))
			s := y.or(low, high)
			VPSUBB(y.dwords(0x20202020), s, s)
			a, b := v.bytePairs(s, v.unitHalves(w, 110, 108))
			return []reg.VecVirtual{a, b}
		},
	}
}

// tq2_0: a unit of eight blocks is 64 bytes of twoBits, of which 1 is subtracted, and binary16 d.
func tq2_0() *unitFormat {
	bits := twoBits{66, 0}
	return &unitFormat{
		name: "tq2_0", unit: []int{32, 32, 2}, unitBlocks: 8, max: 3, bias: 1,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			bits.codes(v, w, func(_ int, u reg.VecVirtual) { emit(u) })
		},
		tile:   bits.tile,
		scales: func(v *simd, w reg.Register) []reg.VecVirtual { return []reg.VecVirtual{v.unitHalves(w, 66, 64)} },
	}
}
