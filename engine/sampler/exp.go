package sampler

import "math"

// ln2 in two parts (fdlibm's): the product of the first with an integer below 2^20 is exact.
const (
	ln2Hi = 6.93147180369123816490e-01
	ln2Lo = 1.90821492927058770002e-10
)

// inverseFactorial[n] is 1/n!, the Taylor coefficients of the exponential. With |r| ≤ ln2/2 the first one left out is worth 5e-18.
var inverseFactorial = [14]float64{
	1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800,
	1. / 479001600, 1. / 6227020800,
}

// exp returns e^x for x ≤ 0, within 2 units in the last place, and 0 below -700.
//
// It replaces math.Exp, whose assembly differs between processors: the same seed must draw the same ids everywhere. For that reason each
// product is converted to float64 explicitly, which forbids the compiler to fuse it with the addition that follows.
func exp(x float64) float64 {
	if x < -700 {
		return 0
	}
	k := math.RoundToEven(x * math.Log2E)
	r := x - float64(k*ln2Hi) - float64(k*ln2Lo)
	sum := inverseFactorial[13]
	for n := 12; n >= 0; n-- {
		sum = inverseFactorial[n] + float64(r*sum)
	}
	return sum * math.Float64frombits(uint64(1023+int64(k))<<52)
}
