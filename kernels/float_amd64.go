package kernels

import "github.com/coli-moe/coli/weights/format"

func init() {
	registerFloat(format.F32, avx512, &floatKernel{row: f32RowAVX512, rows: f32RowsAVX512})
	registerFloat(format.F32, avx2, &floatKernel{row: f32RowAVX2, rows: f32RowsAVX2})
	registerFloat(format.F16, avx512, &floatKernel{row: f16RowAVX512, rows: f16RowsAVX512})
	registerFloat(format.F16, avx2, &floatKernel{row: f16RowAVX2, rows: f16RowsAVX2})
	registerFloat(format.BF16, avx512, &floatKernel{row: bf16RowAVX512, rows: bf16RowsAVX512})
	registerFloat(format.BF16, avx2, &floatKernel{row: bf16RowAVX2, rows: bf16RowsAVX2})
	registerFloat(format.F8E4M3, avx512, &floatKernel{row: f8RowAVX512, rows: f8RowsAVX512})
	registerFloat(format.F8E4M3, avx2, &floatKernel{row: f8RowAVX2, rows: f8RowsAVX2})
}
