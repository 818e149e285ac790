package format

import "math/bits"

// iq4 are the levels of IQ4_NL and IQ4_XS (kvalues_iq4nl in ggml-common.h).
var iq4 = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// iq1Delta is the offset of IQ1's values (IQ1S_DELTA in ggml-common.h).
const iq1Delta = 0.125

// parity completes seven signs to eight: the number of negative values in a group of eight is even.
func parity(signs7 uint32) byte {
	s := byte(signs7 & 127)
	return s | byte(bits.OnesCount8(s)&1)<<7
}

// signed writes d times the magnitudes, negated where the bit of signs is set.
func signed(y []float32, d float32, magnitudes []int8, signs byte) {
	for j, m := range magnitudes {
		v := d * float32(m)
		if signs>>j&1 != 0 {
			v = -v
		}
		y[j] = v
	}
}

func decodeIQ2_XXS(y []float32, b []byte) {
	d, g := leF16(b), gridIQ2XXS()
	for i := range 8 {
		q := b[2+8*i:][:8]
		signs := le32(q[4:])
		db := d * (0.5 + float32(signs>>28)) * 0.25
		for l := range 4 {
			signed(y[32*i+8*l:], db, g[q[l]], parity(signs>>(7*l)))
		}
	}
}

func decodeIQ2_XS(y []float32, b []byte) {
	d, scales, g := leF16(b), b[66:74], gridIQ2XS()
	for i := range 32 { // groups of eight; a scale nibble covers two
		q := le16(b[2+2*i:])
		db := d * (0.5 + float32(scales[i/4]>>(i%4/2*4)&15)) * 0.25
		signed(y[8*i:], db, g[q&511], parity(uint32(q>>9)))
	}
}

func decodeIQ2_S(y []float32, b []byte) {
	d, qs, signs, high, scales, g := leF16(b), b[2:34], b[34:66], b[66:74], b[74:82], gridIQ2S()
	for i := range 32 {
		db := d * (0.5 + float32(scales[i/4]>>(i%4/2*4)&15)) * 0.25
		signed(y[8*i:], db, g[int(qs[i])|int(high[i/4]>>(i%4*2)&3)<<8], signs[i])
	}
}

func decodeIQ3_XXS(y []float32, b []byte) {
	d, qs, g := leF16(b), b[2:66], gridIQ3XXS()
	for i := range 8 {
		signs := le32(b[66+4*i:])
		db := d * (0.5 + float32(signs>>28)) * 0.5
		for l := range 4 {
			s := parity(signs >> (7 * l))
			signed(y[32*i+8*l:], db, g[qs[8*i+2*l]], s)
			signed(y[32*i+8*l+4:], db, g[qs[8*i+2*l+1]], s>>4)
		}
	}
}

func decodeIQ3_S(y []float32, b []byte) {
	d, qs, high, signs, scales, g := leF16(b), b[2:66], b[66:74], b[74:106], b[106:110], gridIQ3S()
	for i := range 64 { // groups of four
		db := d * float32(1+2*(scales[i/16]>>(i/8%2*4)&15))
		signed(y[4*i:], db, g[int(qs[i])|int(high[i/8]>>(i%8)&1)<<8], signs[i/2]>>(i%2*4))
	}
}

// shifted writes d times the values plus delta.
func shifted(y []float32, d, delta float32, values []int8) {
	for j, v := range values {
		y[j] = d * (float32(v) + delta)
	}
}

func decodeIQ1_S(y []float32, b []byte) {
	d, qs, g := leF16(b), b[2:34], gridIQ1()
	for i := range 32 {
		high := le16(b[34+i/4*2:])
		delta := float32(iq1Delta)
		if high&0x8000 != 0 {
			delta = -delta
		}
		shifted(y[8*i:], d*float32(2*(high>>12&7)+1), delta, g[int(qs[i])|int(high>>(i%4*3)&7)<<8])
	}
}

// decodeIQ1_M: the float16 scale is spread over the top nibbles of the four scale words; the twelve bits below hold four 3-bit scales.
func decodeIQ1_M(y []float32, b []byte) {
	qs, high, g := b[:32], b[32:48], gridIQ1()
	var words [4]uint16
	var d16 uint16
	for i := range words {
		words[i] = le16(b[48+2*i:])
		d16 |= words[i] >> 12 << (4 * i)
	}
	d := F16ToF32(d16)
	for i := range 32 {
		h := high[i/2] >> (i % 2 * 4)
		delta := float32(iq1Delta)
		if h&8 != 0 {
			delta = -delta
		}
		scale := words[i/8] >> (i % 8 / 2 * 3) & 7
		shifted(y[8*i:], d*float32(2*scale+1), delta, g[int(qs[i])|int(h&7)<<8])
	}
}

func decodeIQ4_NL(y []float32, b []byte) {
	d := leF16(b)
	for j, q := range b[2:18] {
		y[j], y[j+16] = d*iq4[q&15], d*iq4[q>>4]
	}
}

func decodeIQ4_XS(y []float32, b []byte) {
	d, high, low := leF16(b), le16(b[2:]), b[4:8]
	for i := range 8 {
		scale := int(low[i/2]>>(i%2*4)&15) | int(high>>(2*i)&3)<<4
		dl := d * float32(scale-32)
		for j, q := range b[8+16*i:][:16] {
			y[32*i+j], y[32*i+j+16] = dl*iq4[q&15], dl*iq4[q>>4]
		}
	}
}
