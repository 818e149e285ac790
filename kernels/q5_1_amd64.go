package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.Q5_1, avx512, &integerKernel{row: q5_1RowAVX512, pack: q5_1PackAVX512, tile: tileWithMinAVX512})
	registerInteger(format.Q5_1, avx2, &integerKernel{row: q5_1RowAVX2, pack: q5_1PackAVX2, tile: tileWithMinAVX2})
}
