package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerInteger(format.IQ4_XS, avx512, &integerKernel{row: iq4_xsRowAVX512, pack: iq4_xsPackAVX512, tile: tileScaledAVX512, bias: 128})
	registerInteger(format.IQ4_XS, avx2, &integerKernel{row: iq4_xsRowAVX2, pack: iq4_xsPackAVX2, tile: tileSignedAVX2})
}
