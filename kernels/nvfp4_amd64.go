package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.NVFP4, avx512, &integerKernel{row: nvfp4RowAVX512, pack: nvfp4PackAVX512, tile: tileHalvesAVX512, bias: 16})
	registerInteger(format.NVFP4, avx2, &integerKernel{row: nvfp4RowAVX2, pack: nvfp4PackAVX2, tile: tileHalvesAVX2, bias: 16})
}
