package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.I8Row, avx512, &integerKernel{row: i8RowAVX512, pack: i8PackAVX512, tile: tileScaledAVX512, bias: 128})
	registerInteger(format.I8Row, avx2, &integerKernel{row: i8RowAVX2, pack: i8PackAVX2, tile: tileSignedAVX2})
}
