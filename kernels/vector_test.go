package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/coli-moe/coli/weights/format"
)

var lengths = []int{1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 300, 1000, 2048}

// guarded returns n floats and a function that fails if a float beside them has changed.
func guarded(rng *rand.Rand, n int) (x []float32, check func(t *testing.T)) {
	all := randomFloats(rng, n+32)
	before := append([]float32(nil), all...)
	return all[16 : 16+n : 16+n], func(t *testing.T) {
		t.Helper()
		for i := range all {
			if (i < 16 || i >= 16+n) && all[i] != before[i] {
				t.Fatalf("of %d values, the one at %d, outside, was written", n, i-16)
			}
		}
	}
}

func near(t *testing.T, what string, n int, got float32, want, tolerance float64) {
	t.Helper()
	if diff := math.Abs(float64(got) - want); !(diff <= tolerance) {
		t.Fatalf("%s of %d values: got %g, want %g ± %g", what, n, got, want, tolerance)
	}
}

// ulp is the spacing of float32 relative to a value.
const ulp = 0x1p-23

// Every vector operation agrees with float64 for every kind of length, and writes nothing beside its result.
func TestVectorOperations(t *testing.T) {
	eachISA(t, func(t *testing.T, s *set) {
		rng := rand.New(rand.NewPCG(7, 8))
		for _, n := range lengths {
			x, checkX := guarded(rng, n)
			y, checkY := guarded(rng, n)
			x0, y0 := append([]float32(nil), x...), append([]float32(nil), y...)
			restore := func() { copy(x, x0); copy(y, y0) }
			var sum, magnitude, squares float64
			top := math.Inf(-1)
			for i := range x {
				sum += float64(x[i]) * float64(y[i])
				magnitude += math.Abs(float64(x[i]) * float64(y[i]))
				squares += float64(x[i]) * float64(x[i])
				top = max(top, float64(x[i]))
			}
			near(t, "dot", n, s.dot(x, y), sum, float64(n+8)*ulp/2*magnitude)
			near(t, "sum of squares", n, s.sumSquares(x), squares, float64(n+8)*ulp/2*squares)
			near(t, "maximum", n, s.maximum(x), top, 0)

			s.axpy(y, 1.5, x)
			for i := range y {
				near(t, "axpy", n, y[i], float64(y0[i])+1.5*float64(x0[i]), 2*ulp*(math.Abs(float64(y0[i]))+1.5*math.Abs(float64(x0[i]))))
			}
			restore()
			s.add(y, x)
			for i := range y {
				near(t, "add", n, y[i], float64(y0[i]+x0[i]), 0)
			}
			restore()
			s.scale(y, 0.3)
			for i := range y {
				near(t, "scale", n, y[i], float64(y0[i]*0.3), 0)
			}
			restore()
			s.mulScaled(y, x, y, 0.3, 1)
			for i := range y {
				want := float64(x0[i]) * float64(float32(0.3)) * (float64(y0[i]) + 1)
				near(t, "scaled product", n, y[i], want, 3*ulp*math.Abs(float64(x0[i]))*(math.Abs(float64(y0[i]))+1))
			}
			restore()
			for i := range x {
				x[i] *= 20
			}
			copy(x0, x)
			s.siluMul(y, x, y)
			for i := range y {
				want := float64(x0[i]) / (1 + math.Exp(-float64(x0[i]))) * float64(y0[i])
				near(t, "silu", n, y[i], want, 5e-7*math.Abs(want)+1e-35)
			}
			restore()
			shift := s.maximum(x)
			total := s.expSum(x, shift)
			var wantTotal float64
			for i := range x {
				want := math.Exp(float64(x0[i] - shift))
				if x0[i]-shift < -87 {
					want = 0
				}
				near(t, "exp", n, x[i], want, 2e-7*want)
				wantTotal += want
			}
			near(t, "sum of exp", n, total, wantTotal, float64(n+8)*ulp*wantTotal)
			checkX(t)
			checkY(t)
		}
	})
}

// The exponential holds its error over its whole range, keeps NaN, and is zero far below.
func TestExp(t *testing.T) {
	eachISA(t, func(t *testing.T, s *set) {
		rng := rand.New(rand.NewPCG(9, 1))
		x, worst := make([]float32, 1<<16), 0.0
		for i := range x {
			x[i] = -87 + rng.Float32()*175
		}
		got := append([]float32(nil), x...)
		s.expSum(got, 0)
		for i := range x {
			want := math.Exp(float64(x[i]))
			worst = max(worst, math.Abs(float64(got[i])-want)/want)
		}
		if worst > 2e-7 {
			t.Errorf("the largest relative error is %g", worst)
		}
		edges := []float32{float32(math.NaN()), float32(math.Inf(-1)), -1e30, -88, 0}
		s.expSum(edges, 0)
		if edges[0] == edges[0] || edges[1] != 0 || edges[2] != 0 || edges[3] != 0 || edges[4] != 1 {
			t.Errorf("exp of NaN, -Inf, -1e30, -88, 0 is %g", edges)
		}
	})
}

// The attention primitives agree with float64 for any number of rows, size and stride; a row's dot product does not depend on its place.
func TestAttentionRows(t *testing.T) {
	eachISA(t, func(t *testing.T, s *set) {
		rng := rand.New(rand.NewPCG(2, 3))
		for _, size := range []int{1, 5, 8, 16, 33, 64, 80, 128, 192, 300} {
			for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 33} {
				stride := size + rng.IntN(20)
				q, k := randomFloats(rng, size), randomFloats(rng, (n-1)*stride+size)
				dst, check := guarded(rng, n)
				s.dotRows(dst, q, k, stride, n)
				check(t)
				for j := range n {
					var want, magnitude float64
					for i := range q {
						p := float64(q[i]) * float64(k[j*stride+i])
						want, magnitude = want+p, magnitude+math.Abs(p)
					}
					near(t, fmt.Sprintf("dot product with row %d of %d", j, n), size, dst[j], want, float64(size+8)*ulp/2*magnitude)
					var alone [1]float32
					if s.dotRows(alone[:], q, k[j*stride:][:size], stride, 1); alone[0] != dst[j] {
						t.Fatalf("size %d: row %d of %d gives %g, alone %g", size, j, n, dst[j], alone[0])
					}
				}
				acc, check := guarded(rng, size)
				before := append([]float32(nil), acc...)
				s.axpyRows(acc, dst, k, stride, n)
				check(t)
				for i := range acc {
					want, magnitude := float64(before[i]), math.Abs(float64(before[i]))
					for j := range n {
						p := float64(dst[j]) * float64(k[j*stride+i])
						want, magnitude = want+p, magnitude+math.Abs(p)
					}
					near(t, fmt.Sprintf("weighted sum of %d rows", n), size, acc[i], want, float64(n+1)*ulp*magnitude)
				}
			}
		}
	})
}

func TestRMSNormRow(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for _, n := range lengths {
		x, w := randomFloats(rng, n), randomFloats(rng, n)
		for _, zeroCentred := range []bool{false, true} {
			for _, weight := range [][]float32{w, nil} {
				dst := make([]float32, n)
				RMSNormRow(dst, x, weight, 1e-5, zeroCentred)
				var squares float64
				for _, v := range x {
					squares += float64(v) * float64(v)
				}
				for i := range x {
					f := 1.0
					if weight != nil {
						if f = float64(w[i]); zeroCentred {
							f++
						}
					}
					base := float64(x[i]) / math.Sqrt(squares/float64(n)+1e-5)
					near(t, "RMSNormRow", n, dst[i], base*f, (float64(n)/16+6)*ulp*math.Abs(base)*(math.Abs(f)+1))
				}
			}
		}
	}
}

// The exported operations take empty rows.
func TestEmptyRows(t *testing.T) {
	for name, f := range map[string]func(){
		"Dot": func() { Dot(nil, nil) }, "Axpy": func() { Axpy(nil, 1, nil) }, "Scale": func() { Scale(nil, 1) }, "Add": func() { Add(nil, nil) },
		"SiLUMul": func() { SiLUMul(nil, nil, nil) }, "SoftmaxRow": func() { SoftmaxRow(nil, 0) },
		"DotRows": func() { DotRows(nil, []float32{1}, nil, 1, 0) }, "AxpyRows": func() { AxpyRows([]float32{1}, nil, nil, 1, 0) },
		"DecodeF16": func() { DecodeF16(nil, nil) }, "DecodeBF16": func() { DecodeBF16(nil, nil) },
	} {
		t.Run(name, func(t *testing.T) { f() })
	}
	if m := Max(nil); !math.IsInf(float64(m), -1) {
		t.Errorf("Max of nothing is %g", m)
	}
}

// Every 16-bit value widens exactly, at any length.
func TestDecode16(t *testing.T) {
	eachISA(t, func(t *testing.T, s *set) {
		var src []byte
		for v := range 1 << 16 {
			src = binary.LittleEndian.AppendUint16(src, uint16(v))
		}
		for _, n := range append([]int{1 << 16}, lengths...) {
			for name, f := range map[string]struct {
				decode func([]float32, []byte)
				want   func(uint16) float32
			}{"F16": {s.decodeF16, format.F16ToF32}, "BF16": {s.decodeBF16, format.BF16ToF32}} {
				dst := make([]float32, n)
				f.decode(dst, src[:2*n])
				for i, v := range dst {
					want := f.want(uint16(i))
					if math.Float32bits(v) != math.Float32bits(want) && v == v && want == want {
						t.Fatalf("%s: %#x of %d values is %g, want %g", name, i, n, v, want)
					}
				}
			}
		}
	})
}

func BenchmarkVector(b *testing.B) {
	const n = 2048
	rng := rand.New(rand.NewPCG(1, 1))
	x, y, z := randomFloats(rng, n), randomFloats(rng, n), make([]float32, n)
	rows := randomFloats(rng, 64*128)
	var in Input
	in.Set(x, 1, n)
	bits := make([]byte, 2*n)
	for i := generic; i <= detect(); i++ {
		s := newSet(i)
		for name, f := range map[string]func(){
			"dot":            func() { s.dot(x, y) },
			"siluMul":        func() { s.siluMul(z, x, y) },
			"expSum":         func() { copy(z, x); s.expSum(z, 1) },
			"quantize":       func() { in.quantize(s.vector, 0) },
			"maximum":        func() { s.maximum(x) },
			"decodeBF16":     func() { s.decodeBF16(z, bits) },
			"dotRows64x128":  func() { s.dotRows(z, x[:128], rows, 128, 64) },
			"dotRows128x64":  func() { s.dotRows(z, x[:64], rows, 64, 128) },
			"axpyRows64x128": func() { s.axpyRows(z[:128], x, rows, 128, 64) },
			"axpyRows128x64": func() { s.axpyRows(z[:64], x, rows, 64, 128) },
		} {
			b.Run(name+"/"+i.String(), func(b *testing.B) {
				for b.Loop() {
					f()
				}
			})
		}
	}
}
