// Package layout rearranges the weights of a matrix for the device: values apart from scales, both aligned, and every format of less
// than a byte in the same order of nibbles, so that a shader reads any of them with wide loads and unpacks four values at a time.
//
// What does not live here: the shaders that read it (package shaders; include/weights.glsl is the GLSL side) and the upload.
//
// # The layout
//
// A matrix is two planes. Row r's values lie at base + r·QStride, its scales at base + SOffset + r·SStride. Base, planes and
// QStride are multiples of 16 bytes; bytes that belong to no column are zero. A block is 32 columns; "nibbles" are the 16 bytes of a
// block of which byte j holds column j in its low and column j+16 in its high four bits. The planes of a row:
//
//	F32, F16, BF16   values                         | nothing
//	Q8_0             32 int8 a block                | float16 a block
//	I8Row            32 int8 a block                | one float32 (SStride 4)
//	Q4_0             nibbles, value+8               | float16 a block
//	I4G64            nibbles, value+8               | float32 for two blocks
//	MXFP4            nibbles, E2M1 codes            | the exponent byte of each block
//	Q4_K             nibbles                        | 16 bytes for 8 blocks: the K head
//	Q5_K             low nibbles                    | 48 bytes for 8 blocks: the K head, then 8 words with the fifth bits
//	Q6_K             low nibbles of value+32        | 80 bytes for 8 blocks: 8 pairs of words with the upper bits, 16 int8 scales (of
//	                                                  16 columns each); behind those of the whole row a float16 d for 8 blocks
//
// The K head is float16 d, float16 dmin, a word with the low four bits of the eight scales (scale j in bits 4j..4j+3), the same of
// the minimums, and a word with the upper two bits of the scales (bits 2j, 2j+1) and minimums (bits 16+2j, 17+2j). A value of block j
// is d·scale_j·q - dmin·min_j.
//
// The fifth bit of column c of a Q5_K block is bit 8·(c%4) + c/4 of its word: shifted right by c/4 and masked with 0x01010101, a word
// gives the bits of four neighbouring columns. Of Q6_K, the two bits of column c start at bit 8·(c%4) + 2·(c%16/4) of word c/16.
package layout

import (
	"encoding/binary"
	"math"

	"github.com/coli-moe/coli/weights/format"
)

const (
	block      = 32  // columns of a block
	superBlock = 256 // columns of a block of the K formats
)

// Layout is where the planes of one matrix lie. All sizes are in bytes.
type Layout struct {
	Format     format.Format
	Rows, Cols int
	QStride    int64 // of a row's values
	SStride    int64 // of a row's scales; 0 where the format has none
	SOffset    int64 // of the scales from the base
	Bytes      int64 // of the whole matrix
}

// geometry is the size of a format's planes and the function that fills them for one row.
type geometry struct {
	unit  int // columns whose sizes these are
	q, s  int // bytes of values and scales
	fixed int // bytes of scales of a whole row
	pack  func(q, s, row []byte)
}

var geometries = map[format.Format]geometry{
	format.F32:   {1, 4, 0, 0, packValues},
	format.F16:   {1, 2, 0, 0, packValues},
	format.BF16:  {1, 2, 0, 0, packValues},
	format.Q8_0:  {block, 32, 2, 0, packQ8_0},
	format.I8Row: {block, 32, 0, 4, packI8Row},
	format.Q4_0:  {block, 16, 2, 0, packQ4_0},
	format.I4G64: {2 * block, 32, 4, 0, packI4G64},
	format.MXFP4: {block, 16, 1, 0, packMXFP4},
	format.Q4_K:  {superBlock, 128, 16, 0, packQ4_K},
	format.Q5_K:  {superBlock, 128, 48, 0, packQ5_K},
	format.Q6_K:  {superBlock, 128, 82, 0, packQ6_K},
}

// For returns the layout of a matrix [rows, cols]. It is false for a format without a device form and for a shape that the format does
// not have.
func For(f format.Format, rows, cols int) (Layout, bool) {
	g, ok := geometries[f]
	if _, err := f.RowBytes(cols); !ok || err != nil || rows <= 0 {
		return Layout{}, false
	}
	units := int64((cols + g.unit - 1) / g.unit)
	l := Layout{Format: f, Rows: rows, Cols: cols, QStride: align(units * int64(g.q))}
	l.SStride = units*int64(g.s) + int64(g.fixed)
	if g.s > 0 {
		l.SStride = align(l.SStride)
	}
	if l.QStride+l.SStride > math.MaxInt64/int64(rows)-32 {
		return Layout{}, false
	}
	l.SOffset = int64(rows) * l.QStride
	l.Bytes = align(l.SOffset + int64(rows)*l.SStride)
	return l, true
}

func align(n int64) int64 { return (n + 15) &^ 15 }

// Pack fills dst, Bytes long, from the rows of a matrix as its file has them, format.RowBytes(Cols) each. Any number of goroutines
// may call it.
func (l Layout) Pack(dst, rows []byte) {
	dst = dst[:l.Bytes]
	end := l.SOffset + int64(l.Rows)*l.SStride
	clear(dst[end:])
	l.PackRows(dst[:l.SOffset], dst[l.SOffset:end], rows, l.Rows)
}

// PackRows fills the values q and the scales s of n rows: what goes to base + r·QStride and base + SOffset + r·SStride, if r is the
// first of them. q has n·QStride bytes, s n·SStride. It is how a matrix is packed in slices or by several goroutines.
func (l Layout) PackRows(q, s, rows []byte, n int) {
	bytes, _ := l.Format.RowBytes(l.Cols)
	pack := geometries[l.Format].pack
	for i := range n {
		q, s := q[int64(i)*l.QStride:][:l.QStride], s[int64(i)*l.SStride:][:l.SStride]
		clear(q)
		clear(s)
		pack(q, s, rows[i*bytes:][:bytes])
	}
}

func packValues(q, _, row []byte) { copy(q, row) }

func packI8Row(q, s, row []byte) {
	copy(s, row[:4])
	copy(q, row[4:])
}

func packQ8_0(q, s, row []byte) {
	for i := 0; len(row) > 0; i, row = i+1, row[34:] {
		copy(s[2*i:], row[:2])
		copy(q[32*i:], row[2:34])
	}
}

func packQ4_0(q, s, row []byte) {
	for i := 0; len(row) > 0; i, row = i+1, row[18:] {
		copy(s[2*i:], row[:2])
		copy(q[16*i:], row[2:18])
	}
}

func packMXFP4(q, s, row []byte) {
	for i := 0; len(row) > 0; i, row = i+1, row[17:] {
		s[i] = row[0]
		copy(q[16*i:], row[1:17])
	}
}

// nibbles fills the 32 bytes of two blocks from 32 bytes that hold the first block in their low and the second in their high nibbles.
func nibbles(q, packed []byte) {
	for j := range 16 {
		a, b := packed[j], packed[j+16]
		q[j], q[j+16] = a&15|b<<4, a>>4|b&0xf0
	}
}

func packI4G64(q, s, row []byte) {
	for i := 0; len(row) > 0; i, row = i+1, row[36:] {
		copy(s[4*i:], row[:4])
		nibbles(q[32*i:], row[4:36])
	}
}

// kHead rearranges the 16 bytes that a Q4_K or Q5_K block starts with.
func kHead(s, b []byte) {
	var scales, mins, upper uint32
	for j := range 4 {
		sc, mi, both := uint32(b[4+j]), uint32(b[8+j]), uint32(b[12+j])
		scales |= sc&15<<(4*j) | both&15<<(4*j+16)
		mins |= mi&15<<(4*j) | both>>4<<(4*j+16)
		upper |= sc>>4&3<<(2*j) | sc>>6<<(2*j+8) | mi>>4&3<<(2*j+16) | mi>>6<<(2*j+24)
	}
	copy(s, b[:4])
	binary.LittleEndian.PutUint32(s[4:], scales)
	binary.LittleEndian.PutUint32(s[8:], mins)
	binary.LittleEndian.PutUint32(s[12:], upper)
}

func packQ4_K(q, s, row []byte) {
	for ; len(row) > 0; q, s, row = q[128:], s[16:], row[144:] {
		kHead(s, row)
		for j := range 4 {
			nibbles(q[32*j:], row[16+32*j:])
		}
	}
}

func packQ5_K(q, s, row []byte) {
	for ; len(row) > 0; q, s, row = q[128:], s[48:], row[176:] {
		kHead(s, row)
		for j := range 4 {
			nibbles(q[32*j:], row[48+32*j:])
		}
		for j := range 8 {
			var word uint32
			for c, b := range row[16:48] {
				word |= uint32(b>>j&1) << (8*(c%4) + c/4)
			}
			binary.LittleEndian.PutUint32(s[16+4*j:], word)
		}
	}
}

func packQ6_K(q, s, row []byte) {
	blocks := len(row) / 210
	for i := range blocks {
		q, out, b := q[128*i:], s[80*i:][:80], row[210*i:][:210]
		low, high := b[:128], b[128:192]
		for half := range 2 {
			// Blocks 0 and 2 of a half share bytes, as do 1 and 3.
			for pair := range 2 {
				var two [32]byte
				nibbles(two[:], low[64*half+32*pair:])
				copy(q[64*half+16*pair:], two[:16])
				copy(q[64*half+16*pair+32:], two[16:])
			}
			for j := range 4 {
				var words [2]uint32
				for c, h := range high[32*half:][:32] {
					words[c/16] |= uint32(h>>(2*j)&3) << (8*(c%4) + 2*(c%16/4))
				}
				binary.LittleEndian.PutUint32(out[32*half+8*j:], words[0])
				binary.LittleEndian.PutUint32(out[32*half+8*j+4:], words[1])
			}
		}
		copy(out[64:], b[192:208])
		copy(s[80*blocks+2*i:], b[208:210])
	}
}
