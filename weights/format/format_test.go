package format

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDecodeFixtures compares every format of the manifest with the float32 values ggml's reference decoders give, bit for bit.
func TestDecodeFixtures(t *testing.T) {
	var manifest []struct {
		Type       string
		GGMLType   uint32 `json:"ggml_type"`
		Block      int
		BlockBytes int `json:"block_bytes"`
		Rows, Cols int
	}
	text, err := os.ReadFile(filepath.Join("testdata", "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 26 {
		t.Fatalf("manifest has %d formats, want 26", len(manifest))
	}
	for _, m := range manifest {
		t.Run(m.Type, func(t *testing.T) {
			f, ok := FromGGML(m.GGMLType)
			if !ok || f.String() != m.Type || f.Info().Block != m.Block || f.Info().BlockBytes != m.BlockBytes {
				t.Fatalf("ggml type %d is %s %+v here", m.GGMLType, f, f.Info())
			}
			rows, want := readFixture(t, m.Type+".blocks"), readFixture(t, m.Type+".f32")
			rowBytes, err := f.RowBytes(m.Cols)
			if err != nil {
				t.Fatal(err)
			}
			if len(rows) != rowBytes*m.Rows || len(want) != 4*m.Cols*m.Rows {
				t.Fatalf("fixture has %d bytes of rows and %d of values, want %d and %d", len(rows), len(want), rowBytes*m.Rows, 4*m.Cols*m.Rows)
			}
			got := make([]float32, m.Cols)
			for r := range m.Rows {
				if err := Decode(f, got, rows[r*rowBytes:][:rowBytes]); err != nil {
					t.Fatal(err)
				}
				for c, v := range got {
					if w := leF32(want[4*(r*m.Cols+c):]); math.Float32bits(v) != math.Float32bits(w) {
						t.Fatalf("row %d column %d: %g, want %g", r, c, v, w)
					}
				}
			}
		})
	}
}

func readFixture(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestDecodeOwn pins the layouts of the formats that ggml lacks.
func TestDecodeOwn(t *testing.T) {
	one, two := []byte{0, 0, 128, 63}, []byte{0, 0, 0, 64}
	cat := func(parts ...[]byte) (out []byte) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	fp8 := make([]byte, 130)
	fp8[0], fp8[127], fp8[128], fp8[129] = 0x38, 0xb8, 0x7e, 0x01
	nibbles := make([]byte, 32)
	nibbles[0], nibbles[31] = 0xf0, 0x79
	tests := []struct {
		f    Format
		row  []byte
		cols int
		want map[int]float32
	}{
		{F8E4M3, cat(fp8, one, two), 130, map[int]float32{0: 1, 1: 0, 127: -1, 128: 896, 129: 2 * 0x1p-9}},
		{I8Row, cat(two, []byte{1, 0xff, 0x80, 0x7f}), 4, map[int]float32{0: 2, 1: -2, 2: -256, 3: 254}},
		{I4G64, cat(two, nibbles), 64, map[int]float32{0: -16, 32: 14, 31: 2, 63: -2, 1: -16}},
	}
	for _, tt := range tests {
		got := make([]float32, tt.cols)
		if err := Decode(tt.f, got, tt.row); err != nil {
			t.Fatal(err)
		}
		for i, want := range tt.want {
			if got[i] != want {
				t.Errorf("%s column %d: %g, want %g", tt.f, i, got[i], want)
			}
		}
	}
}

func TestRowSizes(t *testing.T) {
	for _, f := range All() {
		in := f.Info()
		if decoders[f] == nil {
			t.Errorf("%s has no decoder", f)
		}
		for _, cols := range []int{0, -in.Block, in.Block + 1, math.MaxInt / in.Block * in.Block} {
			if cols%in.Block == 0 && cols > 0 && cols < 1<<40 {
				continue // a format of block 1 takes any number of columns
			}
			if n, err := f.RowBytes(cols); err == nil {
				t.Errorf("%s: a row of %d columns is said to have %d bytes", f, cols, n)
			}
		}
		n, err := f.RowBytes(2 * in.Block)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		dst := make([]float32, 2*in.Block)
		for _, size := range []int{0, n - 1, n + 1} {
			if err := Decode(f, dst, make([]byte, size)); err == nil {
				t.Errorf("%s: decoding %d bytes instead of %d succeeded", f, size, n)
			}
			if err := Encode(f, make([]byte, size), dst); err == nil {
				t.Errorf("%s: encoding into %d bytes instead of %d succeeded", f, size, n)
			}
		}
		if got := f.CanEncode(); got != (Encode(f, make([]byte, n), dst) == nil) {
			t.Errorf("%s: CanEncode is %v, Encode disagrees", f, got)
		}
	}
	if err := Decode(Unknown, make([]float32, 1), nil); err == nil {
		t.Error("the unknown format decoded")
	}
	if err := Decode(numFormats, make([]float32, 1), nil); err == nil {
		t.Error("a format out of range decoded")
	}
}

func TestParse(t *testing.T) {
	for name, want := range map[string]Format{"q4_k": Q4_K, "Q8_0": Q8_0, "f8_e4m3_b128": F8E4M3} {
		if got, err := Parse(name); got != want || err != nil {
			t.Errorf("%s parsed as %s, error %v", name, got, err)
		}
	}
	for _, name := range []string{"", "unknown", "q4"} {
		if got, err := Parse(name); err == nil || !strings.Contains(err.Error(), "IQ4_XS") {
			t.Errorf("%q parsed as %s, error %v", name, got, err)
		}
	}
}

// encodeBounds are, per format, the largest error of a value relative to the largest magnitude that shares its scale, and the root mean
// square error of a row of normal deviates, whose spread is 1.
var encodeBounds = map[Format]struct{ max, rms float64 }{
	F32: {0, 0}, F16: {0x1p-11, 0x1p-11}, BF16: {0x1p-8, 0x1p-8},
	Q8_0: {0.0045, 0.007}, I8Row: {0.0042, 0.012}, F8E4M3: {0.037, 0.028},
	Q4_0: {0.13, 0.09}, I4G64: {0.13, 0.1}, Q4_1: {0.07, 0.08}, Q5_0: {0.07, 0.045}, Q5_1: {0.035, 0.04},
	Q4_K: {0.09, 0.075}, Q6_K: {0.04, 0.02}, MXFP4: {0.25, 0.12},
}

func TestEncodeBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const cols = 4096
	x := make([]float32, cols)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	for _, f := range All() {
		if !f.CanEncode() {
			continue
		}
		t.Run(f.String(), func(t *testing.T) {
			bound, ok := encodeBounds[f]
			if !ok {
				t.Fatal("no bound stated")
			}
			got := roundTrip(t, f, x)
			span := max(f.Info().Block, 1)
			if f == I8Row {
				span = cols
			} else if f == F8E4M3 {
				span = 128
			}
			var sum, worst float64
			for lo := 0; lo < cols; lo += span {
				ext := math.Abs(float64(extreme(x[lo : lo+span])))
				for i := lo; i < lo+span; i++ {
					e := math.Abs(float64(got[i]) - float64(x[i]))
					sum, worst = sum+e*e, max(worst, e/ext)
				}
			}
			if rms := math.Sqrt(sum / cols); worst > bound.max || rms > bound.rms {
				t.Errorf("largest relative error %.4g, rms %.4g; want at most %.4g and %.4g", worst, rms, bound.max, bound.rms)
			}
			if f == Q4_K || f == Q6_K {
				return // their scales are fitted, so that encoding decoded values may choose other ones
			}
			for i, v := range roundTrip(t, f, got) {
				if v != got[i] {
					t.Fatalf("not idempotent: column %d went from %g to %g", i, got[i], v)
				}
			}
		})
	}
}

func roundTrip(t *testing.T, f Format, x []float32) []float32 {
	t.Helper()
	n, err := f.RowBytes(len(x))
	if err != nil {
		t.Fatal(err)
	}
	row, out := make([]byte, n), make([]float32, len(x))
	if err := Encode(f, row, x); err != nil {
		t.Fatal(err)
	}
	if err := Decode(f, out, row); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEncodeExtremes: constant, zero, tiny and huge rows come back finite and near, values a format cannot hold are refused.
func TestEncodeExtremes(t *testing.T) {
	for _, f := range All() {
		if !f.CanEncode() {
			continue
		}
		for _, value := range []float32{0, 1, -1, 1e-30, -0x1p-149, 3e4, -3e4} {
			x := make([]float32, 256)
			for i := range x {
				x[i] = value
			}
			for i, v := range roundTrip(t, f, x) {
				if e := math.Abs(float64(v - value)); !(e <= math.Abs(float64(value))/8+1e-6) {
					t.Errorf("%s: %g at column %d came back as %g", f, value, i, v)
					break
				}
			}
		}
		n, _ := f.RowBytes(256)
		for _, value := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
			x := make([]float32, 256)
			x[200] = value
			if err := Encode(f, make([]byte, n), x); (err == nil) != (f == F32 || f == F16 || f == BF16) {
				t.Errorf("%s: encoding %g: error %v", f, value, err)
			}
		}
	}
	n, _ := Q8_0.RowBytes(32)
	x := make([]float32, 32)
	x[31] = 1e5
	if err := Encode(Q8_0, make([]byte, n), x); err == nil {
		t.Error("Q8_0 took a value past float16's range")
	}
}

func FuzzDecode(f *testing.F) {
	for _, id := range All() {
		n, err := id.RowBytes(256)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(id), 256, make([]byte, n))
	}
	f.Add(uint8(0), 0, []byte{})
	f.Add(uint8(255), -1, []byte{1})
	f.Fuzz(func(t *testing.T, id uint8, cols int, row []byte) {
		dst := make([]float32, max(0, min(cols, 4096)))
		err := Decode(Format(id), dst, row)
		want, sizeErr := Format(id).RowBytes(len(dst))
		if ok := sizeErr == nil && want == len(row); ok != (err == nil) {
			t.Fatalf("format %d, %d columns, %d bytes: error %v", id, len(dst), len(row), err)
		}
	})
}
