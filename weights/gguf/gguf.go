// Package gguf reads the header of one GGUF file, versions 2 and 3, little endian: metadata in file order and where each tensor lies.
//
// The layout is the one of docs/gguf.md in the ggml repository. Nothing is trusted: every length is checked against the file before it
// is used, and memory stays proportional to the bytes read. Tensor data is never read here, and split files are joined by
// package weights.
package gguf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/coli-moe/coli/weights/format"
	"github.com/coli-moe/coli/weights/internal/badfile"
)

const (
	magic            = "GGUF"
	defaultAlignment = 32
	maxDims          = 4       // GGML_MAX_DIMS
	firstRead        = 1 << 20 // bytes; the header of most files fits in one or two reads
)

// File is the header of a GGUF file. It is immutable and safe for concurrent use.
type File struct {
	Path       string
	Version    uint32
	Size       int64 // of the file, bytes
	Alignment  int64 // of tensor data
	MetaEnd    int64 // where the metadata ends and the tensor table begins
	DataOffset int64 // where tensor data begins
	KVs        []KV  // in file order
	Tensors    []Tensor
	index      map[string]int // key to position in KVs
}

// Tensor is one entry of the tensor table.
type Tensor struct {
	Name   string
	Type   string        // ggml's name of the type
	Format format.Format // format.Unknown for ggml's plain integers and float64, which no matrix uses
	Shape  []int         // outermost dimension first, the reverse of the file's order
	Offset int64         // from the start of the file
	Size   int64         // bytes
}

// plain are ggml's types that hold no weights: type number to name and bytes per element.
var plain = map[uint32]struct {
	name  string
	bytes int
}{24: {"I8", 1}, 25: {"I16", 2}, 26: {"I32", 4}, 27: {"I64", 8}, 28: {"F64", 8}}

// Open reads the header of the file at path.
func Open(path string) (*File, error) { return badfile.Open(path, Read) }

// Read reads the header from r, which holds size bytes; path serves messages only. Errors are *weights.Error.
func Read(r io.ReaderAt, size int64, path string) (*File, error) {
	s := &scanner{r: r, size: size, path: path}
	f := &File{Path: path, Size: size, Alignment: defaultAlignment, index: map[string]int{}}
	if err := s.header(f); err != nil {
		return nil, err
	}
	return f, nil
}

// scanner walks the header. After the first failed read err is set and every further read returns zero.
type scanner struct {
	r    io.ReaderAt
	size int64
	path string
	buf  []byte // the file's first len(buf) bytes
	pos  int64
	err  error
}

// take returns the next n bytes, which stay valid.
func (s *scanner) take(n uint64, what string) []byte {
	if s.err != nil {
		return nil
	}
	if n > uint64(s.size-s.pos) {
		s.err = badfile.At(s.path, s.pos, badfile.ErrTruncated, "%s needs %d bytes, %d are left of %d", what, n, s.size-s.pos, s.size).
			Advise(badfile.TryDownload)
		return nil
	}
	end := s.pos + int64(n)
	if end > int64(len(s.buf)) {
		s.fill(end)
		if s.err != nil {
			return nil
		}
	}
	b := s.buf[s.pos:end:end]
	s.pos = end
	return b
}

// fill reads on until the buffer holds the first end bytes, at least doubling it. Slices taken earlier keep the old buffer alive.
func (s *scanner) fill(end int64) {
	buf := make([]byte, min(s.size, max(end, 2*int64(len(s.buf)), firstRead)))
	n := copy(buf, s.buf)
	m, err := s.r.ReadAt(buf[n:], int64(n))
	switch {
	case m == len(buf)-n:
	case errors.Is(err, io.EOF):
		s.err = badfile.At(s.path, int64(n+m), badfile.ErrTruncated, "the file shrank while it was read").Advise(badfile.TryDownload)
	default:
		s.err = badfile.At(s.path, int64(n), err, "reading the header")
	}
	s.buf = buf
}

func (s *scanner) u32(what string) uint32 {
	if b := s.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (s *scanner) u64(what string) uint64 {
	if b := s.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (s *scanner) str(what string) string { return string(s.take(s.u64(what), what)) }

func (s *scanner) header(f *File) error {
	if s.fill(0); s.err != nil {
		return s.err
	}
	if err := badfile.Sniff(s.path, s.buf); err != nil {
		return err
	}
	m := string(s.take(uint64(min(len(s.buf), len(magic))), "magic"))
	if m == "FUGG" {
		return bigEndian(s.path)
	}
	if m != magic {
		return badfile.At(s.path, 0, badfile.ErrMagic, "it begins with %q, a GGUF file with %q", m, magic).
			Advise("check that this is the model file")
	}
	switch f.Version = s.u32("version"); {
	case s.err != nil:
		return s.err
	case f.Version == 2 || f.Version == 3:
	case f.Version&0xffff == 0:
		return bigEndian(s.path)
	default:
		return badfile.At(s.path, 4, badfile.ErrVersion, "GGUF version %d, coli reads 2 and 3", f.Version).Advise(badfile.TryConvert)
	}
	nTensors, nKV := s.u64("tensor count"), s.u64("metadata count")
	if err := s.metadata(f, nKV); err != nil {
		return err
	}
	f.MetaEnd = s.pos
	if err := f.setAlignment(); err != nil {
		return err
	}
	return s.tensors(f, nTensors)
}

func bigEndian(path string) error {
	return badfile.At(path, 4, badfile.ErrBigEndian, "coli reads little-endian GGUF").
		Advise("convert it with gguf_convert_endian.py of llama.cpp")
}

func (s *scanner) metadata(f *File, n uint64) error {
	for i := range n {
		at := s.pos
		kv := KV{Key: s.str("metadata key")}
		kv.Type = Type(s.u32("metadata type"))
		if s.err != nil {
			return s.err
		}
		if _, ok := f.index[kv.Key]; ok {
			return badfile.At(s.path, at, badfile.ErrDuplicate, "the key occurs twice").ForKey(kv.Key).Advise(badfile.TryConvert)
		}
		elem := kv.Type
		kv.n = 1
		if kv.Type == TypeArray {
			elem, kv.n = Type(s.u32("array type")), s.u64("array length")
			kv.Elem = elem
		}
		if err := s.values(&kv, elem); err != nil {
			var e *badfile.Error
			if errors.As(err, &e) {
				e.Key = kv.Key
			}
			return err
		}
		f.index[kv.Key] = int(i)
		f.KVs = append(f.KVs, kv)
	}
	return s.err
}

// values skips over kv.n values of type elem and keeps their bytes.
func (s *scanner) values(kv *KV, elem Type) error {
	switch width := elem.width(); {
	case s.err != nil:
	case elem == TypeString:
		start := s.pos
		for range kv.n {
			if s.take(s.u64("string length"), "string"); s.err != nil {
				return s.err
			}
		}
		kv.raw = s.buf[start:s.pos:s.pos]
	case width == 0:
		return badfile.At(s.path, s.pos, badfile.ErrUnknownType, "metadata of type %d", uint32(elem)).Advise(badfile.TryConvert)
	case kv.n > math.MaxUint64/uint64(width):
		return badfile.At(s.path, s.pos, badfile.ErrTruncated, "an array of %d values of %d bytes", kv.n, width).Advise(badfile.TryDownload)
	default:
		kv.raw = s.take(kv.n*uint64(width), "array")
	}
	return s.err
}

// setAlignment applies general.alignment.
func (f *File) setAlignment() error {
	i, ok := f.index["general.alignment"]
	if !ok {
		return nil
	}
	a, ok := f.KVs[i].uint()
	if !ok || a == 0 || a&(a-1) != 0 || a > 1<<30 {
		return badfile.In(f.Path, badfile.ErrAlignment, "%v is not a power of two", f.KVs[i].Value()).ForKey("general.alignment").
			Advise(badfile.TryConvert)
	}
	f.Alignment = int64(a)
	return nil
}

func (s *scanner) tensors(f *File, n uint64) error {
	seen := map[string]bool{}
	for range n {
		at := s.pos
		t := Tensor{Name: s.str("tensor name")}
		nDims := s.u32("tensor dimensions")
		if s.err != nil {
			return s.err
		}
		if seen[t.Name] {
			return badfile.At(s.path, at, badfile.ErrDuplicate, "the tensor occurs twice").Of(t.Name).Advise(badfile.TryConvert)
		}
		seen[t.Name] = true
		if nDims == 0 || nDims > maxDims {
			return badfile.At(s.path, at, badfile.ErrShape, "%d dimensions, ggml has 1 to %d", nDims, maxDims).Of(t.Name).
				Advise(badfile.TryConvert)
		}
		t.Shape = make([]int, nDims)
		for i := range t.Shape {
			d := s.u64("dimension")
			if s.err == nil && (d == 0 || d > math.MaxInt) {
				return badfile.At(s.path, s.pos-8, badfile.ErrShape, "dimension %d is %d", i, d).Of(t.Name).Advise(badfile.TryConvert)
			}
			t.Shape[int(nDims)-1-i] = int(d)
		}
		id, offset := s.u32("tensor type"), s.u64("tensor offset")
		if s.err != nil {
			return s.err
		}
		if err := t.setType(s.path, s.pos-12, id); err != nil {
			return err
		}
		if offset > uint64(s.size) {
			return t.outside(s, offset)
		}
		t.Offset = int64(offset)
		f.Tensors = append(f.Tensors, t)
	}
	f.DataOffset = (s.pos + f.Alignment - 1) &^ (f.Alignment - 1)
	return f.place(s)
}

// outside reports a tensor whose data, beginning at offset, reaches past the end of the file.
func (t *Tensor) outside(s *scanner, offset uint64) error {
	return badfile.At(s.path, int64(min(offset, math.MaxInt64)), badfile.ErrTruncated, "%d bytes of data begin there, the file has %d",
		t.Size, s.size).Of(t.Name).Advise(badfile.TryDownload)
}

// setType sets type, format and size from ggml's type number, which stands at byte at.
func (t *Tensor) setType(path string, at int64, id uint32) error {
	cols, rows, err := t.Shape[len(t.Shape)-1], 1, error(nil)
	var row int
	if p, ok := plain[id]; ok {
		t.Type, row = p.name, cols*p.bytes
		if cols > math.MaxInt/p.bytes {
			err = fmt.Errorf("a row of %d columns overflows", cols)
		}
	} else if f, ok := format.FromGGML(id); ok {
		t.Type, t.Format = f.String(), f
		row, err = f.RowBytes(cols)
	} else {
		return badfile.At(path, at, badfile.ErrUnknownType, "ggml type %d", id).Of(t.Name).
			Advise("use a file quantised to a type that ggml still has")
	}
	for _, d := range t.Shape[:len(t.Shape)-1] {
		if err == nil && rows > math.MaxInt/d {
			err = errors.New("the number of rows overflows")
		}
		rows *= d
	}
	if err == nil && int64(rows) > math.MaxInt64/int64(row) {
		err = errors.New("the size overflows")
	}
	if err != nil {
		return badfile.At(path, at, badfile.ErrShape, "shape %v: %v", t.Shape, err).Of(t.Name).Advise(badfile.TryConvert)
	}
	t.Size = int64(rows) * int64(row)
	return nil
}

// place makes offsets absolute and checks that tensors are aligned, inside the file and apart from each other.
func (f *File) place(s *scanner) error {
	order := make([]int, len(f.Tensors))
	for i := range f.Tensors {
		t := &f.Tensors[i]
		order[i] = i
		if t.Offset%f.Alignment != 0 {
			return badfile.At(s.path, f.DataOffset+t.Offset, badfile.ErrAlignment, "offset %d is not a multiple of %d", t.Offset, f.Alignment).
				Of(t.Name).Advise(badfile.TryConvert)
		}
		t.Offset += f.DataOffset
		if t.Offset > s.size || t.Size > s.size-t.Offset {
			return t.outside(s, uint64(t.Offset))
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(f.Tensors[a].Offset, f.Tensors[b].Offset) })
	for i := 1; i < len(order); i++ {
		a, b := &f.Tensors[order[i-1]], &f.Tensors[order[i]]
		if a.Offset+a.Size > b.Offset {
			return badfile.At(s.path, b.Offset, badfile.ErrLayout, "its data overlaps tensor %q", a.Name).Of(b.Name).Advise(badfile.TryConvert)
		}
	}
	return nil
}
