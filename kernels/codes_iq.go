package kernels

import (
	"encoding/binary"
	"math/bits"

	"github.com/coli-moe/coli/weights/format"
)

// The IQ formats store indices of a codebook's entries, eight or four columns each. Codes are the entries with their signs; those of IQ1
// are eight times the entry plus or minus one, as its offset is an eighth.

// signed writes the magnitudes, negated where the bit of signs is set.
func signed(q []int8, magnitudes []int8, signs byte) {
	for i, m := range magnitudes {
		if signs>>i&1 != 0 {
			m = -m
		}
		q[i] = m
	}
}

// evenSigns completes seven signs to eight, of which an even number is set.
func evenSigns(seven uint32) byte {
	s := byte(seven & 127)
	return s | byte(bits.OnesCount8(s)&1)<<7
}

// nibbleScale is what a scale of four bits stands for in IQ2 and IQ3_XXS.
func nibbleScale(d float32, nibble byte, unit float32) float32 {
	return d * (0.5 + float32(nibble)) * unit
}

func unpackIQ2_XXS(q []int8, a, _ []float32, b []byte) {
	d, book := f16(b), format.IQ2_XXS.Codebook()
	for i := range 8 {
		b := b[2+8*i:][:8]
		signs := binary.LittleEndian.Uint32(b[4:])
		fill(a[2*i:2*i+2], nibbleScale(d, byte(signs>>28), 0.25))
		for l := range 4 {
			signed(q[32*i+8*l:], book[b[l]], evenSigns(signs>>(7*l)))
		}
	}
}

func unpackIQ2_XS(q []int8, a, _ []float32, b []byte) {
	d, scales, book := f16(b), b[66:74], format.IQ2_XS.Codebook()
	for i := range a {
		a[i] = nibbleScale(d, scales[i/2]>>(i%2*4)&15, 0.25)
	}
	for i := range 32 {
		w := binary.LittleEndian.Uint16(b[2+2*i:])
		signed(q[8*i:], book[w&511], evenSigns(uint32(w>>9)))
	}
}

func unpackIQ2_S(q []int8, a, _ []float32, b []byte) {
	d, low, signs, high, scales, book := f16(b), b[2:34], b[34:66], b[66:74], b[74:82], format.IQ2_S.Codebook()
	for i := range a {
		a[i] = nibbleScale(d, scales[i/2]>>(i%2*4)&15, 0.25)
	}
	for i := range 32 {
		signed(q[8*i:], book[int(low[i])|int(high[i/4]>>(i%4*2)&3)<<8], signs[i])
	}
}

func unpackIQ3_XXS(q []int8, a, _ []float32, b []byte) {
	d, indices, book := f16(b), b[2:66], format.IQ3_XXS.Codebook()
	for i := range 8 {
		signs := binary.LittleEndian.Uint32(b[66+4*i:])
		fill(a[2*i:2*i+2], nibbleScale(d, byte(signs>>28), 0.5))
		for l := range 8 {
			signed(q[32*i+4*l:], book[indices[8*i+l]], evenSigns(signs>>(l/2*7))>>(l%2*4))
		}
	}
}

func unpackIQ3_S(q []int8, a, _ []float32, b []byte) {
	d, low, high, signs, scales, book := f16(b), b[2:66], b[66:74], b[74:106], b[106:110], format.IQ3_S.Codebook()
	for i := range a {
		a[i] = d * float32(1+2*(scales[i/4]>>(i/2%2*4)&15))
	}
	for i := range 64 {
		signed(q[4*i:], book[int(low[i])|int(high[i/8]>>(i%8)&1)<<8], signs[i/2]>>(i%2*4))
	}
}

// iq1 writes eight times the entry plus one, or minus one if negative.
func iq1(q []int8, entry []int8, negative bool) {
	offset := int8(1)
	if negative {
		offset = -1
	}
	for i, v := range entry {
		q[i] = 8*v + offset
	}
}

func unpackIQ1_S(q []int8, a, _ []float32, b []byte) {
	d, low, book := f16(b), b[2:34], format.IQ1_S.Codebook()
	for i := range 8 {
		high := binary.LittleEndian.Uint16(b[34+2*i:])
		fill(a[2*i:2*i+2], d*float32(2*(high>>12&7)+1)/8)
		for l := range 4 {
			iq1(q[32*i+8*l:], book[int(low[4*i+l])|int(high>>(3*l)&7)<<8], high&0x8000 != 0)
		}
	}
}

func unpackIQ1_M(q []int8, a, _ []float32, b []byte) {
	low, high, book := b[:32], b[32:48], format.IQ1_M.Codebook()
	var words [4]uint16
	var d16 uint16
	for i := range words {
		words[i] = binary.LittleEndian.Uint16(b[48+2*i:])
		d16 |= words[i] >> 12 << (4 * i)
	}
	d := format.F16ToF32(d16)
	for i := range a {
		a[i] = d * float32(2*(words[i/4]>>(i%4*3)&7)+1) / 8
	}
	for i := range 32 {
		h := high[i/2] >> (i % 2 * 4)
		iq1(q[8*i:], book[int(low[i])|int(h&7)<<8], h&8 != 0)
	}
}
