package kernels

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/coli-moe/coli/weights/format"
)

// Every code of F8E4M3, wherever it stands in a row, counts as what it decodes to, with scales of any size, and NaN shows.
func TestF8Codes(t *testing.T) {
	const f = format.F8E4M3
	eachISA(t, func(t *testing.T, s *set) {
		for _, cols := range []int{1, 31, 33, 64, 127, 128, 129, 300, 321} {
			for _, scale := range []float32{0, 1, -0.3, 0x1p-140, 0x1p118, 0x1.fffffep127} {
				size, err := f.RowBytes(cols)
				if err != nil {
					t.Fatal(err)
				}
				var x []float32
				for column := range 4 {
					x = append(x, make([]float32, cols)...)
					x[column*cols+(column*cols/3+cols/2)%cols] = 1
				}
				var in Input
				in.Set(x, 4, cols)
				for code := range 256 {
					row, values := make([]byte, size), make([]float32, cols)
					for at := cols; at < size; at += 4 {
						binary.LittleEndian.PutUint32(row[at:], math.Float32bits(scale))
					}
					for _, picked := range [][]int32{{0, 1, 2, 3}, {3}} {
						for _, r := range picked {
							clear(row[:cols])
							at := (int(r)*cols/3 + cols/2) % cols
							row[at] = byte(code)
							if err := format.Decode(f, values, row); err != nil {
								t.Fatal(err)
							}
							dst := make([]float32, len(picked))
							s.kernels[f].MatMul(dst, 1, row, 1, &in, picked)
							for j, got := range dst {
								want := values[at]
								if picked[j] != r && want == want {
									continue
								}
								if got != want && (got == got || want == want) {
									t.Fatalf("%d columns, scale %g, code %#x in column %d, row %d of %d: %g, want %g",
										cols, scale, code, at, j, len(picked), got, want)
								}
							}
						}
					}
				}
			}
		}
	})
}
