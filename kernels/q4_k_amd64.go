package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.Q4_K, avx512, &integerKernel{row: q4_kRowAVX512, pack: q4_kPackAVX512, tile: tileWithMinAVX512})
	registerInteger(format.Q4_K, avx2, &integerKernel{row: q4_kRowAVX2, pack: q4_kPackAVX2, tile: tileWithMinAVX2})
}
