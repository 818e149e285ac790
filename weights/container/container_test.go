package container

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/weights/format"
	"github.com/coli-moe/coli/weights/internal/badfile"
)

// example is a model with two dense tensors and two layers of different formats.
func example() *File {
	layer := func(index int, down format.Format) Layer {
		return Layer{Index: index, Sums: make([]uint32, 3), Matrices: [3]Matrix{
			{"l.*.gate", format.I4G64, 5, 64}, {"l.*.up", format.I4G64, 5, 64}, {"l.down[*]", down, 64, 32},
		}}
	}
	return &File{
		Dense:  []Tensor{{Name: "embed", Format: format.BF16, Shape: []int{7, 3}}, {Name: "scalar", Format: format.F32}},
		Layers: []Layer{layer(1, format.I8Row), layer(4, format.Q8_0)},
	}
}

// encode writes the file of f, its data counting up.
func encode(f *File, metadata []byte) []byte {
	f.Place(int64(len(metadata)))
	data := make([]byte, f.Size)
	for i := range data {
		data[i] = byte(i)
	}
	for i := range f.Dense {
		t := &f.Dense[i]
		t.Sum = Sum(0, data[t.Offset:][:t.Size])
	}
	for i := range f.Layers {
		l := &f.Layers[i]
		for e := range l.Sums {
			l.Sums[e] = Sum(0, data[l.Record(e):][:l.RecordSize()])
		}
	}
	copy(data[copy(data, f.Header(metadata)):], metadata)
	return data
}

func read(data []byte) (*File, error) { return Read(bytes.NewReader(data), int64(len(data)), Name) }

func TestReadReturnsWhatWasPlaced(t *testing.T) {
	want := example()
	data := encode(want, []byte("metadata"))
	got, err := read(data)
	if err != nil {
		t.Fatal(err)
	}
	want.Path = Name
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrote (-), read (+):\n%s", diff)
	}
	if meta := data[got.Metadata:][:got.MetaSize]; string(meta) != "metadata" {
		t.Errorf("metadata %q", meta)
	}
	for _, d := range got.Dense {
		if d.Offset%denseAlign != 0 {
			t.Errorf("%s begins at %d", d.Name, d.Offset)
		}
	}
	for _, l := range got.Layers {
		if last := l.Record(len(l.Sums) - 1); last%RecordAlign != 0 || last+align(l.RecordSize(), RecordAlign) > got.Size {
			t.Errorf("layer %d: the last record begins at %d of %d", l.Index, last, got.Size)
		}
	}
}

func TestFormatNumbersAreStable(t *testing.T) {
	seen := map[uint16]format.Format{}
	for _, f := range format.All() {
		id, ok := formatIDs[f]
		if other, twice := seen[id]; !ok || id == 0 || twice {
			t.Errorf("%s has the number %d, %s has it too", f, id, other)
		}
		seen[id] = f
	}
	for f, want := range map[format.Format]uint16{format.BF16: 3, format.I8Row: 16, format.I4G64: 17, format.Q4_K: 42, format.MXFP4: 66} {
		if formatIDs[f] != want {
			t.Errorf("%s has the number %d; files have been written with %d", f, formatIDs[f], want)
		}
	}
}

// The document lists every format with its number.
func TestDocumentedFormatNumbers(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "container.md"))
	if err != nil {
		t.Fatal(err)
	}
	for f, id := range formatIDs {
		if entry := fmt.Sprintf("| %d %s |", id, f); !strings.Contains(string(doc), entry) {
			t.Errorf("docs/container.md has no %q", entry)
		}
	}
}

// seal computes the checksum again after a change, so that the other checks are reached.
func seal(data []byte) {
	le := binary.LittleEndian
	clear(data[12:16])
	le.PutUint32(data[12:], Sum(0, data[:preamble+le.Uint64(data[16:])+le.Uint64(data[24:])]))
}

func TestReadRefuses(t *testing.T) {
	// edit writes the header again after the placed file was changed into a wrong one.
	edit := func(change func(*File)) func([]byte) []byte {
		return func([]byte) []byte {
			f := example()
			data := encode(f, nil)
			change(f)
			return append(f.Header(nil), data[f.Metadata:]...)
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func([]byte) []byte
		want  error
	}{
		{"an empty file", func([]byte) []byte { return nil }, badfile.ErrEmpty},
		{"another file", func(b []byte) []byte { return append([]byte("GGUF"), b...) }, badfile.ErrMagic},
		{"an unfinished file", func(b []byte) []byte { clear(b[:preamble]); return b }, badfile.ErrMagic},
		{"a short preamble", func(b []byte) []byte { return b[:40] }, badfile.ErrTruncated},
		{"a missing last byte", func(b []byte) []byte { return b[:len(b)-1] }, badfile.ErrTruncated},
		{"bytes behind the end", func(b []byte) []byte { return append(b, 0) }, badfile.ErrLayout},
		{"a later version", func(b []byte) []byte { b[8] = 2; return b }, badfile.ErrVersion},
		{"a changed bit of the table", func(b []byte) []byte { b[preamble+9] ^= 4; return b }, badfile.ErrHeader},
		{"a table longer than the file", func(b []byte) []byte { b[22] = 1; return b }, badfile.ErrTruncated},
		{"a table cut short", func(b []byte) []byte {
			le := binary.LittleEndian
			le.PutUint64(b[16:], le.Uint64(b[16:])-5)
			seal(b)
			return b
		}, badfile.ErrHeader},
		{"an unknown format", func(b []byte) []byte {
			copy(b[preamble+4+2+len("embed"):], "\xff\x7f")
			seal(b)
			return b
		}, badfile.ErrUnknownType},
		{"a size that is not the shape's", edit(func(f *File) { f.Dense[0].Size++ }), badfile.ErrShape},
		{"an empty shape in a block format", edit(func(f *File) { f.Dense[1].Format = format.Q8_0 }), badfile.ErrShape},
		{"a dimension of 0", edit(func(f *File) { f.Dense[0].Shape[0] = 0 }), badfile.ErrShape},
		{"overflowing dimensions", edit(func(f *File) { f.Dense[0].Shape[0] = 1 << 61 }), badfile.ErrShape},
		{"an unaligned tensor", edit(func(f *File) { f.Dense[0].Offset++ }), badfile.ErrAlignment},
		{"tensors in one another", edit(func(f *File) { f.Dense[1].Offset = f.Dense[0].Offset }), badfile.ErrLayout},
		{"a tensor behind the end", edit(func(f *File) { f.Dense[1].Offset = align(f.Size, denseAlign) + denseAlign }), badfile.ErrTruncated},
		{"an unaligned record", edit(func(f *File) { f.Layers[0].Offset += denseAlign }), badfile.ErrAlignment},
		{"layers out of order", edit(func(f *File) { f.Layers[1].Index = 1 }), badfile.ErrDuplicate},
		{"records behind the end", edit(func(f *File) { f.Layers[1].Offset += RecordAlign }), badfile.ErrTruncated},
		{"columns that do not suit the format", edit(func(f *File) { f.Layers[0].Matrices[0].Cols = 63 }), badfile.ErrShape},
		{"a pattern without a place for the number", edit(func(f *File) { f.Layers[0].Matrices[0].Pattern = "l.x.gate" }), badfile.ErrHeader},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := read(tt.spoil(encode(example(), nil)))
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// A header that reads describes ranges of the file that do not overlap; nothing else panics or takes more memory than the file's size.
func FuzzRead(f *testing.F) {
	f.Add(encode(example(), nil))
	f.Add(encode(example(), []byte("metadata")))
	f.Add(encode(&File{Dense: example().Dense}, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= preamble {
			le := binary.LittleEndian
			copy(data, Magic)
			if n := uint64(len(data)); le.Uint64(data[16:]) < n && le.Uint64(data[24:]) < n-le.Uint64(data[16:]) {
				le.PutUint32(data[8:], Version)
				le.PutUint64(data[32:], n)
				if preamble+le.Uint64(data[16:])+le.Uint64(data[24:]) <= n {
					seal(data)
				}
			}
		}
		file, err := read(data)
		if err != nil {
			return
		}
		var at int64
		check := func(offset, size int64) {
			if size <= 0 || offset < at || offset+size > int64(len(data)) {
				t.Fatalf("%d bytes at %d, %d bytes are taken of %d", size, offset, at, len(data))
			}
			at = offset + size
		}
		for _, d := range file.Dense {
			check(d.Offset, d.Size)
		}
		for _, l := range file.Layers {
			check(l.Offset, l.Stride()*int64(len(l.Sums)))
		}
	})
}
