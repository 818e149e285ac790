package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() { unitTarget(i4g64()) }

// i4g64: a unit of two blocks is a float32 scale and 32 bytes with the codes of the first block in the low nibbles, of the second in
// the high ones.
func i4g64() *unitFormat {
	return &unitFormat{
		name: "i4g64", unit: []int{4, 32}, unitBlocks: 2, max: 15, bias: 8,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			for k := range v.lanes / 2 {
				v.nibblePair(w, 36*k+4, emit)
			}
		},
		tile: func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
			v.pairTile(w, func(pair int) int { return 36*pair + 4 }, emit)
		},
		scales: func(v *simd, w reg.Register) []reg.VecVirtual {
			a := v.new()
			if v.wide() {
				// The scales of two units lie in 64 bytes, 9 dwords apart.
				apart := v.inRegister(v.dwords(0, 0, 9, 9))
				VPERMPS(off(w, 0), apart, a)
				for k := 4; k < 16; k += 4 {
					VPERMPS(off(w, 18*k), apart, v.mask(0xf<<k), a)
				}
				return []reg.VecVirtual{a}
			}
			VBROADCASTSS(off(w, 0), a)
			for k := 1; k < 4; k++ {
				s := YMM()
				VBROADCASTSS(off(w, 36*k), s)
				VBLENDPS(Imm(3<<(2*k)), s, a, a)
			}
			return []reg.VecVirtual{a}
		},
	}
}

// nibblePair emits the codes of the two blocks whose 32 bytes lie at w+offset.
func (v *simd) nibblePair(w reg.Register, offset int, emit func(reg.VecVirtual)) {
	if v.wide() {
		x := ZMM()
		VBROADCASTI64X4(off(w, offset), x)
		emit(v.nibble(v.dwords(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4), x))
		return
	}
	low, high := v.lowHigh(v.load(off(w, offset)))
	emit(low)
	emit(high)
}

// pairTile transposes a group of pairs of blocks in 32 bytes at w+offset(pair).
func (v *simd) pairTile(w reg.Register, offset func(pair int) int, emit func(int, reg.VecVirtual)) {
	for g := range 2 {
		even := v.quarters(w, func(i int) int { return offset(2*i) + 16*g })
		odd := v.quarters(w, func(i int) int { return offset(2*i+1) + 16*g })
		for j, t := range transposeQuarters([]reg.VecVirtual{even, even, odd, odd}) {
			emit(4*g+j, v.nibble(v.dwords(0, 4), t))
		}
	}
}
