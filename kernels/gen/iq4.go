package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/reg"
)

func init() {
	unitTarget(iq4_nl())
	unitTarget(iq4_xs())
}

// iq4Levels are the values of IQ4_NL and IQ4_XS (kvalues_iq4nl in ggml-common.h).
var iq4Levels = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// iq4 returns the codes that nibbles select.
func (v *simd) iq4(nibbles reg.VecVirtual) reg.VecVirtual {
	levels := iq4Levels
	if v.wide() {
		for i := range levels {
			levels[i] ^= -128 // with a bias of 128
		}
	}
	return v.look(levels, nibbles)
}

// iq4_nl: a block is that of Q4_0, with levels selected by the nibbles.
func iq4_nl() *unitFormat {
	return &unitFormat{
		name: "iq4_nl", unit: []int{2, 16}, unitBlocks: 1, max: 241, bias: 128, signed: true,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			for k := 0; k < v.lanes; k += v.lanes / 8 {
				emit(v.iq4(v.nibbleBlocks(w, 18*k+2, 18)))
			}
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			v.nibbleTile(w, func(block int) int { return 18*block + 2 }, func(j int, x reg.VecVirtual) { emit(j, v.iq4(x)) })
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual { return []reg.VecVirtual{v.halfScales(w, 18)} },
	}
}

// iq4_xs: a unit of eight blocks is binary16 d, a word with the upper two bits of eight six-bit scales, four bytes with their low nibbles,
// and 16 bytes a block as in IQ4_NL. 32 is subtracted from the scales.
func iq4_xs() *unitFormat {
	block := func(k int) int { return k/8*136 + 8 + k%8*16 }
	return &unitFormat{
		name: "iq4_xs", unit: []int{4, 4, 32, 32, 32, 32}, unitBlocks: 8, max: 241, bias: 128, signed: true,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			for k := 0; k < v.lanes; k += v.lanes / 8 {
				emit(v.iq4(v.nibbleBlocks(w, block(k), 16)))
			}
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			v.nibbleTile(w, block, func(j int, x reg.VecVirtual) { emit(j, v.iq4(x)) })
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual {
			high, low := v.new(), v.new()
			VPBROADCASTD(off(w, 0), high)
			VPBROADCASTD(off(w, 4), low)
			if v.wide() {
				VPBROADCASTD(off(w, 136), v.mask(0xff00), high)
				VPBROADCASTD(off(w, 140), v.mask(0xff00), low)
			}
			VPSRLVD(v.dwords(0, 4, 8, 12, 16, 20, 24, 28), low, low)
			VPSRLVD(v.dwords(12, 14, 16, 18, 20, 22, 24, 26), high, high) // from bit 16 on
			a := v.or(v.and(v.dwords(15), low), v.and(v.dwords(0x30), high))
			VPSUBD(v.dwords(32), a, a)
			VCVTDQ2PS(a, a)
			VMULPS(v.unitHalves(w, 136, 0), a, a)
			return []reg.VecVirtual{a}
		},
	}
}
