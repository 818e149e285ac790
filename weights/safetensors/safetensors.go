// Package safetensors reads the header of one safetensors file: names, types, shapes and where each tensor lies.
//
// The layout is that of github.com/huggingface/safetensors: eight bytes of little-endian header length, a JSON object, the data. Its
// rules are enforced: tensors cover the data without overlap or hole, and byte counts agree with shapes. Tensor data is never read
// here; package weights joins shards and pairs scales with their tensors.
package safetensors

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strconv"

	"github.com/coli-moe/coli/weights/internal/badfile"
	"github.com/coli-moe/coli/weights/internal/jsonscan"
)

const (
	maxHeader = 100_000_000 // bytes; the limit of the reference implementation
	firstRead = 64 << 10
)

// bitsOf gives the bits of one element of each type.
var bitsOf = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// File is the header of a safetensors file. It is immutable and safe for concurrent use.
type File struct {
	Path       string
	Size       int64 // of the file, bytes
	DataOffset int64 // where tensor data begins
	Metadata   map[string]string
	Tensors    []Tensor // in the order of their data
}

// Tensor is one entry of the header.
type Tensor struct {
	Name   string
	DType  string // "F32", "BF16", "F8_E4M3", …
	Shape  []int  // outermost dimension first; empty for a single value
	Offset int64  // from the start of the file
	Size   int64  // bytes
}

// Open reads the header of the file at path.
func Open(path string) (*File, error) { return badfile.Open(path, Read) }

// Read reads the header from r, which holds size bytes; path serves messages only. Errors are *weights.Error.
func Read(r io.ReaderAt, size int64, path string) (*File, error) {
	header, err := readHeader(r, size, path)
	if err != nil {
		return nil, err
	}
	f := &File{Path: path, Size: size, DataOffset: 8 + int64(len(header)), Metadata: map[string]string{}}
	if err := f.parse(header); err != nil {
		return nil, err
	}
	return f, f.checkLayout()
}

// readHeader returns the JSON text.
func readHeader(r io.ReaderAt, size int64, path string) ([]byte, error) {
	head := make([]byte, min(size, firstRead))
	if _, err := r.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, badfile.At(path, 0, err, "reading the header")
	}
	if err := badfile.Sniff(path, head); err != nil {
		return nil, err
	}
	if len(head) < 8 {
		return nil, badfile.At(path, 0, badfile.ErrTruncated, "%d bytes, the header length alone takes 8", size).Advise(badfile.TryDownload)
	}
	n := binary.LittleEndian.Uint64(head)
	switch {
	case n > maxHeader && (len(head) == 8 || head[8] != '{'):
		return nil, badfile.At(path, 0, badfile.ErrMagic, "it begins with %q, as neither a GGUF nor a safetensors file does", head[:4]).
			Advise("check that this is the model file")
	case n > maxHeader:
		return nil, badfile.At(path, 0, badfile.ErrHeader, "a header of %d bytes, the limit is %d", n, maxHeader).
			Advise("check that this is a safetensors file")
	case n > uint64(size-8):
		return nil, badfile.At(path, 0, badfile.ErrTruncated, "a header of %d bytes in a file of %d", n, size).Advise(badfile.TryDownload)
	case n < 2 || head[8] != '{':
		return nil, badfile.At(path, 8, badfile.ErrMagic, "the header is not a JSON object").Advise("check that this is a safetensors file")
	case n <= uint64(len(head)-8):
		return head[8 : 8+n], nil
	}
	header := make([]byte, n)
	if _, err := r.ReadAt(header[copy(header, head[8:]):], int64(len(head))); err != nil && !errors.Is(err, io.EOF) {
		return nil, badfile.At(path, int64(len(head)), err, "reading the header")
	}
	return header, nil
}

func (f *File) parse(header []byte) error {
	dec, err := jsonscan.New(header)
	if err != nil {
		return badfile.At(f.Path, 8, badfile.ErrHeader, "%v", err).Advise(badfile.TryDownload)
	}
	err = jsonscan.Object(dec, func(name string) error {
		if name == "__metadata__" {
			return f.metadata(dec)
		}
		t := Tensor{Name: name}
		err := t.parse(dec)
		f.Tensors = append(f.Tensors, t)
		var e *badfile.Error
		if err == nil || errors.As(err, &e) {
			return err
		}
		return badfile.At("", 0, cause(err), "%v", err).Of(name)
	})
	if err == nil {
		err = jsonscan.End(dec)
	}
	if err == nil {
		return nil
	}
	var e *badfile.Error
	if !errors.As(err, &e) {
		e = badfile.At("", 0, cause(err), "%v", err)
	}
	e.File, e.Offset = f.Path, 8+dec.InputOffset()
	return e.Advise(badfile.TryDownload)
}

func cause(err error) error {
	if errors.Is(err, jsonscan.ErrDuplicate) {
		return badfile.ErrDuplicate
	}
	return badfile.ErrHeader
}

func (f *File) metadata(dec *json.Decoder) error {
	return jsonscan.Object(dec, func(key string) error {
		tok, err := dec.Token()
		if err != nil {
			return err
		}
		s, ok := tok.(string)
		if !ok {
			return fmt.Errorf("__metadata__ %q is not a string", key)
		}
		f.Metadata[key] = s
		return nil
	})
}

// parse reads {"dtype": …, "shape": […], "data_offsets": [begin, end]}; Offset is left relative to the data.
func (t *Tensor) parse(dec *json.Decoder) error {
	var offsets []int
	err := jsonscan.Object(dec, func(key string) (err error) {
		switch key {
		case "dtype":
			tok, err := dec.Token()
			t.DType, _ = tok.(string)
			return err
		case "shape":
			t.Shape, err = ints(dec)
		case "data_offsets":
			offsets, err = ints(dec)
		default:
			err = fmt.Errorf("unknown field %q", key)
		}
		return err
	})
	if err != nil {
		return err
	}
	width, ok := bitsOf[t.DType]
	switch {
	case !ok:
		return badfile.At("", 0, badfile.ErrUnknownType, "dtype %q", t.DType).Of(t.Name)
	case t.Shape == nil || len(offsets) != 2:
		return errors.New("shape or data_offsets are missing")
	case offsets[0] > offsets[1]:
		return badfile.At("", 0, badfile.ErrLayout, "data_offsets %v run backwards", offsets).Of(t.Name)
	}
	n := width
	for _, d := range t.Shape {
		hi, lo := bits.Mul64(n, uint64(d))
		if d == 0 || hi != 0 || lo > math.MaxInt64 {
			return badfile.At("", 0, badfile.ErrShape, "shape %v", t.Shape).Of(t.Name)
		}
		n = lo
	}
	if n%8 != 0 || n/8 != uint64(offsets[1]-offsets[0]) {
		return badfile.At("", 0, badfile.ErrShape, "%s %v takes %d bits, data_offsets %v give %d bytes", t.DType, t.Shape, n, offsets,
			offsets[1]-offsets[0]).Of(t.Name)
	}
	t.Offset, t.Size = int64(offsets[0]), int64(n/8)
	return nil
}

// ints reads an array of non-negative integers; never nil without an error.
func ints(dec *json.Decoder) ([]int, error) {
	if tok, err := dec.Token(); err != nil {
		return nil, err
	} else if tok != json.Delim('[') {
		return nil, fmt.Errorf("%v in place of an array", tok)
	}
	out := []int{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		n, ok := tok.(json.Number)
		v, err := strconv.ParseUint(string(n), 10, strconv.IntSize-1)
		if !ok || err != nil {
			return nil, fmt.Errorf("%v in place of a size", tok)
		}
		out = append(out, int(v))
	}
	_, err := dec.Token()
	return out, err
}

// checkLayout sorts tensors by position, makes offsets absolute and checks that the data is covered exactly.
func (f *File) checkLayout() error {
	slices.SortStableFunc(f.Tensors, func(a, b Tensor) int { return cmp.Compare(a.Offset, b.Offset) })
	at := f.DataOffset
	for i := range f.Tensors {
		t := &f.Tensors[i]
		switch avail := f.Size - f.DataOffset; {
		case t.Offset > avail || t.Size > avail-t.Offset:
			return badfile.At(f.Path, f.Size, badfile.ErrTruncated, "it ends at byte %d of the data, the file has %d of it",
				uint64(t.Offset)+uint64(t.Size), avail).Of(t.Name).Advise(badfile.TryDownload)
		case f.DataOffset+t.Offset < at:
			return badfile.At(f.Path, f.DataOffset+t.Offset, badfile.ErrLayout, "it overlaps tensor %q", f.Tensors[i-1].Name).Of(t.Name).
				Advise(badfile.TryConvert)
		case f.DataOffset+t.Offset > at:
			return badfile.At(f.Path, at, badfile.ErrLayout, "a hole of %d bytes before it", f.DataOffset+t.Offset-at).Of(t.Name).
				Advise(badfile.TryConvert)
		}
		t.Offset += f.DataOffset
		at = t.Offset + t.Size
	}
	if at != f.Size {
		return badfile.At(f.Path, at, badfile.ErrLayout, "%d bytes that belong to no tensor", f.Size-at).Advise(badfile.TryConvert)
	}
	return nil
}
