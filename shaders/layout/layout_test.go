package layout

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/weights/format"
)

// unpack reads a packed matrix by the words of the package's documentation, one value at a time.
func unpack(l Layout, m []byte, row, c int) float32 {
	q, s := m[int64(row)*l.QStride:], m[l.SOffset+int64(row)*l.SStride:]
	f16 := func(b []byte) float32 { return format.F16ToF32(binary.LittleEndian.Uint16(b)) }
	f32 := func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
	word := binary.LittleEndian.Uint32
	nibble := func() int { return int(q[c/32*16+c%16] >> (c % 32 / 16 * 4) & 15) }
	k := func(head []byte, q int) float32 {
		j := c % 256 / 32
		scale := word(head[4:])>>(4*j)&15 | word(head[12:])>>(2*j)&3<<4
		minimum := word(head[8:])>>(4*j)&15 | word(head[12:])>>(16+2*j)&3<<4
		return float32(f16(head)*float32(scale)*float32(q)) - float32(f16(head[2:])*float32(minimum))
	}
	switch l.Format {
	case format.F32:
		return f32(q[4*c:])
	case format.F16:
		return f16(q[2*c:])
	case format.BF16:
		return format.BF16ToF32(binary.LittleEndian.Uint16(q[2*c:]))
	case format.Q8_0:
		return f16(s[c/32*2:]) * float32(int8(q[c]))
	case format.I8Row:
		return f32(s) * float32(int8(q[c]))
	case format.Q4_0:
		return f16(s[c/32*2:]) * float32(nibble()-8)
	case format.I4G64:
		return f32(s[c/64*4:]) * float32(nibble()-8)
	case format.MXFP4:
		e2m1 := [16]float32{0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6}
		return format.E8M0ToF32(s[c/32]) * e2m1[nibble()]
	case format.Q4_K:
		return k(s[c/256*16:], nibble())
	case format.Q5_K:
		head := s[c/256*48:]
		fifth := word(head[16+c%256/32*4:]) >> (8*(c%4) + c%32/4) & 1
		return k(head, nibble()|int(fifth)<<4)
	case format.Q6_K:
		group := s[c/256*80:]
		upper := word(group[c%256/32*8+c%32/16*4:]) >> (8*(c%4) + 2*(c%16/4)) & 3
		d := f16(s[l.Cols/256*80+c/256*2:])
		return d * float32(int8(group[64+c%256/16])) * float32((nibble()|int(upper)<<4)-32)
	}
	panic(l.Format)
}

// Bytes of any content survive: the packed matrix decodes to the values of the file's bytes, padding is zero, planes are aligned.
func TestPack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, tc := range []struct {
		formats []format.Format
		cols    []int
	}{
		{[]format.Format{format.F32, format.F16, format.BF16, format.I8Row}, []int{1, 31, 33, 63, 64, 100, 257}},
		{[]format.Format{format.Q8_0, format.Q4_0, format.MXFP4}, []int{32, 96, 544}},
		{[]format.Format{format.I4G64}, []int{64, 192}},
		{[]format.Format{format.Q4_K, format.Q5_K, format.Q6_K}, []int{256, 768}},
	} {
		for _, f := range tc.formats {
			for _, cols := range tc.cols {
				const rows = 5
				l, ok := For(f, rows, cols)
				if !ok {
					t.Fatalf("%s of %d columns has no layout", f, cols)
				}
				if l.QStride%16 != 0 || l.SOffset%16 != 0 || l.Bytes%16 != 0 {
					t.Errorf("%s of %d columns is not aligned: %+v", f, cols, l)
				}
				size, err := f.RowBytes(cols)
				if err != nil {
					t.Fatal(err)
				}
				data := make([]byte, rows*size)
				for i := range data {
					data[i] = byte(r.Uint32())
				}
				packed := make([]byte, l.Bytes)
				for i := range packed {
					packed[i] = 0xaa
				}
				l.Pack(packed, data)
				var want, got []uint32
				for i := range rows {
					row := make([]float32, cols)
					if err := format.Decode(f, row, data[i*size:][:size]); err != nil {
						t.Fatal(err)
					}
					for c, v := range row {
						want = append(want, bits(v))
						got = append(got, bits(unpack(l, packed, i, c)))
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("%s of %d columns (-file +packed):\n%.2000s", f, cols, diff)
				}
				slices := make([]byte, l.Bytes)
				for i := range rows {
					l.PackRows(slices[int64(i)*l.QStride:][:l.QStride], slices[l.SOffset+int64(i)*l.SStride:][:l.SStride], data[i*size:], 1)
				}
				if diff := cmp.Diff(packed, slices); diff != "" {
					t.Fatalf("%s of %d columns, packed row by row:\n%.2000s", f, cols, diff)
				}
			}
		}
	}
}

// bits makes every NaN the same one.
func bits(v float32) uint32 {
	if v != v {
		return math.Float32bits(float32(math.NaN()))
	}
	return math.Float32bits(v)
}

func TestForRefuses(t *testing.T) {
	for _, tc := range []struct {
		f          format.Format
		rows, cols int
	}{
		{format.Q2_K, 4, 256},
		{format.Unknown, 4, 256},
		{format.Q4_K, 4, 128},
		{format.I4G64, 4, 32},
		{format.F32, 0, 4},
		{format.F32, 4, 0},
		{format.F32, math.MaxInt / 8, 64},
	} {
		if l, ok := For(tc.f, tc.rows, tc.cols); ok {
			t.Errorf("%s %d×%d has a layout: %+v", tc.f, tc.rows, tc.cols, l)
		}
	}
}
