package format

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Decode expands one row of len(dst) values in format f. The row must be exactly f.RowBytes(len(dst)) long. The values are those of
// ggml's reference decoders to the last bit, and for the formats ggml lacks those of the format's definition above. The one exception
// are scale codes that mean NaN: an MXFP4 block with scale 255 is NaN, as its specification has it, and an NVFP4 one with 255 is zero, as
// with 127.
//
// Decode keeps no state: any number of goroutines may call it.
func Decode(f Format, dst []float32, row []byte) error {
	want, err := f.RowBytes(len(dst))
	if err != nil {
		return err
	}
	if len(row) != want {
		return fmt.Errorf("format %s: a row of %d columns has %d bytes, got %d", f, len(dst), want, len(row))
	}
	in, dec := f.Info(), decoders[f]
	if in.Block == 1 {
		dec(dst, row)
		return nil
	}
	for len(dst) > 0 {
		dec(dst[:in.Block], row[:in.BlockBytes])
		dst, row = dst[in.Block:], row[in.BlockBytes:]
	}
	return nil
}

// decoders hold, per format, the function that expands one block or, for the formats whose block is one value, a whole row.
//
// Products are converted with float32(…) wherever a sum follows, so that no architecture fuses the two roundings into one.
var decoders = [numFormats]func(y []float32, b []byte){
	F32: decodeF32, F16: decodeF16, BF16: decodeBF16, F8E4M3: decodeF8E4M3, I8Row: decodeI8Row, I4G64: decodeI4G64,
	Q4_0: decodeQ4_0, Q4_1: decodeQ4_1, Q5_0: decodeQ5_0, Q5_1: decodeQ5_1, Q8_0: decodeQ8_0,
	Q2_K: decodeQ2_K, Q3_K: decodeQ3_K, Q4_K: decodeQ4_K, Q5_K: decodeQ5_K, Q6_K: decodeQ6_K,
	IQ2_XXS: decodeIQ2_XXS, IQ2_XS: decodeIQ2_XS, IQ2_S: decodeIQ2_S, IQ3_XXS: decodeIQ3_XXS, IQ3_S: decodeIQ3_S,
	IQ1_S: decodeIQ1_S, IQ1_M: decodeIQ1_M, IQ4_NL: decodeIQ4_NL, IQ4_XS: decodeIQ4_XS,
	TQ1_0: decodeTQ1_0, TQ2_0: decodeTQ2_0, MXFP4: decodeMXFP4, NVFP4: decodeNVFP4,
}

var (
	le16 = binary.LittleEndian.Uint16
	le32 = binary.LittleEndian.Uint32
)

func leF32(b []byte) float32 { return math.Float32frombits(le32(b)) }

func leF16(b []byte) float32 { return F16ToF32(le16(b)) }

func decodeF32(y []float32, b []byte) {
	for i := range y {
		y[i] = leF32(b[4*i:])
	}
}

func decodeF16(y []float32, b []byte) {
	for i := range y {
		y[i] = leF16(b[2*i:])
	}
}

func decodeBF16(y []float32, b []byte) {
	for i := range y {
		y[i] = BF16ToF32(le16(b[2*i:]))
	}
}

func decodeF8E4M3(y []float32, b []byte) {
	scales := b[len(y):]
	for i := range y {
		y[i] = e4m3[b[i]] * leF32(scales[i/128*4:])
	}
}

func decodeI8Row(y []float32, b []byte) {
	d := leF32(b)
	for i := range y {
		y[i] = d * float32(int8(b[4+i]))
	}
}

func decodeI4G64(y []float32, b []byte) {
	d := leF32(b)
	for j, q := range b[4:36] {
		y[j], y[j+32] = d*float32(int(q&15)-8), d*float32(int(q>>4)-8)
	}
}

func decodeQ4_0(y []float32, b []byte) {
	d := leF16(b)
	for j, q := range b[2:18] {
		y[j], y[j+16] = d*float32(int(q&15)-8), d*float32(int(q>>4)-8)
	}
}

func decodeQ4_1(y []float32, b []byte) {
	d, m := leF16(b), leF16(b[2:])
	for j, q := range b[4:20] {
		y[j], y[j+16] = float32(d*float32(q&15))+m, float32(d*float32(q>>4))+m
	}
}

// q5 returns the two 5-bit values of byte j: the low nibble's fifth bit is bit j of high, the high nibble's bit j+16.
func q5(q byte, high uint32, j int) (lo, hi int) {
	return int(q&15) | int(high>>j&1)<<4, int(q>>4) | int(high>>(j+16)&1)<<4
}

func decodeQ5_0(y []float32, b []byte) {
	d, high := leF16(b), le32(b[2:])
	for j, q := range b[6:22] {
		lo, hi := q5(q, high, j)
		y[j], y[j+16] = d*float32(lo-16), d*float32(hi-16)
	}
}

func decodeQ5_1(y []float32, b []byte) {
	d, m, high := leF16(b), leF16(b[2:]), le32(b[4:])
	for j, q := range b[8:24] {
		lo, hi := q5(q, high, j)
		y[j], y[j+16] = float32(d*float32(lo))+m, float32(d*float32(hi))+m
	}
}

func decodeQ8_0(y []float32, b []byte) {
	d := leF16(b)
	for j, q := range b[2:34] {
		y[j] = d * float32(int8(q))
	}
}

// decodeQ2_K: 16 bytes of scale and minimum nibbles, one per 16 values; 64 bytes of 2-bit values; d, dmin.
// As in every k-quant, a byte of packed values holds columns 32 apart.
func decodeQ2_K(y []float32, b []byte) {
	scales, qs, d, dmin := b[:16], b[16:80], leF16(b[80:]), leF16(b[82:])
	for i := range y {
		sc := scales[i/16]
		q := qs[i/128*32+i%32] >> (i % 128 / 32 * 2) & 3
		y[i] = float32(d*float32(sc&15)*float32(q)) - float32(dmin*float32(sc>>4))
	}
}

// decodeQ3_K: 32 bytes of high bits, 64 bytes of low bit pairs, 16 six-bit scales in 12 bytes, d.
func decodeQ3_K(y []float32, b []byte) {
	high, qs, sc, d := b[:32], b[32:96], b[96:108], leF16(b[108:])
	for i := range y {
		g := i / 16
		scale := sc[g%8]>>(g/8*4)&15 | sc[8+g%4]>>(g/4*2)&3<<4
		q := int(qs[i/128*32+i%32]>>(i%128/32*2)&3) | int(high[i%32]>>(i/32)&1)<<2
		y[i] = d * float32(int(scale)-32) * float32(q-4)
	}
}

// k4Scale returns the j-th of eight pairs of six-bit scale and minimum packed in 12 bytes, as Q4_K and Q5_K have them: the first four
// pairs lie in bytes 0..3 and 4..7, the low nibbles of the others in bytes 8..11 and their top bits above those of the first four.
func k4Scale(s []byte, j int) (scale, minimum byte) {
	if j < 4 {
		return s[j] & 63, s[j+4] & 63
	}
	return s[j+4]&15 | s[j-4]>>6<<4, s[j+4]>>4 | s[j]>>6<<4
}

func decodeQ4_K(y []float32, b []byte) {
	d, dmin, scales, qs := leF16(b), leF16(b[2:]), b[4:16], b[16:144]
	for j := range 8 {
		sc, m := k4Scale(scales, j)
		dl, ml := d*float32(sc), dmin*float32(m)
		for l, q := range qs[j/2*32:][:32] {
			y[j*32+l] = float32(dl*float32(q>>(j%2*4)&15)) - ml
		}
	}
}

func decodeQ5_K(y []float32, b []byte) {
	d, dmin, scales, high, qs := leF16(b), leF16(b[2:]), b[4:16], b[16:48], b[48:176]
	for j := range 8 {
		sc, m := k4Scale(scales, j)
		dl, ml := d*float32(sc), dmin*float32(m)
		for l, q := range qs[j/2*32:][:32] {
			y[j*32+l] = float32(dl*float32(q>>(j%2*4)&15|high[l]>>j&1<<4)) - ml
		}
	}
}

// decodeQ6_K: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales, d.
func decodeQ6_K(y []float32, b []byte) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], leF16(b[208:])
	for g, sc := range scales {
		dl := d * float32(int8(sc))
		half, quarter := g/8, g%8/2 // 128 columns, then 32
		for l := g % 2 * 16; l < g%2*16+16; l++ {
			lo := low[half*64+quarter%2*32+l] >> (quarter / 2 * 4) & 15
			hi := high[half*32+l] >> (quarter * 2) & 3
			y[half*128+quarter*32+l] = dl * float32(int(lo|hi<<4)-32)
		}
	}
}

// e2m1 are the values of fp4 E2M1, doubled; the scale that goes with them is halved.
var e2m1 = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

func decodeMXFP4(y []float32, b []byte) {
	d := E8M0ToF32(b[0]) * 0.5
	for j, q := range b[1:17] {
		y[j], y[j+16] = d*e2m1[q&15], d*e2m1[q>>4]
	}
}

// decodeNVFP4: four unsigned E4M3 scales (the code of NaN reads as zero), each over 16 columns.
func decodeNVFP4(y []float32, b []byte) {
	for s, e := range b[:4] {
		var d float32
		if e &= 0x7f; e != 0x7f {
			d = e4m3[e] * 0.5
		}
		for j, q := range b[4+8*s:][:8] {
			y[16*s+j], y[16*s+j+8] = d*e2m1[q&15], d*e2m1[q>>4]
		}
	}
}

// trit returns digit n of the five base-3 digits in q, a fixed-point fraction of 256, as -1, 0 or 1.
func trit(q byte, n int) float32 {
	pow3 := [5]byte{1, 3, 9, 27, 81}
	return float32(int(uint16(q*pow3[n])*3>>8) - 1)
}

// decodeTQ1_0: 48 bytes of five digits (runs of 32 and 16 bytes), 4 bytes of four digits, d.
func decodeTQ1_0(y []float32, b []byte) {
	d, i := leF16(b[52:]), 0
	for _, run := range [3]struct{ from, to, digits int }{{0, 32, 5}, {32, 48, 5}, {48, 52, 4}} {
		for n := range run.digits {
			for _, q := range b[run.from:run.to] {
				y[i] = trit(q, n) * d
				i++
			}
		}
	}
}

func decodeTQ2_0(y []float32, b []byte) {
	d := leF16(b[64:])
	for i := range y {
		y[i] = float32(int(b[i/128*32+i%32]>>(i%128/32*2)&3)-1) * d
	}
}
