package format

import (
	"math"
	"sort"
)

// F16ToF32 widens an IEEE 754 binary16 value. It is exact; the payload of a NaN is kept.
func F16ToF32(h uint16) float32 {
	sign, mag := uint32(h&0x8000)<<16, uint32(h&0x7fff)<<13
	if mag >= 0x7c00<<13 {
		return math.Float32frombits(sign | mag | 0x7f800000)
	}
	// The multiplication moves the exponent's bias from 15 to 127 and normalises subnormals on the way.
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(mag)*0x1p112))
}

// F32ToF16 rounds to the nearest binary16 value, ties to even. Values from 65520 up become infinite; a NaN stays a (quiet) NaN.
func F32ToF16(x float32) uint16 {
	bits := math.Float32bits(x)
	sign, mag := uint16(bits>>16)&0x8000, bits&0x7fffffff
	switch {
	case mag > 0x7f800000:
		return sign | 0x7e00 | uint16(mag>>13)&0x3ff
	case mag >= 0x477ff000:
		return sign | 0x7c00
	case mag < 0x38800000: // below 2^-14: adding 0.5 leaves the subnormal's 10 bits, rounded, at the bottom of the sum
		return sign | uint16(math.Float32bits(math.Float32frombits(mag)+0.5)-0x3f000000)
	}
	mag += 0xfff + mag>>13&1
	return sign | uint16(mag>>13-112<<10)
}

// BF16ToF32 widens a bfloat16 value exactly.
func BF16ToF32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// F32ToBF16 rounds to the nearest bfloat16 value, ties to even; a NaN stays a (quiet) NaN.
func F32ToBF16(x float32) uint16 {
	bits := math.Float32bits(x)
	if bits&0x7fffffff > 0x7f800000 {
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// E8M0ToF32 returns 2^(e-127), the shared scale of the OCP microscaling formats (MX specification 1.0, 5.4.1); 255 is NaN.
func E8M0ToF32(e uint8) float32 {
	switch e {
	case 0:
		return 0x1p-127
	case 255:
		return float32(math.NaN())
	}
	return math.Float32frombits(uint32(e) << 23)
}

var e4m3 = func() (t [256]float32) {
	for i := range t {
		exp, man := i>>3&15, float64(i&7)
		v := math.Ldexp(8+man, exp-10)
		if exp == 0 {
			v = math.Ldexp(man, -9)
		}
		if i&0x7f == 0x7f {
			v = math.NaN()
		}
		t[i] = float32(math.Copysign(v, 0.5-float64(i>>7)))
	}
	return t
}()

// E4M3ToF32 widens an fp8 E4M3FN value: bias 7, largest 448, no infinities, NaN at 0x7f and 0xff (OCP 8-bit floating point 1.0).
func E4M3ToF32(b uint8) float32 { return e4m3[b] }

// F32ToE4M3 rounds to the nearest E4M3FN value, ties to even; magnitudes past 448 become ±448, a NaN stays a NaN.
func F32ToE4M3(x float32) uint8 {
	sign := uint8(math.Float32bits(x) >> 24 & 0x80)
	mag := math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
	if mag != mag {
		return sign | 0x7f
	}
	up := sort.Search(0x7e, func(i int) bool { return e4m3[i] >= mag }) // the largest code where all are below
	if up == 0 || mag >= e4m3[up] {
		return sign | uint8(up)
	}
	if below, above := mag-e4m3[up-1], e4m3[up]-mag; below < above || below == above && up&1 == 1 {
		up--
	}
	return sign | uint8(up)
}
