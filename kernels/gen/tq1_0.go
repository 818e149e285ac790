package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() { unitTarget(tq1_0()) }

// tq1_0: a unit of eight blocks is bytes of digits to the base of three, and binary16 d. A byte is a fraction of 256, whose digit n is the
// integer part of 3·frac(3^n·byte/256); 1 is subtracted from it. 32 bytes have a digit of each of blocks 0 to 4, 16 more one of each half
// of blocks 5, 6 and the first half of 7, and 4 more one of each fourth of the rest.
func tq1_0() *unitFormat {
	const unit = 54
	// digits returns the digits of x's bytes, in each 32-bit lane those of which powers has three to the power.
	digits := func(v *simd, x reg.VecVirtual, powers ...uint32) reg.VecVirtual {
		factors := make([]uint32, len(powers))
		for i, p := range powers {
			factors[i] = p * 0x00010001
		}
		digit := func(x reg.VecVirtual) reg.VecVirtual { // of the upper bytes of words, the lower ones being zero
			VPMULLW(v.dwords(factors...), x, x)
			VPMULHUW(v.words(3), x, x)
			return x
		}
		even := v.new()
		VPSLLW(Imm(8), x, even)
		odd := digit(v.and(v.words(0xff00), x))
		VPSLLW(Imm(8), odd, odd)
		return v.or(digit(even), odd)
	}
	repeat := func(n int, powers ...uint32) (out []uint32) {
		for _, p := range powers {
			for range n {
				out = append(out, p)
			}
		}
		return out
	}
	return &unitFormat{
		name: "tq1_0", unit: []int{32, 16, 4, 2}, unitBlocks: 8, max: 2, bias: 1,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			five, sixteen := repeat(4, 1, 3), repeat(4, 9, 27) // the powers of blocks 5 and 6
			seven := append(repeat(4, 81), 1, 3, 9, 27)
			for u := range v.lanes / 8 {
				at := u * unit
				if v.wide() {
					x := v.new()
					VBROADCASTI64X4(off(w, at), x)
					emit(digits(v, x, repeat(8, 1, 3)...))
					emit(digits(v, x, repeat(8, 9, 27)...))
					y := v.new()
					VBROADCASTI32X4(off(w, at+32), y)
					VINSERTI64X4(Imm(0), off(w, at), y, x)
					emit(digits(v, x, append(repeat(8, 81), five...)...))
					VPBROADCASTD(off(w, at+48), v.mask(0xf000), y)
					emit(digits(v, y, append(sixteen, seven...)...))
					continue
				}
				x := v.load(off(w, at))
				for _, p := range []uint32{1, 3, 9, 27, 81} {
					emit(digits(v, x, p))
				}
				y, last := v.new(), v.new()
				broadcast128(off(w, at+32), y)
				emit(digits(v, y, five...))
				emit(digits(v, y, sixteen...))
				VPBROADCASTD(off(w, at+48), last)
				VPBLENDD(Imm(0xf0), last, y, y)
				emit(digits(v, y, seven...))
			}
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			for g := range 2 {
				long := v.quarters(w, func(i int) int { return i/2*unit + 16*g })
				short := v.quarters(w, func(i int) int { return i/2*unit + 32 })
				for j := range 4 {
					x, t := v.new(), v.new()
					VPSHUFD(Imm(uint64(0x55*j)), long, x)
					VPSHUFD(Imm(uint64(0x55*j)), short, t)
					powers := []uint32{1, 3, 9, 27, 81, 1, 9, 81}
					if g == 1 {
						powers[5], powers[6], powers[7] = 3, 27, []uint32{1, 3, 9, 27}[j]
					}
					last := v.new()
					if v.wide() {
						VMOVDQU32(t, v.mask(0xe0e0), x)
						if g == 1 {
							VPBROADCASTD(off(w, 48), v.mask(0x0080), x)
							VPBROADCASTD(off(w, unit+48), v.mask(0x8000), x)
						}
					} else {
						VPBLENDD(Imm(0xe0), t, x, x)
						if g == 1 {
							VPBROADCASTD(off(w, 48), last)
							VPBLENDD(Imm(0x80), last, x, x)
						}
					}
					emit(4*g+j, digits(v, x, powers...))
				}
			}
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual { return []reg.VecVirtual{v.unitHalves(w, unit, 52)} },
	}
}
