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

// lastCache is the size of the processor's last level of cache, 0 if it does not tell.
func lastCache() int64 { return int64(max(cpuid.CPU.Cache.L3, cpuid.CPU.Cache.L2, 0)) }
