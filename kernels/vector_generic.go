package kernels

import (
	"encoding/binary"
	"math"

	"github.com/coli-moe/coli/weights/format"
)

// dotGeneric has four sums so that the additions overlap.
func dotGeneric(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	n := len(a) &^ 3
	for i := 0; i < n; i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for i := n; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

func axpyGeneric(y []float32, a float32, x []float32) {
	for i, v := range x {
		y[i] += a * v
	}
}

func scaleGeneric(x []float32, a float32) {
	for i := range x {
		x[i] *= a
	}
}

func addGeneric(y, x []float32) {
	for i, v := range x {
		y[i] += v
	}
}

func sumSquaresGeneric(x []float32) float32 { return dotGeneric(x, x) }

func mulScaledGeneric(dst, x, w []float32, a, offset float32) {
	for i, v := range x {
		dst[i] = v * a * (w[i] + offset)
	}
}

func siluMulGeneric(dst, gate, up []float32) {
	for i, g := range gate {
		dst[i] = float32(float64(g) / (1 + math.Exp(-float64(g))) * float64(up[i]))
	}
}

func expSumGeneric(x []float32, shift float32) (sum float32) {
	for i, v := range x {
		x[i] = 0
		if v -= shift; !(v < -87) { // so that a NaN stays one
			x[i] = float32(math.Exp(float64(v)))
		}
		sum += x[i]
	}
	return sum
}

func maximumGeneric(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func dotRowsGeneric(dst, q, k []float32, stride, n int) {
	for j := range n {
		dst[j] = dotGeneric(q, k[j*stride:])
	}
}

func axpyRowsGeneric(acc, p, v []float32, stride, n int) {
	for j := range n {
		axpyGeneric(acc, p[j], v[j*stride:][:len(acc)])
	}
}

func decodeF16Generic(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = format.F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func decodeBF16Generic(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = format.BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}
