package plots

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// linear are about n round marks from 0 on.
type linear struct{ n int }

// step is 1, 2, 2.5 or 5 times a power of ten.
func (l linear) step(max float64) float64 {
	raw := max / float64(l.n)
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if raw <= m*power*1.0000001 {
			return m * power
		}
	}
	return 10 * power
}

// top is the end of an axis from 0 that has room for max: the next mark, or half-way to it.
func (l linear) top(max float64) float64 {
	if max <= 0 {
		return 1
	}
	half := l.step(max) / 2
	return math.Ceil(max/half-1e-9) * half
}

func (l linear) Ticks(_, max float64) (ticks []plot.Tick) {
	step := l.step(max)
	digits := 0
	for unit := step; digits < 15 && math.Abs(unit-math.Round(unit)) > 1e-6*unit; unit *= 10 {
		digits++
	}
	for i := 0; float64(i)*step <= max*(1+1e-9); i++ {
		ticks = append(ticks, plot.Tick{Value: float64(i) * step, Label: grouped(float64(i)*step, digits)})
	}
	return ticks
}

// grouped writes a number of 10,000 or more with its thousands apart.
func grouped(x float64, digits int) string {
	s := strconv.FormatFloat(x, 'f', digits, 64)
	if x < 1e4 {
		return s
	}
	end := len(s)
	if digits > 0 {
		end -= digits + 1
	}
	for i := end - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// logTime marks decades of nanoseconds, the numbers between them without labels.
type logTime struct{}

func (logTime) Ticks(min, max float64) (ticks []plot.Tick) {
	for d := int(math.Floor(math.Log10(min))); d <= int(math.Ceil(math.Log10(max))); d++ {
		at := math.Pow10(d)
		for m := 1.0; m < 10; m++ {
			if v := m * at; v >= min*(1-1e-9) && v <= max*(1+1e-9) {
				t := plot.Tick{Value: v}
				if m == 1 {
					t.Label = duration(v)
				}
				ticks = append(ticks, t)
			}
		}
	}
	return ticks
}

// duration writes nanoseconds with three digits at most.
func duration(ns float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}} {
		if ns >= u.size*0.9995 {
			return short(ns/u.size) + " " + u.name
		}
	}
	return short(ns) + " ns"
}

// short writes a number with three digits, without zeros at its end.
func short(x float64) string {
	if math.Abs(x) >= 999.5 {
		return grouped(math.Round(x), 0)
	}
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 3, 64), 64)
	return strconv.FormatFloat(x, 'f', -1, 64)
}

// twoDigits rounds to what a spread is known to.
func twoDigits(x float64) float64 {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 2, 64), 64)
	return x
}

// value writes a measured figure with three digits, zeros at its end included.
func value(x float64) string {
	switch a := math.Abs(x); {
	case a >= 99.95 || a == 0:
		return grouped(math.Round(x), 0)
	case a >= 9.995:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case a >= 0.0995:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return short(x)
}

// spread writes a mean and its standard deviation, with as many digits as this one is known to.
func spread(mean, sd float64) string {
	if !finite(sd) || sd <= 0 || sd < 1e-4*math.Abs(mean) {
		return value(mean)
	}
	digits := max(1-int(math.Floor(math.Log10(twoDigits(sd)))), 0)
	return grouped(mean, digits) + " ± " + grouped(sd, digits)
}

// logBytes marks powers of two, n of them at most.
type logBytes struct{ n int }

func (l logBytes) Ticks(min, max float64) (ticks []plot.Tick) {
	first, last := int(math.Ceil(math.Log2(min)-1e-9)), int(math.Floor(math.Log2(max)+1e-9))
	stride := (last-first)/l.n + 1
	for i := first; i <= last; i += stride {
		ticks = append(ticks, plot.Tick{Value: math.Ldexp(1, i), Label: byteSize(math.Ldexp(1, i))})
	}
	return ticks
}

// byteSize writes bytes in the largest unit that leaves a 1 before it.
func byteSize(b float64) string {
	unit := 0
	for ; b >= 1024 && unit < 4; unit++ {
		b /= 1024
	}
	return short(b) + " " + [...]string{"B", "KiB", "MiB", "GiB", "TiB"}[unit]
}
