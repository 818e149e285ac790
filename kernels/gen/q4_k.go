package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() { unitTarget(q4_k()) }

// q4_k: a unit of eight blocks is binary16 d and dmin, 12 bytes of packed scales and minima, and 4×32 bytes of nibbles as in I4G64.
func q4_k() *unitFormat {
	pair := func(k int) int { return k/4*144 + 16 + k%4*32 }
	return &unitFormat{
		name: "q4_k", unit: []int{16, 32, 32, 32, 32}, unitBlocks: 8, max: 15, kind: withMin,
		codes: func(v *simd, w reg.Register, emit func(reg.VecVirtual)) {
			for k := range v.lanes / 2 {
				v.nibblePair(w, pair(k), emit)
			}
		},
		tile:   func(v *simd, w reg.Register, emit func(int, reg.VecVirtual)) { v.pairTile(w, pair, emit) },
		scales: func(v *simd, w reg.Register) []reg.VecVirtual { return v.kScales(w, 144) },
	}
}

// kScales returns the scales and minima of Q4_K and Q5_K, whose units start alike and have so many bytes.
func (v *simd) kScales(w reg.Register, unit int) []reg.VecVirtual {
	// A lane of 128 bits is the head of a unit. The bytes of its 12, in dwords A B C: the scales are the low six bits of A, and
	// the low nibbles of C with the top two bits of A above; the minima are the low six bits of B, and the high nibbles of C with
	// the top two bits of B above.
	head, s, top := YMM(), YMM(), YMM()
	broadcast128(off(w, 0), head)
	if v.wide() {
		insert128(1, off(w, unit), head, head)
	}
	y := newSimd(256)
	VPSHUFD(Imm(1|3<<2|2<<4|3<<6), head, s)
	VPSRLVD(y.dwords(0, 0, 0, 4), s, s)
	s = y.and(y.dwords(0x3f3f3f3f, 0x0f0f0f0f), s)
	VPSHUFD(Imm(1<<2|2<<6), head, top)
	VPSRLD(Imm(2), top, top)
	s = y.or(y.and(y.dwords(0, 0x30303030), top), s)
	VPERMQ(Imm(0|2<<2|1<<4|3<<6), s, s) // scales, then minima

	a, b := v.new(), v.new()
	d, dmin := v.new(), v.new()
	minima := XMM()
	extract128(1, s, minima)
	if v.wide() {
		VCVTPH2PS(head, d)
		VPERMPS(d, v.inRegister(v.dwords(1, 1, 1, 1, 1, 1, 1, 1, 9, 9, 9, 9, 9, 9, 9, 9)), dmin)
		VPERMPS(d, v.inRegister(v.dwords(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8)), d)
	} else {
		both, second := XMM(), XMM()
		VCVTPH2PS(head.AsX(), both)
		VMOVSHDUP(both, second)
		VBROADCASTSS(both, d)
		VBROADCASTSS(second, dmin)
	}
	VPMOVZXBD(s.AsX(), a)
	VPMOVZXBD(minima, b)
	VCVTDQ2PS(a, a)
	VCVTDQ2PS(b, b)
	VMULPS(d, a, a)
	VMULPS(dmin, b, b)
	return []reg.VecVirtual{a, b}
}
