package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.Q5_K, avx512, &integerKernel{row: q5_kRowAVX512, pack: q5_kPackAVX512, tile: tileWithMinAVX512})
	registerInteger(format.Q5_K, avx2, &integerKernel{row: q5_kRowAVX2, pack: q5_kPackAVX2, tile: tileWithMinAVX2})
}
