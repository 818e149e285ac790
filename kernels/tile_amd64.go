package kernels

func init() {
	tileSums[avx512] = [...]sumsFunc{
		scaled: tileSumsAVX512, withMin: tileSumsWithMinAVX512, halves: tileSumsHalvesAVX512, halvesWithMin: tileSumsHalvesWithMinAVX512,
	}
	tileHalves[avx512] = [...]tileFunc{
		scaled: tileHalfScaledAVX512, withMin: tileHalfWithMinAVX512, halves: tileHalfHalvesAVX512, halvesWithMin: tileHalfHalvesWithMinAVX512,
	}
	swapHalves = swapHalvesAVX512
	tileSums[avx2] = [...]sumsFunc{
		scaled: tileSumsAVX2, withMin: tileSumsWithMinAVX2, halves: tileSumsHalvesAVX2, halvesWithMin: tileSumsHalvesWithMinAVX2,
	}
}
