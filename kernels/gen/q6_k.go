package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() { unitTarget(q6_k()) }

// q6_k: a unit of eight blocks is 2×64 bytes of nibbles, 2×32 bytes of bit pairs, an int8 scale for each 16 columns, and binary16 d.
// Of four blocks, the first two have the low nibbles of 2×32 bytes, the others the high ones, and block t has bits 2t and 2t+1 of 32
// bytes of bit pairs above.
func q6_k() *unitFormat {
	low := func(half int) int { return half/2*210 + half%2*64 }
	high := func(half int) int { return half/2*210 + 128 + half%2*32 }
	// join returns the low four bits of low's bytes with bits 4 and 5 of high's above.
	join := func(v *simd, low, high reg.VecVirtual) reg.VecVirtual {
		if v.wide() {
			VPTERNLOGD(Imm(0xd8), v.dwords(0x0f0f0f0f), low, high)
			return v.and(v.dwords(0x3f3f3f3f), high)
		}
		return v.or(v.and(v.dwords(0x0f0f0f0f), low), v.and(v.dwords(0x30303030), high))
	}
	return &unitFormat{
		name: "q6_k", unit: []int{32, 32, 32, 32, 32, 32, 16, 2}, unitBlocks: 8, max: 63, bias: 32, kind: halves,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			for half := range v.lanes / 4 {
				if v.wide() {
					lo, pairs := v.load(off(w, low(half))), v.new()
					VBROADCASTI64X4(off(w, high(half)), pairs)
					hi, left, right := v.new(), v.new(), v.new()
					VPSLLVD(v.dwords(4, 4, 4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2), pairs, left)
					VPSRLVD(v.dwords(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2), pairs, right)
					VPSRLD(Imm(4), lo, hi)
					emit(join(v, lo, left))
					emit(join(v, hi, right))
					continue
				}
				for t := range 4 {
					lo, hi := v.load(off(w, low(half)+t%2*32)), v.load(off(w, high(half)))
					switch t {
					case 0:
						VPSLLD(Imm(4), hi, hi)
					case 1:
						VPSLLD(Imm(2), hi, hi)
					case 3:
						VPSRLD(Imm(2), hi, hi)
					}
					if t >= 2 {
						VPSRLD(Imm(4), lo, lo)
					}
					emit(join(v, lo, hi))
				}
			}
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			for g := range 2 {
				a := v.quarters(w, func(i int) int { return low(i) + 16*g })
				b := v.quarters(w, func(i int) int { return low(i) + 32 + 16*g })
				pairs := v.quarters(w, func(i int) int { return high(i) + 16*g })
				for j, lo := range transposeQuarters([]reg.VecVirtual{a, b, a, b}) {
					hi := v.new()
					VPSRLVD(v.dwords(0, 0, 4, 4), lo, lo)
					VPSHUFD(Imm(uint64(0x55*j)), pairs, hi)
					VPSLLVD(v.dwords(4, 2, 0, 0), hi, hi)
					VPSRLVD(v.dwords(0, 0, 0, 2), hi, hi)
					emit(4*g+j, join(v, lo, hi))
				}
			}
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual {
			// The scales of a block's halves are the bytes of a word.
			a, b := v.bytePairs(v.units128(w, 210, 192), v.unitHalves(w, 210, 208))
			return []reg.VecVirtual{a, b}
		},
	}
}
