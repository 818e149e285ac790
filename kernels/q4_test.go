package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/coli-moe/coli/weights/format"
)

// scaleCase is one choice of the scales in every unit of a row.
type scaleCase struct {
	name string
	set  func(unit []byte) // writes the scales
	x    float32           // the magnitude of the activations
}

// scaleCases has the extremes of each format's scales: zero, subnormal, the largest, negative.
func scaleCases(f format.Format) (cases []scaleCase) {
	for _, h := range []uint16{0, 0x8000, 1, 0x3ff, 0x7bff, 0xfbff, 0x3c00} {
		name := fmt.Sprint(format.F16ToF32(h))
		put := func(b []byte) { binary.LittleEndian.PutUint16(b, h) }
		switch f {
		case format.Q4_0, format.Q5_0, format.IQ4_NL:
			cases = append(cases, scaleCase{"d=" + name, put, 1})
		case format.Q4_1, format.Q5_1:
			cases = append(cases,
				scaleCase{"d=" + name, func(b []byte) { put(b); b[2], b[3] = 0, 0x3c }, 1},
				scaleCase{"m=" + name, func(b []byte) { b[0], b[1] = 0, 0x3c; put(b[2:]) }, 1})
		case format.TQ1_0:
			cases = append(cases, scaleCase{"d=" + name, func(b []byte) { put(b[52:]) }, 1})
		case format.TQ2_0:
			cases = append(cases, scaleCase{"d=" + name, func(b []byte) { put(b[64:]) }, 1})
		case format.Q2_K:
			for _, s := range []byte{0, 0x0f, 0xf0, 0xff} {
				both := func(b []byte) { copy(b, slices.Repeat([]byte{s}, 16)) }
				cases = append(cases,
					scaleCase{fmt.Sprintf("d=%s, dmin=1, %x", name, s), func(b []byte) { both(b); put(b[80:]); b[82], b[83] = 0, 0x3c }, 1},
					scaleCase{fmt.Sprintf("d=1, dmin=%s, %x", name, s), func(b []byte) { both(b); b[80], b[81] = 0, 0x3c; put(b[82:]) }, 1})
			}
		case format.Q3_K:
			for _, six := range []byte{0, 0x55, 0xff} {
				cases = append(cases, scaleCase{fmt.Sprintf("d=%s, %x", name, six), func(b []byte) {
					copy(b[96:], slices.Repeat([]byte{six}, 12))
					put(b[108:])
				}, 1})
			}
		case format.IQ4_XS:
			for _, six := range []byte{0, 0x55, 0xff} {
				cases = append(cases, scaleCase{fmt.Sprintf("d=%s, %d", name, six&63), func(b []byte) {
					put(b)
					copy(b[2:8], slices.Repeat([]byte{six}, 6))
				}, 1})
			}
		case format.Q4_K, format.Q5_K:
			for _, six := range []byte{0, 0xff} { // all scales and minima 0 or 63
				both := func(b []byte) { copy(b[4:16], slices.Repeat([]byte{six}, 12)) }
				cases = append(cases,
					scaleCase{fmt.Sprintf("d=%s, dmin=1, %d", name, six&63), func(b []byte) { both(b); put(b); b[2], b[3] = 0, 0x3c }, 1},
					scaleCase{fmt.Sprintf("d=1, dmin=%s, %d", name, six&63), func(b []byte) { both(b); b[0], b[1] = 0, 0x3c; put(b[2:]) }, 1})
			}
		case format.Q6_K:
			for _, s := range []byte{0, 1, 0x7f, 0x80, 0xff} {
				cases = append(cases, scaleCase{fmt.Sprintf("d=%s, %d", name, int8(s)), func(b []byte) {
					copy(b[192:], slices.Repeat([]byte{s}, 16))
					put(b[208:])
				}, 1})
			}
		default:
			if slices.Contains(iqFormats, f) {
				cases = append(cases, iqScales(f, h)...)
			}
		}
	}
	switch f {
	case format.MXFP4:
		// Past 252 the largest value, 6 times the scale, is no float32.
		for _, e := range []byte{0, 1, 2, 126, 127, 128, 251, 252} {
			cases = append(cases, scaleCase{fmt.Sprintf("2^(%d-127)", e), func(b []byte) { b[0] = e }, float32(math.Ldexp(1, -int(e)/3))})
		}
	case format.NVFP4:
		for _, e := range []byte{0, 1, 7, 8, 0x38, 0x7e, 0x7f, 0x80, 0xff} {
			cases = append(cases, scaleCase{fmt.Sprintf("E4M3 %#x", e), func(b []byte) { copy(b, slices.Repeat([]byte{e}, 4)) }, 1})
		}
	case format.I4G64:
		for _, d := range []float32{0, 0x1p-149, 0x1p-126, 1, 0x1p124, -0x1p124} {
			set := func(b []byte) { binary.LittleEndian.PutUint32(b, math.Float32bits(d)) }
			cases = append(cases, scaleCase{fmt.Sprint(d), set, min(1, 0x1p84/max(d, -d))})
		}
	}
	return cases
}

// nibbleFormats are those of fewer than eight bits, whose kernels gen/q4common.go generates.
var nibbleFormats = []format.Format{
	format.Q4_0, format.Q4_1, format.Q5_0, format.Q5_1, format.Q4_K, format.Q5_K, format.Q6_K, format.IQ4_NL, format.IQ4_XS,
	format.Q2_K, format.Q3_K, format.TQ1_0, format.TQ2_0, format.MXFP4, format.NVFP4, format.I4G64,
}

var extremeFormats = slices.Concat(nibbleFormats, iqFormats)

// The extremes of scales, codes and activations agree with float64: no sum of codes times q overflows what it is kept in.
func TestExtremes(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	constant := func(b byte) func() byte { return func() byte { return b } }
	codes := []func() byte{constant(0), constant(0xff), constant(0x77), func() byte { return byte(rng.Uint32()) }}
	signs := []func() float32{
		func() float32 { return 1 },
		func() float32 { return -1 },
		func() float32 { return float32(rng.IntN(2)*2 - 1) },
	}
	eachISA(t, func(t *testing.T, s *set) {
		for _, f := range extremeFormats {
			in := f.Info()
			cols := roundUp(800, in.Block)
			for _, c := range scaleCases(f) {
				for codeCase, code := range codes {
					row := make([]byte, cols/in.Block*in.BlockBytes)
					for u := 0; u < len(row); u += in.BlockBytes {
						for i := range in.BlockBytes {
							row[u+i] = code()
						}
						c.set(row[u:][:in.BlockBytes])
					}
					w := slices.Repeat(row, 2)
					for signCase, sign := range signs {
						x := make([]float32, 4*cols)
						for i := range x {
							x[i] = sign() * c.x
						}
						var in Input
						in.Set(x, 4, cols)
						for r := range in.Rows {
							in.quantize(s.vector, r)
						}
						k := s.kernels[f]
						for _, rows := range [][]int32{{1}, {0, 1, 2, 3}} {
							dst := make([]float32, 2*len(rows))
							k.MatMul(dst, 2, w, 2, &in, rows)
							for i, got := range dst {
								want, tolerance := product(t, k, row, &in, int(rows[i/2]))
								tolerance += subnormalTolerance(f, row, &in, int(rows[i/2]))
								if !(math.Abs(float64(got)-want) <= tolerance) {
									t.Fatalf("%s, scale %s, codes %d, signs %d, %d rows: %g, want %g ± %g", f, c.name, codeCase, signCase, len(rows),
										got, want, tolerance)
								}
							}
						}
					}
				}
			}
		}
	})
}

// subnormalTolerance bounds the error of products a·d that are subnormal, half of 2^-149 each, times what they multiply, and of the
// sums' own.
func subnormalTolerance(f format.Format, row []byte, in *Input, r int) float64 {
	var c codes
	c.reset(in.Cols)
	schemes[f].unpack(&c, row)
	sum := float64(in.Cols)
	for i, q := range c.q {
		sum += (math.Abs(float64(q)) + 1) * math.Abs(float64(in.Q[r*in.Padded()+i]))
	}
	return sum * 0x1p-149
}

// A kernel may read into the next row where a row has no whole group at its end, but must not let it show.
func TestNeighbours(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	eachISA(t, func(t *testing.T, s *set) {
		for _, f := range extremeFormats {
			for _, cols := range []int{64, 320, 768, 1344, 2880} {
				cols = roundUp(cols, f.Info().Block)
				good := randomRow(t, rng, f, cols)
				bad := slices.Repeat([]byte{0xff}, len(good)) // every scale is NaN, except that NVFP4 has none
				w := slices.Concat(good, bad, good, bad, bad, good)
				var in Input
				in.Set(randomFloats(rng, 4*cols), 4, cols)
				for r := range in.Rows {
					in.quantize(s.vector, r)
				}
				for _, rows := range [][]int32{{3}, {0, 1, 2, 3}} {
					k := s.kernels[f]
					alone, together := make([]float32, len(rows)), make([]float32, 6*len(rows))
					k.MatMul(alone, 1, good, 1, &in, rows)
					k.MatMul(together, 6, w, 6, &in, rows)
					for i, got := range together {
						want, j := alone[i/6], i%6
						if j == 0 || j == 2 || j == 5 {
							if math.Float32bits(got) != math.Float32bits(want) {
								t.Fatalf("%s, %d columns, %d rows: row %d gives %g among others, %g alone", f, cols, len(rows), j, got, want)
							}
						} else if f != format.NVFP4 && !math.IsNaN(float64(got)) && !math.IsInf(float64(got), 0) {
							t.Fatalf("%s, %d columns, %d rows: row %d of NaN gives %g", f, cols, len(rows), j, got)
						}
					}
				}
			}
		}
	})
}
