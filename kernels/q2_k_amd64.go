package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.Q2_K, avx512, &integerKernel{row: q2_kRowAVX512, pack: q2_kPackAVX512, tile: tileHalvesWithMinAVX512})
	registerInteger(format.Q2_K, avx2, &integerKernel{row: q2_kRowAVX2, pack: q2_kPackAVX2, tile: tileHalvesWithMinAVX2})
}
