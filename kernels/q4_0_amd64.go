package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.Q4_0, avx512, &integerKernel{row: q4_0RowAVX512, pack: q4_0PackAVX512, tile: tileScaledAVX512, bias: 8})
	registerInteger(format.Q4_0, avx2, &integerKernel{row: q4_0RowAVX2, pack: q4_0PackAVX2, tile: tileScaledAVX2, bias: 8})
}
