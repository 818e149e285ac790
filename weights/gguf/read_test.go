package gguf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/weights/format"
	"github.com/coli-moe/coli/weights/gguf"
	"github.com/coli-moe/coli/weights/internal/badfile"
)

// pack writes values as GGUF does: a string with its length, everything else little endian, []byte as it is.
func pack(values ...any) []byte {
	var b []byte
	for _, v := range values {
		switch v := v.(type) {
		case string:
			b = append(binary.LittleEndian.AppendUint64(b, uint64(len(v))), v...)
		case []byte:
			b = append(b, v...)
		default:
			b, _ = binary.Append(b, binary.LittleEndian, v)
		}
	}
	return b
}

// file packs a version 3 file.
func file(nTensors, nKV uint64, values ...any) []byte {
	return append(pack([]byte("GGUF"), uint32(3), nTensors, nKV), pack(values...)...)
}

// tensor packs a tensor entry with dims in the file's order.
func tensor(name string, typ uint32, offset uint64, dims ...uint64) []byte {
	return pack(name, uint32(len(dims)), dims, typ, offset)
}

// withData appends padding and 64 bytes of tensor data.
func withData(header []byte) []byte {
	return append(header, make([]byte, 31-(len(header)+31)%32+64)...)
}

func read(data []byte) (*gguf.File, error) {
	return gguf.Read(bytes.NewReader(data), int64(len(data)), "x.gguf")
}

// sample writes a small valid file with its data.
func sample(t testing.TB) ([]byte, []gguf.Pair, []gguf.Tensor) {
	t.Helper()
	kvs := []gguf.Pair{
		{"general.architecture", "olmoe"},
		{"text", " two\nlines\x00\xff "},
		{"tokens", []string{" a ", "", "\t", "Ġb\r\n"}},
		{"types", []int32{-1, 2}},
		{"scores", []float32{0.5, -1}},
		{"flag", true},
		{"u", uint32(7)},
		{"i", int32(-7)},
		{"big", uint64(math.MaxUint64)},
		{"f", float32(0.25)},
	}
	tensors := []gguf.Tensor{
		{Name: "a", Format: format.F32, Shape: []int{3}},
		{Name: "b", Format: format.Q4_K, Shape: []int{2, 3, 256}},
		{Name: "c", Format: format.BF16, Shape: []int{4, 8}},
	}
	var b bytes.Buffer
	if err := gguf.WriteHeader(&b, kvs, tensors); err != nil {
		t.Fatal(err)
	}
	for i, x := range tensors {
		b.Write(make([]byte, x.Size))
		if i < len(tensors)-1 {
			b.Write(make([]byte, gguf.Padding(x.Size)))
		}
	}
	return b.Bytes(), kvs, tensors
}

func TestRoundTrip(t *testing.T) {
	data, kvs, tensors := sample(t)
	f, err := read(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tensors, f.Tensors); diff != "" {
		t.Errorf("tensors (-written +read):\n%s", diff)
	}
	var keys, want []string
	for i := range f.KVs {
		keys, want = append(keys, f.KVs[i].Key), append(want, kvs[i].Key)
	}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("keys (-written +read):\n%s", diff)
	}
	text, _ := f.String("text")
	tokens, _ := f.Strings("tokens")
	if text != kvs[1].Value || !cmp.Equal(tokens, kvs[2].Value) {
		t.Errorf("strings changed: %q %q", text, tokens)
	}
	if f.Tensors[1].Size != 6*144 || f.Tensors[1].Offset%32 != 0 {
		t.Errorf("tensor b: %+v", f.Tensors[1])
	}
}

func TestAccessors(t *testing.T) {
	f, err := read(file(0, 14,
		"u8", uint32(0), uint8(200), "i8", uint32(1), int8(-3), "u16", uint32(2), uint16(60000), "i16", uint32(3), int16(-300),
		"u32", uint32(4), uint32(5), "i32", uint32(5), int32(9), "f32", uint32(6), float32(1.5), "bool", uint32(7), uint8(1),
		"str", uint32(8), "s", "u64", uint32(10), uint64(1<<63), "i64", uint32(11), int64(-1), "f64", uint32(12), float64(2.5),
		"a16", uint32(9), uint32(2), uint64(2), uint16(1), uint16(65535), "af64", uint32(9), uint32(12), uint64(1), float64(0.1)))
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		uint, int any // nil: refused
		float     any
	}
	for key, want := range map[string]row{
		"u8":     {uint64(200), int64(200), 200.0},
		"i8":     {nil, int64(-3), -3.0},
		"u16":    {uint64(60000), int64(60000), 60000.0},
		"i16":    {nil, int64(-300), -300.0},
		"u32":    {uint64(5), int64(5), 5.0},
		"i32":    {uint64(9), int64(9), 9.0},
		"f32":    {nil, nil, 1.5},
		"bool":   {},
		"str":    {},
		"u64":    {uint64(1 << 63), nil, float64(1 << 63)},
		"i64":    {nil, int64(-1), -1.0},
		"f64":    {nil, nil, 2.5},
		"a16":    {},
		"absent": {},
	} {
		var got row
		if v, ok := f.Uint(key); ok {
			got.uint = v
		}
		if v, ok := f.Int(key); ok {
			got.int = v
		}
		if v, ok := f.Float(key); ok {
			got.float = v
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", key, got, want)
		}
	}
	if v, ok := f.Bool("bool"); !v || !ok {
		t.Error("bool is not true")
	}
	if _, ok := f.Bool("u8"); ok {
		t.Error("an integer passes for a truth value")
	}
	if v, ok := f.Ints("a16"); !ok || !cmp.Equal(v, []int64{1, 65535}) {
		t.Errorf("a16: %v", v)
	}
	if v, ok := f.Floats("af64"); !ok || !cmp.Equal(v, []float32{0.1}) {
		t.Errorf("af64: %v", v)
	}
	if _, ok := f.Strings("a16"); ok {
		t.Error("integers pass for strings")
	}
}

// TestTruncated cuts a valid file at every byte.
func TestTruncated(t *testing.T) {
	data, _, _ := sample(t)
	for n := range data {
		_, err := read(data[:n])
		want := badfile.ErrTruncated
		switch {
		case n == 0:
			want = badfile.ErrEmpty
		case n < 4:
			want = badfile.ErrMagic
		}
		if !errors.Is(err, want) {
			t.Fatalf("%d of %d bytes: %v, want %v", n, len(data), err, want)
		}
	}
}

// badFiles are files that must be refused, with the cause and what the message must name.
var badFiles = []struct {
	name string
	data []byte
	err  error
	says string
}{
	{"empty", nil, badfile.ErrEmpty, ""},
	{"web page", []byte("\n<!DOCTYPE html><html>…"), badfile.ErrHTML, "/resolve/"},
	{"git-lfs pointer", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00"), badfile.ErrLFSPointer, "git lfs pull"},
	{"wrong magic", []byte("PK\x03\x04 and the rest of an archive"), badfile.ErrMagic, `"PK`},
	{"big-endian", []byte("GGUF\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x01"), badfile.ErrBigEndian, "gguf_convert_endian"},
	{"big-endian magic", []byte("FUGG\x00\x00\x00\x03"), badfile.ErrBigEndian, "gguf_convert_endian"},
	{"version 1", pack([]byte("GGUF"), uint32(1), uint32(0), uint32(0)), badfile.ErrVersion, "version 1"},
	{"version 4", pack([]byte("GGUF"), uint32(4), uint64(0), uint64(0)), badfile.ErrVersion, "version 4"},
	{"2^63 tensors", file(1<<63, 0), badfile.ErrTruncated, ""},
	{"2^63 keys", file(0, 1<<63), badfile.ErrTruncated, ""},
	{"key of 2^63 bytes", file(0, 1, uint64(1<<63)), badfile.ErrTruncated, "9223372036854775808"},
	{"string of 2^64-1 bytes", file(0, 1, "k", uint32(8), uint64(math.MaxUint64)), badfile.ErrTruncated, `"k"`},
	{"2^61 numbers of 8 bytes", file(0, 1, "k", uint32(9), uint32(10), uint64(1<<61)), badfile.ErrTruncated, `"k"`},
	{"2^40 strings", file(0, 1, "k", uint32(9), uint32(8), uint64(1<<40)), badfile.ErrTruncated, `"k"`},
	{"2^40 bytes", file(0, 1, "k", uint32(9), uint32(0), uint64(1<<40)), badfile.ErrTruncated, `"k"`},
	{"metadata type", file(0, 1, "k", uint32(13)), badfile.ErrUnknownType, `"k"`},
	{"nested array", file(0, 1, "k", uint32(9), uint32(9), uint64(1)), badfile.ErrUnknownType, `"k"`},
	{"duplicate key", file(0, 2, "k", uint32(0), uint8(1), "k", uint32(0), uint8(1)), badfile.ErrDuplicate, `"k"`},
	{"alignment 0", file(0, 1, "general.alignment", uint32(4), uint32(0)), badfile.ErrAlignment, "0 is not"},
	{"alignment 12", file(0, 1, "general.alignment", uint32(4), uint32(12)), badfile.ErrAlignment, "12 is not"},
	{"alignment 2^31", file(0, 1, "general.alignment", uint32(4), uint32(1<<31)), badfile.ErrAlignment, "2147483648"},
	{"alignment text", file(0, 1, "general.alignment", uint32(8), "32"), badfile.ErrAlignment, "32 is not"},
	{"duplicate tensor", withData(file(2, 0, tensor("t", 0, 0, 8), tensor("t", 0, 32, 8))), badfile.ErrDuplicate, `"t"`},
	{"no dimension", withData(file(1, 0, tensor("t", 0, 0))), badfile.ErrShape, `"t"`},
	{"five dimensions", withData(file(1, 0, tensor("t", 0, 0, 1, 1, 1, 1, 1))), badfile.ErrShape, "5 dim"},
	{"2^32-1 dimensions", file(1, 0, "t", uint32(math.MaxUint32)), badfile.ErrShape, `"t"`},
	{"dimension 0", withData(file(1, 0, tensor("t", 0, 0, 4, 0))), badfile.ErrShape, "dimension 1 is 0"},
	{"dimension 2^63", withData(file(1, 0, tensor("t", 0, 0, 1<<63))), badfile.ErrShape, "9223372036854775808"},
	{"row overflows", withData(file(1, 0, tensor("t", 0, 0, math.MaxInt64))), badfile.ErrShape, `"t"`},
	{"integer row overflows", withData(file(1, 0, tensor("t", 27, 0, math.MaxInt64))), badfile.ErrShape, `"t"`},
	{"rows overflow", withData(file(1, 0, tensor("t", 0, 0, 1, 1<<32, 1<<32))), badfile.ErrShape, "overflows"},
	{"bytes overflow", withData(file(1, 0, tensor("t", 0, 0, 1<<31, 1<<31))), badfile.ErrShape, "overflows"},
	{"huge but possible", withData(file(1, 0, tensor("t", 0, 0, 1<<40))), badfile.ErrTruncated, `"t"`},
	{"not a block", withData(file(1, 0, tensor("t", 8, 0, 33))), badfile.ErrShape, "33 columns"},
	{"type 4", withData(file(1, 0, tensor("t", 4, 0, 32))), badfile.ErrUnknownType, "ggml type 4"},
	{"type 99", withData(file(1, 0, tensor("t", 99, 0, 32))), badfile.ErrUnknownType, "ggml type 99"},
	{"offset not aligned", withData(file(1, 0, tensor("t", 0, 4, 8))), badfile.ErrAlignment, `"t"`},
	{"offset past the end", withData(file(1, 0, tensor("t", 0, 64, 8))), badfile.ErrTruncated, `"t"`},
	{"offset 2^63", withData(file(1, 0, tensor("t", 0, 1<<63, 8))), badfile.ErrTruncated, `"t"`},
	{"overlap", withData(file(2, 0, tensor("t", 0, 0, 16), tensor("u", 0, 32, 8))), badfile.ErrLayout, `"u"`},
}

func TestBadFiles(t *testing.T) {
	for _, tt := range badFiles {
		t.Run(tt.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := read(tt.data)
			runtime.ReadMemStats(&after)
			var e *badfile.Error
			if !errors.Is(err, tt.err) || !errors.As(err, &e) {
				t.Fatalf("%v, want %v", err, tt.err)
			}
			if e.File != "x.gguf" || e.Try == "" || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("the message lacks the file, %q or advice: %v", tt.says, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 32<<10 {
				t.Errorf("%d bytes were allocated for a file of %d", n, len(tt.data))
			}
		})
	}
}

func TestWriteHeaderRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		kv gguf.Pair
		t  gguf.Tensor
	}{
		"value type":   {gguf.Pair{"k", struct{}{}}, gguf.Tensor{Name: "t", Format: format.F32, Shape: []int{1}}},
		"not ggml's":   {gguf.Pair{"k", "v"}, gguf.Tensor{Name: "t", Format: format.I4G64, Shape: []int{64}}},
		"not a block":  {gguf.Pair{"k", "v"}, gguf.Tensor{Name: "t", Format: format.Q8_0, Shape: []int{33}}},
		"no dimension": {gguf.Pair{"k", "v"}, gguf.Tensor{Name: "t", Format: format.F32}},
	} {
		if err := gguf.WriteHeader(&bytes.Buffer{}, []gguf.Pair{tt.kv}, []gguf.Tensor{tt.t}); err == nil {
			t.Errorf("%s: written", name)
		}
	}
}

// FuzzRead: no input panics, and what is accepted lies inside the file.
func FuzzRead(f *testing.F) {
	data, _, _ := sample(f)
	f.Add(data)
	for _, tt := range badFiles {
		f.Add(tt.data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := read(data)
		if err != nil {
			return
		}
		for i := range g.KVs {
			if g.KVs[i].Value() == nil {
				t.Errorf("key %q has no value", g.KVs[i].Key)
			}
		}
		for _, x := range g.Tensors {
			if x.Size <= 0 || x.Offset < g.DataOffset || x.Offset+x.Size > int64(len(data)) {
				t.Errorf("tensor outside the file: %+v", x)
			}
		}
	})
}
