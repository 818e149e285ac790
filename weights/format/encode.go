package format

import (
	"encoding/binary"
	"fmt"
	"math"
)

// maxF16 is the largest finite binary16 value.
const maxF16 = 65504

// CanEncode reports whether Encode supports f.
func (f Format) CanEncode() bool { return f < numFormats && encoders[f].block != nil }

// Encode quantises one row of len(src) values to format f into dst, which must be exactly f.RowBytes(len(src)) long. It rounds to
// nearest and picks scales that keep the squared error small; it is meant for tests and synthetic models, not for the last tenth of
// a perplexity. It refuses formats that CanEncode denies, values a quantised format cannot hold (NaN, infinities) and, where values or
// scales are float16, finite magnitudes above 65504. F32, F16 and BF16 keep NaN and infinities.
//
// Encode keeps no state: any number of goroutines may call it.
func Encode(f Format, dst []byte, src []float32) error {
	want, err := f.RowBytes(len(src))
	if err != nil {
		return err
	}
	if !f.CanEncode() {
		return fmt.Errorf("format %s can be read but not written; write one of F32, BF16, Q8_0 or Q4_K instead", f)
	}
	if len(dst) != want {
		return fmt.Errorf("format %s: a row of %d columns has %d bytes, got room for %d", f, len(src), want, len(dst))
	}
	enc := encoders[f]
	for i, x := range src {
		mag := math.Abs(float64(x))
		finite := mag <= math.MaxFloat32
		if !finite && !enc.keepsNonFinite || finite && mag > enc.limit {
			return fmt.Errorf("format %s cannot hold the value %g of column %d", f, x, i)
		}
	}
	in := f.Info()
	if in.Block == 1 {
		enc.block(dst, src)
		return nil
	}
	for len(src) > 0 {
		enc.block(dst[:in.BlockBytes], src[:in.Block])
		dst, src = dst[in.BlockBytes:], src[in.Block:]
	}
	return nil
}

// encoder mirrors the decoders: block fills one block or, where the block is one value, a whole row.
type encoder struct {
	block          func(b []byte, x []float32)
	limit          float64 // the largest finite magnitude it takes
	keepsNonFinite bool
}

var encoders = [numFormats]encoder{
	F32:    {encodeF32, math.MaxFloat32, true},
	F16:    {encodeF16, maxF16, true},
	BF16:   {encodeBF16, math.MaxFloat32, true},
	Q8_0:   {encodeQ8_0, maxF16, false},
	Q4_0:   {encodeQ4_0, maxF16, false},
	Q4_1:   {encodeQ4_1, maxF16 / 2, false}, // its scale spans the range from minimum to maximum
	Q5_0:   {encodeQ5_0, maxF16, false},
	Q5_1:   {encodeQ5_1, maxF16 / 2, false},
	Q4_K:   {encodeQ4_K, maxF16, false},
	Q6_K:   {encodeQ6_K, maxF16, false},
	MXFP4:  {encodeMXFP4, math.MaxFloat32, false},
	F8E4M3: {encodeF8E4M3, math.MaxFloat32, false},
	I8Row:  {encodeI8Row, math.MaxFloat32, false},
	I4G64:  {encodeI4G64, math.MaxFloat32, false},
}

var (
	put16 = binary.LittleEndian.PutUint16
	put32 = binary.LittleEndian.PutUint32
)

// putF16 stores x rounded to binary16 and returns the value stored, which is the one to quantise with.
func putF16(b []byte, x float32) float32 {
	h := F32ToF16(x)
	put16(b, h)
	return F16ToF32(h)
}

// quant returns x/d rounded to nearest even and clamped to [lo, hi]; 0/0 counts as 0.
func quant(x, d float32, lo, hi int) int {
	if d == 0 {
		return max(lo, min(0, hi))
	}
	return int(max(float64(lo), min(math.RoundToEven(float64(x)/float64(d)), float64(hi))))
}

// extreme returns the value of largest magnitude, with its sign.
func extreme(x []float32) (ext float32) {
	for _, v := range x {
		if math.Abs(float64(v)) > math.Abs(float64(ext)) {
			ext = v
		}
	}
	return ext
}

func encodeF32(b []byte, x []float32) {
	for i, v := range x {
		put32(b[4*i:], math.Float32bits(v))
	}
}

func encodeF16(b []byte, x []float32) {
	for i, v := range x {
		put16(b[2*i:], F32ToF16(v))
	}
}

func encodeBF16(b []byte, x []float32) {
	for i, v := range x {
		put16(b[2*i:], F32ToBF16(v))
	}
}

func encodeF8E4M3(b []byte, x []float32) {
	scales := b[len(x):]
	for lo := 0; lo < len(x); lo += 128 {
		tile := x[lo:min(lo+128, len(x))]
		d := float32(math.Abs(float64(extreme(tile)))) / 448
		put32(scales[lo/128*4:], math.Float32bits(d))
		for i, v := range tile {
			if d != 0 {
				v /= d
			}
			b[lo+i] = F32ToE4M3(v)
		}
	}
}

// absmax127 is the scale of the int8 formats: the largest magnitude becomes ±127.
func absmax127(x []float32) float32 { return float32(math.Abs(float64(extreme(x)))) / 127 }

func encodeI8Row(b []byte, x []float32) {
	d := absmax127(x)
	put32(b, math.Float32bits(d))
	for i, v := range x {
		b[4+i] = byte(quant(v, d, -127, 127))
	}
}

func encodeQ8_0(b []byte, x []float32) {
	d := putF16(b, absmax127(x))
	for i, v := range x {
		b[2+i] = byte(quant(v, d, -127, 127))
	}
}

// putNibbles quantises x to offset+x/d in [0, 15]; the second half of x goes to the high nibbles.
func putNibbles(b []byte, x []float32, d float32, offset int) {
	half := len(x) / 2
	for j := range half {
		b[j] = byte(quant(x[j], d, -offset, 15-offset)+offset) | byte(quant(x[j+half], d, -offset, 15-offset)+offset)<<4
	}
}

// The symmetric 4- and 5-bit formats reach one step further below zero than above, so the extreme value takes the lowest step,
// whatever its sign.

func encodeI4G64(b []byte, x []float32) {
	d := extreme(x) / -8
	put32(b, math.Float32bits(d))
	putNibbles(b[4:], x, d, 8)
}

func encodeQ4_0(b []byte, x []float32) {
	d := putF16(b, extreme(x)/-8)
	putNibbles(b[2:], x, d, 8)
}

// minMax stores the step and the minimum of levels+1 equidistant levels over x's range.
func minMax(b []byte, x []float32, levels float32) (d, minimum float32) {
	lo, hi := x[0], x[0]
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	minimum = putF16(b[2:], lo)
	return putF16(b, (hi-minimum)/levels), minimum
}

func encodeQ4_1(b []byte, x []float32) {
	d, m := minMax(b, x, 15)
	for j := range 16 {
		b[4+j] = byte(quant(x[j]-m, d, 0, 15) | quant(x[j+16]-m, d, 0, 15)<<4)
	}
}

// putQ5 stores 32 values of 5 bits: four bytes of fifth bits, then the nibbles.
func putQ5(b []byte, value func(i int) int) {
	var high uint32
	for j := range 16 {
		lo, hi := value(j), value(j+16)
		b[4+j] = byte(lo&15 | hi&15<<4)
		high |= uint32(lo>>4)<<j | uint32(hi>>4)<<(j+16)
	}
	put32(b, high)
}

func encodeQ5_0(b []byte, x []float32) {
	d := putF16(b, extreme(x)/-16)
	putQ5(b[2:], func(i int) int { return quant(x[i], d, -16, 15) + 16 })
}

func encodeQ5_1(b []byte, x []float32) {
	d, m := minMax(b, x, 31)
	putQ5(b[4:], func(i int) int { return quant(x[i]-m, d, 0, 31) })
}

// fitAffine returns d, m ≥ 0 such that d·q-m with q in [0, 15] is close to x: it tries a few steps around the one that spans the
// range and, for each, the least-squares line through the quantised values.
func fitAffine(x []float32) (d, m float32) {
	var lo, hi float32
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	d, m = (hi-lo)/15, -lo
	best := affineError(x, d, m)
	for step := -4; step <= 8; step++ {
		var sx, sq, sxq, sqq float64
		for _, v := range x {
			q := float64(quant(v-lo, (hi-lo)/(15+0.125*float32(step)), 0, 15))
			sx, sq, sxq, sqq = sx+float64(v), sq+q, sxq+float64(v)*q, sqq+q*q
		}
		n := float64(len(x))
		det := n*sqq - sq*sq
		if det == 0 {
			continue
		}
		slope, minimum := (n*sxq-sx*sq)/det, (sq*sxq-sx*sqq)/det
		if minimum < 0 {
			slope, minimum = sxq/sqq, 0
		}
		if e := affineError(x, float32(slope), float32(minimum)); slope > 0 && e < best {
			d, m, best = float32(slope), float32(minimum), e
		}
	}
	return d, m
}

func affineError(x []float32, d, m float32) (sum float64) {
	for _, v := range x {
		e := float64(v) - float64(d)*float64(quant(v+m, d, 0, 15)) + float64(m)
		sum += e * e
	}
	return sum
}

func encodeQ4_K(b []byte, x []float32) {
	var scales, minima [8]float32
	var maxScale, maxMin float32
	for j := range 8 {
		scales[j], minima[j] = fitAffine(x[32*j:][:32])
		maxScale, maxMin = max(maxScale, scales[j]), max(maxMin, minima[j])
	}
	d, dmin := putF16(b, maxScale/63), putF16(b[2:], maxMin/63)
	packed, qs := b[4:16], b[16:144]
	clear(b[4:])
	for j := range 8 {
		sc, m := byte(quant(scales[j], d, 0, 63)), byte(quant(minima[j], dmin, 0, 63))
		if j < 4 {
			packed[j], packed[j+4] = sc, m
		} else { // the first four are below 64: their top two bits are free
			packed[j+4] = sc&15 | m&15<<4
			packed[j-4] |= sc >> 4 << 6
			packed[j] |= m >> 4 << 6
		}
		dl, ml := d*float32(sc), dmin*float32(m)
		for l := range 32 {
			qs[j/2*32+l] |= byte(quant(x[32*j+l]+ml, dl, 0, 15)) << (j % 2 * 4)
		}
	}
}

// fitSymmetric returns the d for which d·q with q in [-32, 31] is close to x, found like fitAffine's.
func fitSymmetric(x []float32) (d float32) {
	ext := extreme(x)
	best := math.Inf(1)
	for step := -4; step <= 8; step++ {
		var sxq, sqq float64
		for _, v := range x {
			q := float64(quant(v, ext/(-32+0.125*float32(step)), -32, 31))
			sxq, sqq = sxq+float64(v)*q, sqq+q*q
		}
		if sqq == 0 {
			return 0
		}
		candidate, sum := float32(sxq/sqq), 0.0
		for _, v := range x {
			e := float64(v) - float64(candidate)*float64(quant(v, candidate, -32, 31))
			sum += e * e
		}
		if sum < best {
			d, best = candidate, sum
		}
	}
	return d
}

func encodeQ6_K(b []byte, x []float32) {
	var scales [16]float32
	for g := range scales {
		scales[g] = fitSymmetric(x[16*g:][:16])
	}
	d := putF16(b[208:], absmax127(scales[:]))
	low, high := b[:128], b[128:192]
	clear(b[:192])
	for g, scale := range scales {
		sc := quant(scale, d, -127, 127)
		b[192+g] = byte(sc)
		half, quarter := g/8, g%8/2
		for l := g % 2 * 16; l < g%2*16+16; l++ {
			q := quant(x[half*128+quarter*32+l], d*float32(sc), -32, 31) + 32
			low[half*64+quarter%2*32+l] |= byte(q&15) << (quarter / 2 * 4)
			high[half*32+l] |= byte(q>>4) << (quarter * 2)
		}
	}
}

// quantE2M1 returns the code of the value nearest to x/d, ties to the even code.
func quantE2M1(x, d float32) byte {
	mag := math.Abs(float64(x) / float64(d))
	code := byte(0)
	for code < 7 {
		mid := float64(e2m1[code]+e2m1[code+1]) / 2
		if mag < mid || mag == mid && code&1 == 0 {
			break
		}
		code++
	}
	if x < 0 && code != 0 {
		code |= 8
	}
	return code
}

// encodeMXFP4 takes the exponent of the MX specification (the extreme value's, less 2) or the next one if that, which need not clip
// the extreme value, has the smaller error.
func encodeMXFP4(b []byte, x []float32) {
	clear(b)
	ext := extreme(x)
	if ext == 0 {
		return
	}
	first := math.Ilogb(float64(ext)) - 2 + 127
	best := math.Inf(1)
	for e := max(first, 0); e <= max(first, 0)+1; e++ {
		d := E8M0ToF32(uint8(e)) * 0.5
		var codes [16]byte
		sum := 0.0
		for i, v := range x {
			code := quantE2M1(v, d)
			diff := float64(v) - float64(d)*float64(e2m1[code])
			sum += diff * diff
			codes[i%16] |= code << (i / 16 * 4)
		}
		if sum < best {
			best, b[0] = sum, uint8(e)
			copy(b[1:], codes[:])
		}
	}
}
