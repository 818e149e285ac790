package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/weights/internal/badfile"
	"github.com/coli-moe/coli/weights/safetensors"
)

// file packs a header and n bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func read(data []byte) (*safetensors.File, error) {
	return safetensors.Read(bytes.NewReader(data), int64(len(data)), "x.safetensors")
}

const sample = `{"__metadata__":{"format":"pt"},
	"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
	"a\u00e9":{"shape":[],"data_offsets":[0,4],"dtype":"F32"},
	"c":{"dtype":"F4","shape":[4,2],"data_offsets":[16,20]}}    `

func TestRead(t *testing.T) {
	f, err := read(file(sample, 20))
	if err != nil {
		t.Fatal(err)
	}
	at := int64(8 + len(sample))
	want := &safetensors.File{
		Path: "x.safetensors", Size: at + 20, DataOffset: at, Metadata: map[string]string{"format": "pt"},
		Tensors: []safetensors.Tensor{
			{Name: "aé", DType: "F32", Shape: []int{}, Offset: at, Size: 4},
			{Name: "b", DType: "BF16", Shape: []int{2, 3}, Offset: at + 4, Size: 12},
			{Name: "c", DType: "F4", Shape: []int{4, 2}, Offset: at + 16, Size: 4},
		},
	}
	if diff := cmp.Diff(want, f); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTypes gives each type the width of one element.
func TestTypes(t *testing.T) {
	for width, names := range map[int]string{
		1: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0", 2: "I16 U16 F16 BF16", 4: "I32 U32 F32", 8: "I64 U64 F64 C64",
	} {
		for _, name := range strings.Fields(names) {
			header := fmt.Sprintf(`{"t":{"dtype":%q,"shape":[3],"data_offsets":[0,%d]}}`, name, 3*width)
			if _, err := read(file(header, 3*width)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestTruncated cuts a valid file at every byte.
func TestTruncated(t *testing.T) {
	data := file(sample, 20)
	for n := range data {
		want := badfile.ErrTruncated
		if n == 0 {
			want = badfile.ErrEmpty
		}
		if _, err := read(data[:n]); !errors.Is(err, want) {
			t.Fatalf("%d of %d bytes: %v, want %v", n, len(data), err, want)
		}
	}
}

func length(n uint64) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), "{} and more"...)
}

// one is a header with a single tensor t.
func one(dtype, shape, offsets string) string {
	return fmt.Sprintf(`{"t":{"dtype":%q,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
}

// badFiles are files that must be refused, with the cause and what the message must name.
var badFiles = []struct {
	name string
	data []byte
	err  error
	says string
}{
	{"empty", nil, badfile.ErrEmpty, ""},
	{"web page", []byte("<html><body>Not found"), badfile.ErrHTML, "/resolve/"},
	{"git-lfs pointer", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00"), badfile.ErrLFSPointer, "git lfs pull"},
	{"wrong magic", append(length(5)[:8], "12345"...), badfile.ErrMagic, ""},
	{"another kind of file", []byte("PK\x03\x04 and what follows"), badfile.ErrMagic, `"PK\x03\x04"`},
	{"eight bytes of text", []byte("a model?"), badfile.ErrMagic, `"a mo"`},
	{"header of 0 bytes", length(0), badfile.ErrMagic, ""},
	{"header of 2^63 bytes", length(1 << 63), badfile.ErrHeader, "9223372036854775808"},
	{"header of 2^64-1 bytes", length(1<<64 - 1), badfile.ErrHeader, ""},
	{"header longer than the file", length(12), badfile.ErrTruncated, ""},
	{"not JSON", file(`{"t":`, 0), badfile.ErrHeader, ""},
	{"not UTF-8", file("{\"\xff\":{}}", 0), badfile.ErrHeader, "UTF-8"},
	{"more after the object", file(`{} {}`, 0), badfile.ErrHeader, ""},
	{"entry is a number", file(`{"t":1}`, 0), badfile.ErrHeader, `"t"`},
	{"entry is empty", file(`{"t":{}}`, 0), badfile.ErrUnknownType, `"t"`},
	{"no shape", file(`{"t":{"dtype":"F32","data_offsets":[0,4]}}`, 4), badfile.ErrHeader, `"t"`},
	{"no offsets", file(`{"t":{"dtype":"F32","shape":[1]}}`, 4), badfile.ErrHeader, `"t"`},
	{"three offsets", file(one("F32", "[1]", "[0,4,8]"), 4), badfile.ErrHeader, `"t"`},
	{"field of another case", file(`{"t":{"Dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4), badfile.ErrHeader, "Dtype"},
	{"metadata is no string", file(`{"__metadata__":{"a":1}}`, 0), badfile.ErrHeader, "__metadata__"},
	{"unknown type", file(one("F128", "[1]", "[0,16]"), 16), badfile.ErrUnknownType, "F128"},
	{"type is a number", file(`{"t":{"dtype":3,"shape":[1],"data_offsets":[0,4]}}`, 4), badfile.ErrUnknownType, `"t"`},
	{
		"duplicate tensor", file(`{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2),
		badfile.ErrDuplicate, `"t"`,
	},
	{"duplicate field", file(`{"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), badfile.ErrDuplicate, `"dtype"`},
	{"duplicate metadata", file(`{"__metadata__":{"a":"1","a":"2"}}`, 0), badfile.ErrDuplicate, `"a"`},
	{"dimension 0", file(one("F32", "[4,0]", "[0,0]"), 0), badfile.ErrShape, `"t"`},
	{"negative dimension", file(one("F32", "[-1]", "[0,4]"), 4), badfile.ErrHeader, "-1"},
	{"dimension with a fraction", file(one("F32", "[1.0]", "[0,4]"), 4), badfile.ErrHeader, "1.0"},
	{"dimension 2^63", file(one("F32", "[9223372036854775808]", "[0,4]"), 4), badfile.ErrHeader, "9223372036854775808"},
	{"size overflows", file(one("F32", "[4294967296,4294967296]", "[0,4]"), 4), badfile.ErrShape, `"t"`},
	{"huge but possible", file(one("U8", "[1099511627776]", "[0,1099511627776]"), 4), badfile.ErrTruncated, `"t"`},
	{"shape against bytes", file(one("F32", "[2]", "[0,4]"), 4), badfile.ErrShape, `"t"`},
	{"half a byte", file(one("F4", "[3]", "[0,1]"), 1), badfile.ErrShape, `"t"`},
	{"negative offset", file(one("F32", "[1]", "[-4,0]"), 4), badfile.ErrHeader, "-4"},
	{"offsets backwards", file(one("F32", "[1]", "[4,0]"), 4), badfile.ErrLayout, `"t"`},
	{
		"overlap", file(`{"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3),
		badfile.ErrLayout, `"u"`,
	},
	{
		"same bytes twice", file(`{"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2),
		badfile.ErrLayout, `"u"`,
	},
	{
		"hole", file(`{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"u":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3),
		badfile.ErrLayout, "hole of 1",
	},
	{"hole before the first", file(one("U8", "[1]", "[1,2]"), 2), badfile.ErrLayout, "hole"},
	{"data left over", file(one("U8", "[1]", "[0,1]"), 3), badfile.ErrLayout, "2 bytes"},
	{"nested arrays", file(one("U8", strings.Repeat("[", 5000), "[0,1]"), 1), badfile.ErrHeader, `"t"`},
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
			if e.File != "x.safetensors" || e.Try == "" || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("the message lacks the file, %q or advice: %v", tt.says, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
				t.Errorf("%d bytes were allocated for a file of %d", n, len(tt.data))
			}
		})
	}
}

// FuzzRead: no input panics, and what is accepted covers the file exactly.
func FuzzRead(f *testing.F) {
	f.Add(file(sample, 20))
	for _, tt := range badFiles {
		f.Add(tt.data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := read(data)
		if err != nil {
			return
		}
		at := s.DataOffset
		for _, x := range s.Tensors {
			if x.Offset != at || x.Size <= 0 {
				t.Errorf("%+v at %d", x, at)
			}
			at += x.Size
		}
		if at != int64(len(data)) {
			t.Errorf("%d of %d bytes covered", at, len(data))
		}
	})
}

// BenchmarkRead reads a header as large as those of the largest checkpoints' shards.
func BenchmarkRead(b *testing.B) {
	var h strings.Builder
	h.WriteString("{")
	const n = 10000
	for i := range n {
		if i > 0 {
			h.WriteString(",")
		}
		fmt.Fprintf(&h, `"model.layers.3.mlp.experts.%d.gate_proj.weight":{"dtype":"U8","shape":[1,1],"data_offsets":[%d,%d]}`, i, i, i+1)
	}
	data := file(h.String()+"}", n)
	for b.Loop() {
		if _, err := read(data); err != nil {
			b.Fatal(err)
		}
	}
}
