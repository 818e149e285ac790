package kernels

import (
	"sync"

	"github.com/coli-moe/coli/weights/format"
)

func init() {
	register := func(f format.Format, bias int, row512, row256 rowFunc, pack512, pack256 packFunc, tile512, tile256 tileFunc) {
		registerInteger(f, avx512, &integerKernel{row: row512, pack: pack512, tile: tile512, bias: bias, prepare: fillBooks})
		registerInteger(f, avx2, &integerKernel{row: row256, pack: pack256, tile: tile256, bias: bias, prepare: fillBooks})
	}
	register(format.IQ2_XXS, iqBias, iq2_xxsRowAVX512, iq2_xxsRowAVX2, iq2_xxsPackAVX512, iq2_xxsPackAVX2, tileScaledAVX512, tileWideAVX2)
	register(format.IQ2_XS, iqBias, iq2_xsRowAVX512, iq2_xsRowAVX2, iq2_xsPackAVX512, iq2_xsPackAVX2, tileHalvesAVX512, tileWideHalvesAVX2)
	register(format.IQ2_S, iqBias, iq2_sRowAVX512, iq2_sRowAVX2, iq2_sPackAVX512, iq2_sPackAVX2, tileHalvesAVX512, tileWideHalvesAVX2)
	register(format.IQ3_XXS, iqBias, iq3_xxsRowAVX512, iq3_xxsRowAVX2, iq3_xxsPackAVX512, iq3_xxsPackAVX2, tileScaledAVX512, tileWideAVX2)
	register(format.IQ3_S, smallBias, iq3_sRowAVX512, iq3_sRowAVX2, iq3_sPackAVX512, iq3_sPackAVX2, tileScaledAVX512, tileScaledAVX2)
	register(format.IQ1_S, smallBias, iq1_sRowAVX512, iq1_sRowAVX2, iq1_sPackAVX512, iq1_sPackAVX2, tileScaledAVX512, tileScaledAVX2)
	register(format.IQ1_M, smallBias, iq1_mRowAVX512, iq1_mRowAVX2, iq1_mPackAVX512, iq1_mPackAVX2, tileHalvesAVX512, tileHalvesAVX2)
}

// The codebooks as the assembly looks them up: an entry's magnitudes, or IQ1's codes plus the bias, one word an entry.
var (
	iq2xxsBook [256]uint64
	iq2xsBook  [512]uint64
	iq2sBook   [1024]uint64
	iq3xxsBook [256]uint32
	iq3sBook   [512]uint32
	iq1Book    [2048]uint64
)

// The biases, which keep codes of either sign positive.
const (
	iqBias    = 64 // IQ2 and IQ3_XXS: up to 62
	smallBias = 16 // IQ3_S and IQ1: up to 15, so that products of the biased codes fit 16 bits in fours
)

// fillBooks prepares the codebooks, once and not before a kernel needs one.
var fillBooks = sync.OnceFunc(func() {
	fillBook(iq2xxsBook[:], format.IQ2_XXS, 1, 0)
	fillBook(iq2xsBook[:], format.IQ2_XS, 1, 0)
	fillBook(iq2sBook[:], format.IQ2_S, 1, 0)
	fillBook(iq3xxsBook[:], format.IQ3_XXS, 1, 0)
	fillBook(iq3sBook[:], format.IQ3_S, 1, 0)
	fillBook(iq1Book[:], format.IQ1_S, 8, smallBias+1)
})

// fillBook sets each byte to an entry's value times factor plus bias.
func fillBook[T uint32 | uint64](book []T, f format.Format, factor, bias int8) {
	for i, entry := range f.Codebook() {
		for j, v := range entry {
			book[i] |= T(uint8(v*factor+bias)) << (8 * j)
		}
	}
}
