package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.IQ4_NL, avx512, &integerKernel{row: iq4_nlRowAVX512, pack: iq4_nlPackAVX512, tile: tileScaledAVX512, bias: 128})
	registerInteger(format.IQ4_NL, avx2, &integerKernel{row: iq4_nlRowAVX2, pack: iq4_nlPackAVX2, tile: tileSignedAVX2})
}
