package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() { unitTarget(mxfp4()) }

// e2m1 has twice the values of fp4 E2M1, plus 16.
var e2m1 = [16]int8{16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4}

// mxfp4: a block is an E8M0 scale and 16 bytes with fp4 E2M1 values in the nibbles, ordered as in Q4_0. A code is twice the value, so
// that it is an integer, plus 16.
func mxfp4() *unitFormat {
	return &unitFormat{
		name: "mxfp4", unit: []int{1, 16}, unitBlocks: 1, max: 28, bias: 16,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			for k := 0; k < v.lanes; k += v.lanes / 8 {
				emit(v.look(e2m1, v.nibbleBlocks(w, 17*k+1, 17)))
			}
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			v.nibbleTile(w, func(block int) int { return 17*block + 1 }, func(j int, x reg.VecVirtual) { emit(j, v.look(e2m1, x)) })
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual {
			// The exponents, shifted to their place. 0 stands for the subnormal 2^-127; 255, NaN, becomes infinity, which shows as well.
			e, h := v.new(), v.new()
			if v.wide() {
				// Of four blocks in 68 bytes, the scales are the low bytes of words 0 and 17, the high bytes of words 8 and 25.
				apart := v.inRegister(v.words(0, 8, 17, 25))
				VPERMW(off(w, 0), apart, h)
				for k := 4; k < 16; k += 4 {
					VPERMW(off(w, 17*k), apart, v.mask(0xf<<k), h)
				}
				VPMOVZXWD(h.AsY(), e)
				VPSLLVD(v.dwords(23, 15), e, e)
				e = v.and(v.dwords(0x7f800000), e)
			} else {
				zero(h)
				for k := range 8 {
					VPINSRB(Imm(uint64(k)), off(w, 17*k), h.AsX(), h.AsX())
				}
				VPMOVZXBD(h.AsX(), e)
				VPSLLD(Imm(23), e, e)
			}
			a := v.new()
			VPMAXUD(v.dwords(1<<22), e, e)
			VMULPS(v.dwords(0x3f000000), e, a) // ½, as the codes are doubled
			return []reg.VecVirtual{a}
		},
	}
}
