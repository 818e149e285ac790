package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.Q5_0, avx512, &integerKernel{row: q5_0RowAVX512, pack: q5_0PackAVX512, tile: tileScaledAVX512, bias: 16})
	registerInteger(format.Q5_0, avx2, &integerKernel{row: q5_0RowAVX2, pack: q5_0PackAVX2, tile: tileScaledAVX2, bias: 16})
}
