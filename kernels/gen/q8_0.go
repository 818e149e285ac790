package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() {
	target("q8_0", func() {
		emitBytes("q8_0", blockFormat{unitBytes: 34, unitBlocks: 1, scales: f16Scales}, 2)
	})
}

// emitBytes emits the functions of a format whose values are signed bytes, disp bytes after their unit's start: as they are for AVX2,
// with 128 added for VPDPBUSD.
func emitBytes(name string, f blockFormat, disp int) {
	var flip reg.VecVirtual
	vnni := f
	vnni.bias = 128
	vnni.setup = func(w int) { flip = broadcast(w, 0x80808080) }
	vnni.codes = func(w int, b ...blockAt) reg.VecVirtual {
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
	vnni.rows(name+"RowAVX512", 512)
	vnni.pack(name+"PackAVX512", 512)

	avx2 := f
	avx2.signed = true
	avx2.codes = func(w int, b ...blockAt) reg.VecVirtual {
		v := vec(w)
		load(b[0].Offset(disp), v)
		return v
	}
	avx2.rows(name+"RowAVX2", 256)
	avx2.pack(name+"PackAVX2", 256)
}
