package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() { unitTarget(q5_k()) }

// q5_k: a unit of eight blocks is the head of Q4_K, 32 bytes with the fifth bits, of which bit j is block j's, and the nibbles of Q4_K.
func q5_k() *unitFormat {
	pair := func(k int) int { return k/4*176 + 48 + k%4*32 }
	return &unitFormat{
		name: "q5_k", unit: []int{16, 32, 32, 32, 32, 32}, unitBlocks: 8, max: 31, kind: withMin,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			for k := range v.lanes / 2 {
				block := 2 * (k % 4)
				v.nibblePair(w, pair(k), func(low reg.VecVirtual) {
					high := v.new()
					if v.wide() {
						VBROADCASTI64X4(off(w, k/4*176+16), high)
						a, b := 4-block, 3-block
						high = v.rolled(high, a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b)
					} else {
						high = v.rolled(v.load(off(w, k/4*176+16)), 4-block)
					}
					block++
					emit(v.include(low, high, 0x10101010))
				})
			}
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			var bits reg.VecVirtual
			v.pairTile(w, pair, func(j int, low reg.VecVirtual) {
				if j%4 == 0 {
					bits = v.quarters(w, func(i int) int { return i/2*176 + 16 + j/4*16 })
				}
				high := v.new()
				VPSHUFD(Imm(uint64(0x55*(j%4))), bits, high)
				emit(j, v.include(low, v.rolled(high, 4, 3, 2, 1, 0, -1, -2, -3), 0x10101010))
			})
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual { return v.kScales(w, 176) },
	}
}
