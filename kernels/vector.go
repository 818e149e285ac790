package kernels

import "math"

// vector has the vector operations of one instruction set; the exported functions of this file say what they do.
type vector struct {
	quantize   func(q []int8, d []float32, s, half []int32, tiles []int8, x []float32)
	dot        func(a, b []float32) float32
	axpy       func(y []float32, a float32, x []float32)
	scale      func(x []float32, a float32)
	add        func(y, x []float32)
	sumSquares func(x []float32) float32
	mulScaled  func(dst, x, w []float32, a, offset float32) // dst = x·a·(w + offset)
	siluMul    func(dst, gate, up []float32)
	expSum     func(x []float32, shift float32) float32
	maximum    func(x []float32) float32
	dotRows    func(dst, q, k []float32, stride, n int)
	axpyRows   func(acc, p, v []float32, stride, n int)
	dotTile    func(dst []float32, ldd int, q, k []float32, size, stride, n int)
	axpyTile   func(acc, p []float32, ldp int, v []float32, size, stride, n int)
	decodeF16  func(dst []float32, src []byte)
	decodeBF16 func(dst []float32, src []byte)
	read       func(b []byte) uint64
}

var vectorGeneric = vector{
	quantize: quantizeGeneric,
	dot:      dotGeneric, axpy: axpyGeneric, scale: scaleGeneric, add: addGeneric, sumSquares: sumSquaresGeneric,
	mulScaled: mulScaledGeneric, siluMul: siluMulGeneric, expSum: expSumGeneric, maximum: maximumGeneric,
	dotRows: dotRowsGeneric, axpyRows: axpyRowsGeneric, decodeF16: decodeF16Generic, decodeBF16: decodeBF16Generic,
	read: readGeneric, dotTile: dotTileGeneric, axpyTile: axpyTileGeneric,
}

// Dot returns Σ a[i]·b[i] over len(a) values.
func Dot(a, b []float32) float32 { return current().dot(a, b[:len(a)]) }

// Axpy adds a·x to y, over len(y) values.
func Axpy(y []float32, a float32, x []float32) { current().axpy(y, a, x[:len(y)]) }

// Scale multiplies x by a.
func Scale(x []float32, a float32) { current().scale(x, a) }

// Add adds x to y, over len(y) values.
func Add(y, x []float32) { current().add(y, x[:len(y)]) }

// SumSquares returns Σ x[i]².
func SumSquares(x []float32) float32 { return current().sumSquares(x) }

// RMSNormRow sets dst = x / sqrt(mean(x²) + eps) · w, over len(x) values, with w+1 in place of w if zeroCentred. A nil w counts as ones.
// dst may be x.
func RMSNormRow(dst, x, w []float32, eps float32, zeroCentred bool) {
	v := current()
	a := float32(1 / math.Sqrt(float64(v.sumSquares(x))/float64(len(x))+float64(eps)))
	dst = dst[:len(x)]
	if w == nil {
		copy(dst, x)
		v.scale(dst, a)
		return
	}
	var offset float32
	if zeroCentred {
		offset = 1
	}
	v.mulScaled(dst, x, w[:len(x)], a, offset)
}

// SiLUMul sets dst = gate / (1 + exp(-gate)) · up, over len(dst) values. dst may be gate or up. The relative error is below 5e-7 where
// the result is a normal number.
func SiLUMul(dst, gate, up []float32) { current().siluMul(dst, gate[:len(dst)], up[:len(dst)]) }

// SoftmaxRow replaces x by exp(x - shift) and returns the sum; the caller divides. shift is the maximum of x; no value may exceed it by
// more than 88, where exp overflows. The relative error of an exponential is below 2e-7; those below exp(-87) are zero.
func SoftmaxRow(x []float32, shift float32) (sum float32) { return current().expSum(x, shift) }

// Max returns the largest value of x, -Inf if there is none; a NaN in x may be ignored.
func Max(x []float32) float32 { return current().maximum(x) }

// DotRows sets dst[j] = Σ q[i]·k[j·stride+i] over len(q) values, for j in [0,n).
func DotRows(dst, q, k []float32, stride, n int) {
	if n > 0 {
		current().dotRows(dst[:n], q, k[:(n-1)*stride+len(q)], stride, n)
	}
}

// AxpyRows adds p[j]·v[j·stride+i] to acc[i], over len(acc) values, for j in [0,n) in rising order.
func AxpyRows(acc, p, v []float32, stride, n int) {
	if n > 0 {
		current().axpyRows(acc, p[:n], v[:(n-1)*stride+len(acc)], stride, n)
	}
}

// DecodeF16 widens len(dst) little-endian binary16 values of src.
func DecodeF16(dst []float32, src []byte) { current().decodeF16(dst, src[:2*len(dst)]) }

// DecodeBF16 widens len(dst) little-endian bfloat16 values of src.
func DecodeBF16(dst []float32, src []byte) { current().decodeBF16(dst, src[:2*len(dst)]) }
