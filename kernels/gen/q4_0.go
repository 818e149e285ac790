package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/reg"
)

func init() { unitTarget(q4_0()) }

// q4_0: a block is a binary16 scale and 16 bytes with the codes 0..15 in the low nibbles, 16..31 in the high ones.
func q4_0() *unitFormat {
	return &unitFormat{
		name: "q4_0", unit: []int{2, 16}, unitBlocks: 1, max: 15, bias: 8,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			for k := 0; k < v.lanes; k += v.lanes / 8 {
				emit(v.nibbleBlocks(w, 18*k+2, 18))
			}
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			v.nibbleTile(w, func(block int) int { return 18*block + 2 }, emit)
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual { return []reg.VecVirtual{v.halfScales(w, 18)} },
	}
}

// nibbleBlocks returns the codes of the block whose 16 bytes lie at w+offset; with 512 bits, of the one at w+offset+next too.
func (v *simd) nibbleBlocks(w reg.Register, offset, next int) reg.VecVirtual {
	x := v.new()
	if v.wide() {
		VBROADCASTI32X4(off(w, offset), x)
		VBROADCASTI32X4(off(w, offset+next), v.mask(0xff00), x)
	} else {
		VBROADCASTI128(off(w, offset), x)
	}
	return v.nibble(v.dwords(0, 0, 0, 0, 4, 4, 4, 4), x)
}

// nibbleTile transposes a group of blocks of 16 bytes at w+offset(block).
func (v *simd) nibbleTile(w reg.Register, offset func(block int) int, emit func(int, reg.VecVirtual)) {
	var x [4]reg.VecVirtual
	for k := range x {
		x[k] = v.quarters(w, func(i int) int { return offset(4*i + k) })
	}
	for j, t := range transposeQuarters(x[:]) {
		low, high := v.lowHigh(t)
		emit(j, low)
		emit(j+4, high)
	}
}
