package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.Q8_0, avx512, &integerKernel{row: q8_0RowAVX512, pack: q8_0PackAVX512, tile: tileScaledAVX512, bias: 128})
	registerInteger(format.Q8_0, avx2, &integerKernel{row: q8_0RowAVX2, pack: q8_0PackAVX2, tile: tileSignedAVX2})
}
