package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() { unitTarget(nvfp4()) }

// nvfp4: a unit of two blocks is an unsigned fp8 E4M3 scale for each 16 columns and 8 bytes for each 16 columns, with the fp4 E2M1 values of
// the first eight in the low nibbles. A code is twice the value plus 16, as in MXFP4.
func nvfp4() *unitFormat {
	block := func(k int) int { return k/2*36 + 4 + k%2*16 }
	return &unitFormat{
		name: "nvfp4", unit: []int{4, 32}, unitBlocks: 2, max: 28, bias: 16, kind: halves,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			for k := 0; k < v.lanes; k += v.lanes / 8 {
				x := v.new()
				if v.wide() {
					VBROADCASTI64X4(off(w, block(k)), x)
					VPERMQ(x, v.inRegister(v.dwords(0, 0, 0, 0, 1, 0, 1, 0, 2, 0, 2, 0, 3, 0, 3, 0)), x)
				} else {
					VBROADCASTI128(off(w, block(k)), x)
					VPERMQ(Imm(0x50), x, x)
				}
				emit(v.look(e2m1, v.nibble(v.dwords(0, 0, 4, 4), x)))
			}
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			v.nibbleTile(w, block, func(j int, x reg.VecVirtual) {
				dword, upper := j%4, j/4
				emit(dword/2*4+upper*2+dword%2, v.look(e2m1, x))
			})
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual {
			// Exponent and fraction in their place of a binary16, which makes it 2^-8 times as large; 0x7f, NaN, counts as 0.
			offsets := make([]int, v.lanes)
			for k := range offsets {
				offsets[k] = k/2*36 + k%2*2
			}
			words := v.words16(w, v.lanes/2*36, offsets...)
			var out []reg.VecVirtual
			for half := range 2 {
				a := v.new()
				if v.wide() {
					h, finite := YMM(), K()
					if half == 0 {
						VPSLLW(Imm(7), words.AsY(), h)
					} else {
						VPSRLW(Imm(1), words.AsY(), h)
					}
					VPANDD(v.words(0x3f80).(reg.VecVirtual).AsY(), h, h)
					VPCMPUW(Imm(4), v.words(0x3f80).(reg.VecVirtual).AsY(), h, finite)
					VCVTPH2PS_Z(h, finite, a)
				} else {
					h, nan := XMM(), XMM()
					if half == 0 {
						VPSLLW(Imm(7), words, h)
					} else {
						VPSRLW(Imm(1), words, h)
					}
					VPAND(v.words(0x3f80), h, h)
					VPCMPEQW(v.words(0x3f80), h, nan)
					VPANDN(h, nan, h)
					VCVTPH2PS(h, a)
				}
				VMULPS(v.dwords(0x43000000), a, a) // 2^8, halved as the codes are doubled
				out = append(out, a)
			}
			return out
		},
	}
}
