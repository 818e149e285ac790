package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() {
	target("q8_0", func() {
		vnni := blockFormat{unitBytes: 34, unitBlocks: 1, bias: 128, scales: f16Scales}
		var flip reg.VecVirtual
		vnni.setup = func(w int) { flip = broadcast(w, 0x80808080) }
		vnni.codes = func(w int, b ...blockAt) reg.VecVirtual { return biasedBytes(w, flip, 2, b) }
		vnni.rows("q8_0RowAVX512", 512)
		vnni.pack("q8_0PackAVX512", 512)

		avx2 := blockFormat{unitBytes: 34, unitBlocks: 1, signed: true, scales: f16Scales}
		avx2.codes = func(w int, b ...blockAt) reg.VecVirtual { return signedBytes(2, b[0]) }
		avx2.rows("q8_0RowAVX2", 256)
		avx2.pack("q8_0PackAVX2", 256)
	})
}

// biasedBytes returns blocks of signed bytes, disp bytes after their unit's start, with 128 added.
func biasedBytes(w int, flip reg.VecVirtual, disp int, b []blockAt) reg.VecVirtual {
	v := vec(w)
	if w == 256 {
		xor(b[0].Offset(disp), flip.AsY(), v)
		return v
	}
	loadLow(b[0].Offset(disp), v)
	VINSERTI64X4(Imm(1), b[1].Offset(disp), v, v)
	xor(flip, v, v)
	return v
}

func signedBytes(disp int, b blockAt) reg.VecVirtual {
	v := YMM()
	load(b.Offset(disp), v)
	return v
}
