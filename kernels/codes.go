package kernels

import (
	"encoding/binary"
	"math"

	"github.com/coli-moe/coli/weights/format"
)

// schemes has the formats with an integer form. The layouts of their blocks are documented in package format.
var schemes = map[format.Format]*scheme{
	format.Q8_0:   {scaled, eachBlock(32, 34, unpackQ8_0)},
	format.Q4_0:   {scaled, eachBlock(32, 18, unpackQ4_0)},
	format.Q4_1:   {withMin, eachBlock(32, 20, unpackQ4_1)},
	format.Q5_0:   {scaled, eachBlock(32, 22, unpackQ5_0)},
	format.Q5_1:   {withMin, eachBlock(32, 24, unpackQ5_1)},
	format.IQ4_NL: {scaled, eachBlock(32, 18, unpackIQ4_NL)},
	format.IQ4_XS: {scaled, eachBlock(256, 136, unpackIQ4_XS)},
	format.MXFP4:  {scaled, eachBlock(32, 17, unpackMXFP4)},
	format.I8Row:  {scaled, unpackI8Row},
	format.I4G64:  {scaled, eachBlock(64, 36, unpackI4G64)},
	format.NVFP4:  {halves, eachBlock(64, 36, unpackNVFP4)},
	format.TQ1_0:  {scaled, eachBlock(256, 54, unpackTQ1_0)},
	format.TQ2_0:  {scaled, eachBlock(256, 66, unpackTQ2_0)},
	format.Q2_K:   {halvesWithMin, eachBlock(256, 84, unpackQ2_K)},
	format.Q3_K:   {halves, eachBlock(256, 110, unpackQ3_K)},
	format.Q4_K:   {withMin, eachBlock(256, 144, unpackQ4_K)},
	format.Q5_K:   {withMin, eachBlock(256, 176, unpackQ5_K)},
	format.Q6_K:   {halves, eachBlock(256, 210, unpackQ6_K)},

	format.IQ2_XXS: {scaled, eachBlock(256, 66, unpackIQ2_XXS)},
	format.IQ2_XS:  {halves, eachBlock(256, 74, unpackIQ2_XS)},
	format.IQ2_S:   {halves, eachBlock(256, 82, unpackIQ2_S)},
	format.IQ3_XXS: {scaled, eachBlock(256, 98, unpackIQ3_XXS)},
	format.IQ3_S:   {scaled, eachBlock(256, 110, unpackIQ3_S)},
	format.IQ1_S:   {scaled, eachBlock(256, 50, unpackIQ1_S)},
	format.IQ1_M:   {halves, eachBlock(256, 56, unpackIQ1_M)},
}

// eachBlock makes a function of one block, of cols columns in size bytes, one of a row.
func eachBlock(cols, size int, unpack func(q []int8, a, m []float32, b []byte)) func(*codes, []byte) {
	return func(c *codes, row []byte) {
		for i := 0; i < len(c.q); i += cols {
			unpack(c.q[i:][:cols], c.a[i/16:][:cols/16], c.m[i/16:][:cols/16], row[i/cols*size:][:size])
		}
	}
}

func fill(a []float32, v float32) {
	for i := range a {
		a[i] = v
	}
}

func f16(b []byte) float32 { return format.F16ToF32(binary.LittleEndian.Uint16(b)) }

func f32(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }

func unpackQ8_0(q []int8, a, _ []float32, b []byte) {
	fill(a, f16(b))
	for i, v := range b[2:34] {
		q[i] = int8(v)
	}
}

func unpackQ4_0(q []int8, a, _ []float32, b []byte) {
	fill(a, f16(b))
	for i, v := range b[2:18] {
		q[i], q[i+16] = int8(v&15)-8, int8(v>>4)-8
	}
}

func unpackQ4_1(q []int8, a, m []float32, b []byte) {
	fill(a, f16(b))
	fill(m, -f16(b[2:]))
	for i, v := range b[4:20] {
		q[i], q[i+16] = int8(v&15), int8(v>>4)
	}
}

// unpackQ5 makes unsigned five-bit codes of a word with the fifth bits and 16 bytes of nibbles.
func unpackQ5(q []int8, b []byte) {
	high := binary.LittleEndian.Uint32(b)
	for i, v := range b[4:20] {
		q[i], q[i+16] = int8(v&15)|int8(high>>i&1)<<4, int8(v>>4)|int8(high>>(i+16)&1)<<4
	}
}

func unpackQ5_0(q []int8, a, _ []float32, b []byte) {
	fill(a, f16(b))
	unpackQ5(q, b[2:])
	for i := range q {
		q[i] -= 16
	}
}

func unpackQ5_1(q []int8, a, m []float32, b []byte) {
	fill(a, f16(b))
	fill(m, -f16(b[2:]))
	unpackQ5(q, b[4:])
}

// iq4 are the levels of IQ4_NL and IQ4_XS (kvalues_iq4nl in ggml-common.h).
var iq4 = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

func unpackIQ4_NL(q []int8, a, _ []float32, b []byte) {
	fill(a, f16(b))
	for i, v := range b[2:18] {
		q[i], q[i+16] = iq4[v&15], iq4[v>>4]
	}
}

func unpackIQ4_XS(q []int8, a, _ []float32, b []byte) {
	d, high := f16(b), binary.LittleEndian.Uint16(b[2:])
	for j := range 8 {
		scale := int(b[4+j/2]>>(j%2*4)&15) | int(high>>(2*j)&3)<<4
		fill(a[2*j:2*j+2], d*float32(scale-32))
		for i, v := range b[8+16*j:][:16] {
			q[32*j+i], q[32*j+i+16] = iq4[v&15], iq4[v>>4]
		}
	}
}

// mxfp4 is twice the value of each E2M1 code, so that all are integers; the scale is halved in return.
var mxfp4 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

func unpackMXFP4(q []int8, a, _ []float32, b []byte) {
	fill(a, format.E8M0ToF32(b[0])/2)
	for i, v := range b[1:17] {
		q[i], q[i+16] = mxfp4[v&15], mxfp4[v>>4]
	}
}

// unpackNVFP4 takes the code of NaN for a scale of zero, as package format does.
func unpackNVFP4(q []int8, a, _ []float32, b []byte) {
	for g, e := range b[:4] {
		if e &= 0x7f; e == 0x7f {
			e = 0
		}
		a[g] = format.F16ToF32(uint16(e)<<7) * (256 / 2) // exponent and fraction in their place of a binary16
		for i, v := range b[4+8*g:][:8] {
			q[16*g+i], q[16*g+i+8] = mxfp4[v&15], mxfp4[v>>4]
		}
	}
}

func unpackI8Row(c *codes, row []byte) {
	fill(c.a, f32(row))
	for i, v := range row[4:] {
		c.q[i] = int8(v)
	}
}

func unpackI4G64(q []int8, a, _ []float32, b []byte) {
	fill(a, f32(b))
	for i, v := range b[4:36] {
		q[i], q[i+32] = int8(v&15)-8, int8(v>>4)-8
	}
}

// twoBits returns the low two bits of value i, of which bytes of 32 values hold four runs.
func twoBits(b []byte, i int) int8 { return int8(b[i/128*32+i%32] >> (i % 128 / 32 * 2) & 3) }

// unpackTQ1_0 takes digits to the base of three from bytes that are fractions of 256: five each of 32 and of 16 bytes, four of four.
func unpackTQ1_0(q []int8, a, _ []float32, b []byte) {
	fill(a, f16(b[52:]))
	i := 0
	for _, run := range []struct {
		bytes  []byte
		digits int
	}{{b[:32], 5}, {b[32:48], 5}, {b[48:52], 4}} {
		power := byte(1)
		for range run.digits {
			for _, v := range run.bytes {
				q[i] = int8(uint16(v*power)*3>>8) - 1
				i++
			}
			power *= 3
		}
	}
}

func unpackTQ2_0(q []int8, a, _ []float32, b []byte) {
	fill(a, f16(b[64:]))
	for i := range q {
		q[i] = twoBits(b, i) - 1
	}
}

func unpackQ2_K(q []int8, a, m []float32, b []byte) {
	d, dmin := f16(b[80:]), f16(b[82:])
	for g, s := range b[:16] {
		a[g], m[g] = d*float32(s&15), dmin*float32(s>>4)
	}
	for i := range q {
		q[i] = twoBits(b[16:], i)
	}
}

func unpackQ3_K(q []int8, a, _ []float32, b []byte) {
	s, d := b[96:108], f16(b[108:])
	for g := range a {
		a[g] = d * float32(int(s[g%8]>>(g/8*4)&15|s[8+g%4]>>(g/4*2)&3<<4)-32)
	}
	for i := range q {
		q[i] = twoBits(b[32:], i) | int8(b[i%32]>>(i/32)&1)<<2 - 4
	}
}

// unpackK fills the scales and minima of Q4_K and Q5_K, whose blocks start alike.
func unpackK(a, m []float32, b []byte) {
	d, dmin, s := f16(b), f16(b[2:]), b[4:16]
	for j := range 8 {
		var scale, minimum byte
		if j < 4 {
			scale, minimum = s[j]&63, s[j+4]&63
		} else {
			scale, minimum = s[j+4]&15|s[j-4]>>6<<4, s[j+4]>>4|s[j]>>6<<4
		}
		fill(a[2*j:2*j+2], d*float32(scale))
		fill(m[2*j:2*j+2], dmin*float32(minimum))
	}
}

func unpackQ4_K(q []int8, a, m []float32, b []byte) {
	unpackK(a, m, b)
	for i := range q {
		q[i] = int8(b[16+i/64*32+i%32] >> (i % 64 / 32 * 4) & 15)
	}
}

func unpackQ5_K(q []int8, a, m []float32, b []byte) {
	unpackK(a, m, b)
	for i := range q {
		q[i] = int8(b[48+i/64*32+i%32]>>(i%64/32*4)&15 | b[16+i%32]>>(i/32)&1<<4)
	}
}

func unpackQ6_K(q []int8, a, _ []float32, b []byte) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], f16(b[208:])
	for g, s := range scales {
		a[g] = d * float32(int8(s))
	}
	for i := range q {
		half, quarter, l := i/128, i%128/32, i%32
		lo := low[half*64+quarter%2*32+l] >> (quarter / 2 * 4) & 15
		hi := high[half*32+l] >> (quarter * 2) & 3
		q[i] = int8(lo|hi<<4) - 32
	}
}
