package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.Q4_1, avx512, &integerKernel{row: q4_1RowAVX512, pack: q4_1PackAVX512, tile: tileWithMinAVX512})
	registerInteger(format.Q4_1, avx2, &integerKernel{row: q4_1RowAVX2, pack: q4_1PackAVX2, tile: tileWithMinAVX2})
}
