package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() {
	unitTarget(q5("q5_0", []int{2, 4, 16}, unitFormat{
		bias:   16,
		scales: func(v *simd, w reg.Register) []reg.VecVirtual { return []reg.VecVirtual{v.halfScales(w, 22)} },
	}))
	unitTarget(q5("q5_1", []int{4, 4, 16}, unitFormat{
		kind:   withMin,
		scales: func(v *simd, w reg.Register) []reg.VecVirtual { return v.scaleAndAddend(w, 24) },
	}))
}

// q5 completes the description of Q5_0 or Q5_1: a block is its scales, 32 fifth bits, of which bit c is column c's, and 16 bytes as in Q4_0.
func q5(name string, unit []int, f unitFormat) *unitFormat {
	head, size := unit[0], unit[0]+20
	f.name, f.unit, f.unitBlocks, f.max = name, unit, 1, 31
	f.codes = func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
		for k := 0; k < v.lanes; k += v.lanes / 8 {
			emit(v.fifthBits(w, size*k+head, size, v.nibbleBlocks(w, size*k+head+4, size)))
		}
	}
	f.tile = func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) {
		bits := v.words32(w, v.strided(head, size)...)
		v.nibbleTile(w, func(block int) int { return size*block + head + 4 }, func(j int, low reg.VecVirtual) {
			// Of each lane, the byte with the bits of columns 4j..4j+3, four times.
			var which []uint32
			for lane := range uint32(4) {
				which = append(which, (4*lane+uint32(j/2))*0x01010101)
			}
			high, each := v.new(), v.dwords(0x08040201<<(j%2*4))
			VPSHUFB(v.dwords(which...), bits, high)
			if v.wide() {
				set := K()
				VPTESTMB(v.inRegister(each), high, set)
				VPADDB(v.dwords(0x10101010), low, set, low)
			} else {
				low = v.where(high, each, low)
			}
			emit(j, low)
		})
	}
	return &f
}

// fifthBits adds 16 to the bytes of low whose bit is set in the four bytes at w+offset; with 512 bits in those at w+offset+next too.
func (v *simd) fifthBits(w reg.Register, offset, next int, low reg.VecVirtual) reg.VecVirtual {
	if v.wide() {
		first, second, set := GP64(), GP64(), K()
		MOVL(off(w, offset), first.As32())
		MOVL(off(w, offset+next), second.As32())
		SHLQ(Imm(32), second)
		ORQ(first, second)
		KMOVQ(second, set)
		VPADDB(v.dwords(0x10101010), low, set, low)
		return low
	}
	high := YMM()
	VPBROADCASTD(off(w, offset), high)
	VPSHUFB(v.dwords(0, 0, 0x01010101, 0x01010101, 0x02020202, 0x02020202, 0x03030303, 0x03030303), high, high)
	return v.where(high, v.dwords(0x08040201, 0x80402010), low)
}

// where adds 16 to the bytes of low where bits has the one bit of each.
func (v *simd) where(bits reg.VecVirtual, each Op, low reg.VecVirtual) reg.VecVirtual {
	set := v.and(each, bits)
	VPCMPEQB(each, set, set)
	return v.include(low, set, 0x10101010)
}

// words32 returns a vector whose 32-bit lane i is the four bytes at w+offsets[i].
func (v *simd) words32(w reg.Register, offsets ...int) reg.VecVirtual {
	y := v.new()
	zero(y)
	for i := range v.lanes / 4 {
		x := XMM()
		VMOVD(off(w, offsets[4*i]), x)
		for k := 1; k < 4; k++ {
			VPINSRD(Imm(uint64(k)), off(w, offsets[4*i+k]), x, x)
		}
		insert128(i, x, y, y)
	}
	return y
}
