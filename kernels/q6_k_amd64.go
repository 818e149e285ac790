package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.Q6_K, avx512, &integerKernel{row: q6_kRowAVX512, pack: q6_kPackAVX512, tile: tileHalvesAVX512, bias: 32})
	registerInteger(format.Q6_K, avx2, &integerKernel{row: q6_kRowAVX2, pack: q6_kPackAVX2, tile: tileHalvesAVX2, bias: 32})
}
