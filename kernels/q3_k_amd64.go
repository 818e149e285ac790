package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.Q3_K, avx512, &integerKernel{row: q3_kRowAVX512, pack: q3_kPackAVX512, tile: tileHalvesAVX512, bias: 4})
	registerInteger(format.Q3_K, avx2, &integerKernel{row: q3_kRowAVX2, pack: q3_kPackAVX2, tile: tileHalvesAVX2, bias: 4})
}
