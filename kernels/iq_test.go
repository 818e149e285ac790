package kernels

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/coli-moe/coli/weights/format"
)

var iqFormats = []format.Format{
	format.IQ2_XXS, format.IQ2_XS, format.IQ2_S, format.IQ3_XXS, format.IQ3_S, format.IQ1_S, format.IQ1_M,
}

// iqScales has the smallest and the largest scales of a block of an IQ format, with d, a binary16.
func iqScales(f format.Format, d uint16) (cases []scaleCase) {
	for _, s := range []byte{0, 15} {
		// top sets the scales that are the upper nibbles of every step-th byte, both those that are both.
		top := func(b []byte, step int) {
			for i := step - 1; i < len(b); i += step {
				b[i] = b[i]&15 | s<<4
			}
		}
		both := func(b []byte) {
			for i := range b {
				b[i] = s * 0x11
			}
		}
		set := func(b []byte) {
			binary.LittleEndian.PutUint16(b, d)
			switch f {
			case format.IQ2_XXS:
				top(b[2:66], 8)
			case format.IQ2_XS:
				both(b[66:74])
			case format.IQ2_S:
				both(b[74:82])
			case format.IQ3_XXS:
				top(b[66:98], 4)
			case format.IQ3_S:
				both(b[106:110])
			case format.IQ1_S:
				for i := 35; i < 50; i += 2 {
					b[i] = b[i]&0x8f | s<<4&0x70
				}
			case format.IQ1_M:
				for i := range 4 {
					binary.LittleEndian.PutUint16(b[48+2*i:], uint16(s)*0x111|d>>(4*i)<<12)
				}
			}
		}
		cases = append(cases, scaleCase{fmt.Sprintf("d=%g, %d", format.F16ToF32(d), s), set, 1})
	}
	return cases
}

// The codes and scales of the integer form are the format's values to the last bit.
func TestUnpackIQ(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for _, f := range iqFormats {
		const cols = 512
		want := make([]float32, cols)
		var c codes
		for range 50 {
			row := randomRow(t, rng, f, cols)
			if err := format.Decode(f, want, row); err != nil {
				t.Fatal(err)
			}
			c.reset(cols)
			schemes[f].unpack(&c, row)
			for i, w := range want {
				if got := c.a[i/16] * float32(c.q[i]); got != w {
					t.Fatalf("%s: value %d is %g, decoded %g", f, i, got, w)
				}
			}
		}
	}
}
