package container

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"

	"github.com/coli-moe/coli/weights/internal/badfile"
)

// Open reads the header of the file at path.
func Open(path string) (*File, error) { return badfile.Open(path, Read) }

// Read reads the header from r, which holds size bytes; path serves messages only. Errors are *weights.Error.
func Read(r io.ReaderAt, size int64, path string) (*File, error) {
	head := make([]byte, min(size, preamble))
	if err := readFull(r, head, 0, path); err != nil {
		return nil, err
	}
	if err := badfile.Sniff(path, head); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	switch m := string(head[:min(len(head), len(Magic))]); m {
	case Magic:
	case strings.Repeat("\x00", len(Magic)): // the header is written last
		return nil, badfile.At(path, 0, badfile.ErrMagic, "it has no header, as a container whose conversion has not ended").
			Advise("give the command that converts the model again")
	default:
		return nil, badfile.At(path, 0, badfile.ErrMagic, "it begins with %q, a coli container with %q", m, Magic).
			Advise("check that this is the model file")
	}
	if len(head) < preamble {
		return nil, badfile.At(path, size, badfile.ErrTruncated, "%d bytes, the header begins at %d", size, preamble).Advise(badfile.TryDownload)
	}
	if v := le.Uint32(head[8:]); v != Version {
		return nil, badfile.At(path, 8, badfile.ErrVersion, "container version %d, this coli reads %d", v, Version).
			Advise("use a newer coli, or convert the model again with this one")
	}
	table, meta, total := le.Uint64(head[16:]), le.Uint64(head[24:]), le.Uint64(head[32:])
	switch rest := uint64(size - preamble); {
	case total < uint64(size):
		return nil, badfile.At(path, int64(total), badfile.ErrLayout, "%d bytes, the header says %d", size, total).Advise(badfile.TryDownload)
	case total > uint64(size):
		return nil, badfile.At(path, size, badfile.ErrTruncated, "%d bytes, the header says %d", size, total).Advise(badfile.TryDownload)
	case table > rest || meta > rest-table:
		return nil, badfile.At(path, 16, badfile.ErrTruncated, "a header of %d and metadata of %d bytes in a file of %d", table, meta, size).
			Advise(badfile.TryDownload)
	}
	all := make([]byte, preamble+table+meta)
	if err := readFull(r, all, 0, path); err != nil {
		return nil, err
	}
	want := le.Uint32(all[12:])
	clear(all[12:16])
	if got := Sum(0, all); got != want {
		return nil, badfile.At(path, 12, badfile.ErrHeader, "the header's checksum is %08x, its bytes give %08x", want, got).
			Advise(badfile.TryDownload)
	}
	f := &File{Path: path, Size: size, Metadata: int64(preamble + table), MetaSize: int64(meta)}
	p := &parser{path: path, b: all[:preamble+table], pos: preamble, file: f}
	p.tensors()
	p.layers()
	if p.err == nil && p.pos != len(p.b) {
		p.fail(badfile.ErrHeader, "%d bytes after the last layer", len(p.b)-p.pos)
	}
	if p.err != nil {
		return nil, p.err
	}
	return f, nil
}

func readFull(r io.ReaderAt, b []byte, at int64, path string) error {
	if n, err := r.ReadAt(b, at); n < len(b) {
		if errors.Is(err, io.EOF) {
			err = badfile.ErrTruncated
		}
		return badfile.At(path, at+int64(n), err, "reading the header").Advise(badfile.TryDownload)
	}
	return nil
}

// parser walks the table. After the first mistake err is set and every further read returns zero.
type parser struct {
	path string
	b    []byte // the file up to the end of the table
	pos  int
	file *File
	end  int64 // of the data placed so far; 0 before the first
	err  error
}

func (p *parser) fail(cause error, format string, args ...any) *badfile.Error {
	e := badfile.At(p.path, int64(p.pos), cause, format, args...).Advise("convert the model again")
	if p.err == nil {
		p.err = e
	}
	return e
}

func (p *parser) take(n int) []byte {
	if p.err == nil && n > len(p.b)-p.pos {
		p.fail(badfile.ErrHeader, "the list of tensors ends in the middle")
	}
	if p.err != nil {
		return make([]byte, 8)[:min(n, 8)]
	}
	p.pos += n
	return p.b[p.pos-n : p.pos]
}

func (p *parser) u16() uint16 { return binary.LittleEndian.Uint16(p.take(2)) }
func (p *parser) u32() uint32 { return binary.LittleEndian.Uint32(p.take(4)) }

// number reads a 64-bit number that an int holds.
func (p *parser) number() int {
	n := binary.LittleEndian.Uint64(p.take(8))
	if n > math.MaxInt {
		p.fail(badfile.ErrHeader, "%d in place of a size", n)
		return 0
	}
	return int(n)
}

func (p *parser) name() string {
	n := int(p.u16())
	if p.err == nil && (n == 0 || n > maxName) {
		p.fail(badfile.ErrHeader, "a name of %d bytes, 1 to %d are allowed", n, maxName)
	}
	if p.err != nil {
		return ""
	}
	return string(p.take(n))
}

// place checks that data of size bytes may begin at offset and marks it as taken.
func (p *parser) place(offset, size int64, alignment int64, name string) {
	first := p.file.Metadata + p.file.MetaSize
	switch {
	case p.err != nil:
	case offset%alignment != 0:
		p.fail(badfile.ErrAlignment, "offset %d is not a multiple of %d", offset, alignment).Of(name)
	case offset < max(first, p.end):
		p.fail(badfile.ErrLayout, "its data begins at %d, before what precedes it ends at %d", offset, max(first, p.end)).Of(name)
	case offset > p.file.Size || size > p.file.Size-offset:
		p.fail(badfile.ErrTruncated, "%d bytes at %d, the file has %d", size, offset, p.file.Size).Of(name)
	}
	p.end = offset + size
}

func (p *parser) tensors() {
	for range p.u32() {
		t := Tensor{Name: p.name()}
		id, dims := p.u16(), int(p.take(1)[0])
		if p.err == nil && dims > maxDims {
			p.fail(badfile.ErrShape, "%d dimensions, at most %d are allowed", dims, maxDims).Of(t.Name)
		}
		for range dims {
			if p.err == nil {
				t.Shape = append(t.Shape, p.number())
			}
		}
		t.Offset, t.Size, t.Sum = int64(p.number()), int64(p.number()), p.u32()
		var ok bool
		if t.Format, ok = formatOf[id]; !ok && p.err == nil {
			p.fail(badfile.ErrUnknownType, "format number %d", id).Of(t.Name).Advise("use a newer coli")
		}
		if want := tensorSize(t.Format, t.Shape); p.err == nil && (want == 0 || want != t.Size) {
			p.fail(badfile.ErrShape, "%s %v takes %d bytes, the header says %d", t.Format, t.Shape, want, t.Size).Of(t.Name)
		}
		if p.place(t.Offset, t.Size, denseAlign, t.Name); p.err != nil {
			return
		}
		p.file.Dense = append(p.file.Dense, t)
	}
}

func (p *parser) layers() {
	for range p.u32() {
		l := Layer{Index: int(p.u32())}
		experts, offset, record := int64(p.u32()), int64(p.number()), int64(p.number())
		l.Offset = offset
		for i := range l.Matrices {
			m := &l.Matrices[i]
			m.Pattern = p.name()
			id := p.u16()
			m.Rows, m.Cols = p.number(), p.number()
			var ok bool
			if m.Format, ok = formatOf[id]; !ok && p.err == nil {
				p.fail(badfile.ErrUnknownType, "format number %d", id).Of(m.Pattern).Advise("use a newer coli")
			}
			if p.err == nil && strings.Count(m.Pattern, "*") != 1 {
				p.fail(badfile.ErrHeader, "a name of experts has one * for their number").Of(m.Pattern)
			}
			if p.err == nil && m.Size() == 0 {
				p.fail(badfile.ErrShape, "%s cannot have the shape %d×%d", m.Format, m.Rows, m.Cols).Of(m.Pattern)
			}
		}
		if p.err != nil {
			return
		}
		before := -1
		if n := len(p.file.Layers); n > 0 {
			before = p.file.Layers[n-1].Index
		}
		stride := l.Stride()
		switch {
		case l.Index <= before:
			p.fail(badfile.ErrDuplicate, "layer %d after layer %d", l.Index, before)
		case record != l.RecordSize():
			p.fail(badfile.ErrShape, "the matrices of an expert take %d bytes, the header says %d", l.RecordSize(), record).
				Of(l.Matrices[0].Pattern)
		case experts == 0 || experts > p.file.Size/stride:
			p.fail(badfile.ErrTruncated, "%d experts of %d bytes in a file of %d", experts, stride, p.file.Size).Of(l.Matrices[0].Pattern)
		}
		p.place(l.Offset, experts*stride, RecordAlign, l.Matrices[0].Pattern)
		if p.err != nil {
			return
		}
		l.Sums = make([]uint32, experts)
		for i := range l.Sums {
			l.Sums[i] = p.u32()
		}
		p.file.Layers = append(p.file.Layers, l)
	}
}
