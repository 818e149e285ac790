package main

import "github.com/mmcloughlin/avo/reg"

func init() { unitTarget(q4_1()) }

// q4_1: a block is a binary16 scale, a binary16 number that is added to all values, and 16 bytes as in Q4_0.
func q4_1() *unitFormat {
	return &unitFormat{
		name: "q4_1", unit: []int{4, 16}, unitBlocks: 1, max: 15, kind: withMin,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			for k := 0; k < v.lanes; k += v.lanes / 8 {
				emit(v.nibbleBlocks(w, 20*k+4, 20))
			}
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			v.nibbleTile(w, func(block int) int { return 20*block + 4 }, emit)
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual { return v.scaleAndAddend(w, 20) },
	}
}

// scaleAndAddend returns the scales and minima of Q4_1 and Q5_1, the latter being what they store negated.
func (v *simd) scaleAndAddend(w reg.Register, stride int) []reg.VecVirtual {
	d, m := v.halfPairs(w, stride)
	xor(v.dwords(1<<31), m, m)
	return []reg.VecVirtual{d, m}
}
