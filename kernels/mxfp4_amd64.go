package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.MXFP4, avx512, &integerKernel{row: mxfp4RowAVX512, pack: mxfp4PackAVX512, tile: tileScaledAVX512, bias: 16})
	registerInteger(format.MXFP4, avx2, &integerKernel{row: mxfp4RowAVX2, pack: mxfp4PackAVX2, tile: tileScaledAVX2, bias: 16})
}
