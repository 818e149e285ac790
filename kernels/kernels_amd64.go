package kernels

import "github.com/klauspost/cpuid/v2"

// detect returns the best instruction set of the processor that the operating system lets programs use.
func detect() isa {
	cpu := &cpuid.CPU
	switch {
	case !cpu.Supports(cpuid.AVX2, cpuid.FMA3, cpuid.F16C):
		return generic
	case !cpu.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.AVX512DQ, cpuid.AVX512VNNI, cpuid.BMI2):
		return avx2
	}
	return avx512
}
