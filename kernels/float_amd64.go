package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	wide := &floatKernel{large: floatTile{6, packedTile6AVX512}, small: floatTile{4, packedTile4AVX512}}
	narrow := &floatKernel{large: floatTile{3, packedTile3AVX2}, small: floatTile{2, packedTile2AVX2}}
	registerFloat(format.F32, avx512, &floatKernel{
		row: f32RowAVX512, large: floatTile{6, f32Tile6AVX512}, small: floatTile{4, f32Tile4AVX512}, block: 512,
	})
	registerFloat(format.F32, avx2, &floatKernel{
		row: f32RowAVX2, large: floatTile{3, f32Tile3AVX2}, small: floatTile{2, f32Tile2AVX2}, block: 512,
	})
	registerFloat(format.F16, avx512, &floatKernel{
		row: f16RowAVX512, large: floatTile{6, f16Tile6AVX512}, small: floatTile{4, f16Tile4AVX512}, block: 256, packed: wide, lanes: 16,
	})
	registerFloat(format.F16, avx2, &floatKernel{
		row: f16RowAVX2, large: floatTile{3, f16Tile3AVX2}, small: floatTile{2, f16Tile2AVX2}, block: 256, packed: narrow, lanes: 8,
	})
	registerFloat(format.BF16, avx512, &floatKernel{
		row: bf16RowAVX512, large: floatTile{6, bf16Tile6AVX512}, small: floatTile{4, bf16Tile4AVX512}, block: 256, packed: wide, lanes: 16,
	})
	registerFloat(format.BF16, avx2, &floatKernel{
		row: bf16RowAVX2, large: floatTile{3, bf16Tile3AVX2}, small: floatTile{2, bf16Tile2AVX2}, block: 256, packed: narrow, lanes: 8,
	})
	registerFloat(format.F8E4M3, avx512, &floatKernel{
		row: f8RowAVX512, pack: f8PackAVX512, large: floatTile{6, f8Tile6AVX512}, small: floatTile{4, f8Tile4AVX512}, lanes: 16, head: 16,
	})
	registerFloat(format.F8E4M3, avx2, &floatKernel{
		row: f8RowAVX2, pack: f8PackAVX2, large: floatTile{3, f8Tile3AVX2}, small: floatTile{2, f8Tile2AVX2}, lanes: 8, head: 16,
	})
}
