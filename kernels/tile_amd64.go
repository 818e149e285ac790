package kernels

func init() {
	tileSums[avx512] = [...]sumsFunc{
		scaled: tileSumsAVX512, withMin: tileSumsWithMinAVX512, halves: tileSumsHalvesAVX512, halvesWithMin: tileSumsHalvesWithMinAVX512,
	}
	tileSums[avx2] = [...]sumsFunc{
		scaled: tileSumsAVX2, withMin: tileSumsWithMinAVX2, halves: tileSumsHalvesAVX2, halvesWithMin: tileSumsHalvesWithMinAVX2,
	}
}
