package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.I4G64, avx512, &integerKernel{row: i4g64RowAVX512, pack: i4g64PackAVX512, tile: tileScaledAVX512, bias: 8})
	registerInteger(format.I4G64, avx2, &integerKernel{row: i4g64RowAVX2, pack: i4g64PackAVX2, tile: tileScaledAVX2, bias: 8})
}
