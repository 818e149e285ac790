package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.TQ1_0, avx512, &integerKernel{row: tq1_0RowAVX512, pack: tq1_0PackAVX512, tile: tileScaledAVX512, bias: 1})
	registerInteger(format.TQ1_0, avx2, &integerKernel{row: tq1_0RowAVX2, pack: tq1_0PackAVX2, tile: tileScaledAVX2, bias: 1})
}
