// Package container reads and lays out coli's own model file, model.coli: dense tensors, and for every routed expert one record that
// holds gate, up and down one after the other, begins at a multiple of 4 KiB and so comes in with a single O_DIRECT read.
//
// The layout is described in docs/container.md. Nothing is trusted: the header's checksum, every length, every format number and every
// position are checked before they are used, and memory stays proportional to the bytes read. What tensors mean, and configuration and
// tokenizer beside the file, are the matter of package weights; values are computed and written by package convert.
package container

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"strings"

	"github.com/coli-moe/coli/weights/format"
)

const (
	// Name is the file's name in a container's directory.
	Name = "model.coli"
	// Magic is what the file begins with.
	Magic = "COLI.MOE"
	// Version is the only version of the layout so far.
	Version = 1
	// RecordAlign is the alignment in bytes of an expert's record, in position and in the distance to the next.
	RecordAlign = 4096

	denseAlign = 64
	preamble   = 64 // bytes before the header
	maxDims    = 8
	maxName    = 1024
)

// formatIDs are the numbers that stand for formats in the file. They never change meaning; a new format takes a new number.
var formatIDs = map[format.Format]uint16{
	format.F32: 1, format.F16: 2, format.BF16: 3, format.F8E4M3: 4,
	format.I8Row: 16, format.I4G64: 17,
	format.Q4_0: 32, format.Q4_1: 33, format.Q5_0: 34, format.Q5_1: 35, format.Q8_0: 36,
	format.Q2_K: 40, format.Q3_K: 41, format.Q4_K: 42, format.Q5_K: 43, format.Q6_K: 44,
	format.IQ2_XXS: 48, format.IQ2_XS: 49, format.IQ2_S: 50, format.IQ3_XXS: 51, format.IQ3_S: 52,
	format.IQ1_S: 53, format.IQ1_M: 54, format.IQ4_NL: 55, format.IQ4_XS: 56,
	format.TQ1_0: 64, format.TQ2_0: 65, format.MXFP4: 66, format.NVFP4: 67,
}

var formatOf = func() map[uint16]format.Format {
	out := make(map[uint16]format.Format, len(formatIDs))
	for f, id := range formatIDs {
		out[id] = f
	}
	return out
}()

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum continues the CRC-32C sum, 0 at first, over data. It is the checksum of everything in the file.
func Sum(sum uint32, data []byte) uint32 { return crc32.Update(sum, castagnoli, data) }

// File is the header of a container: what it holds and where. One that Read returns is immutable and safe for concurrent use.
type File struct {
	Path     string
	Size     int64 // of the file, bytes
	Dense    []Tensor
	Layers   []Layer // ascending
	Metadata int64   // where the metadata of a GGUF file lies
	MetaSize int64   // bytes of it; 0 for a model that did not come from one
}

// Tensor is a tensor outside the routed experts.
type Tensor struct {
	Name   string
	Format format.Format
	Shape  []int // outermost dimension first; empty for a single value
	Offset int64
	Size   int64
	Sum    uint32 // CRC-32C of its bytes
}

// Layer holds the routed experts of one layer. All have the same matrices in the same formats.
type Layer struct {
	Index    int
	Matrices [3]Matrix // gate, up, down
	Offset   int64     // of the first expert's record
	Sums     []uint32  // CRC-32C of each expert's record, padding not included
}

// Matrix is one matrix of every expert of a layer.
type Matrix struct {
	Pattern    string // the name it had in the source, with * for the expert's number
	Format     format.Format
	Rows, Cols int
}

// Name returns the matrix's name for an expert.
func (m *Matrix) Name(expert string) string { return strings.Replace(m.Pattern, "*", expert, 1) }

// Size returns the bytes of the matrix, 0 where its shape does not suit its format or the size overflows.
func (m *Matrix) Size() int64 { return tensorSize(m.Format, []int{m.Rows, m.Cols}) }

// RecordSize returns the bytes of one expert: its three matrices, one directly after the other.
func (l *Layer) RecordSize() int64 {
	return l.Matrices[0].Size() + l.Matrices[1].Size() + l.Matrices[2].Size()
}

// Stride returns the distance between the records of two experts.
func (l *Layer) Stride() int64 { return align(l.RecordSize(), RecordAlign) }

// Record returns where the record of an expert begins.
func (l *Layer) Record(expert int) int64 { return l.Offset + int64(expert)*l.Stride() }

// tensorSize returns the bytes of a tensor, 0 if its shape is impossible in the format or the size overflows.
func tensorSize(f format.Format, shape []int) int64 {
	cols, rows := 1, int64(1)
	if len(shape) > 0 {
		cols = shape[len(shape)-1]
		for _, d := range shape[:len(shape)-1] {
			if d <= 0 || rows > math.MaxInt64/int64(d) {
				return 0
			}
			rows *= int64(d)
		}
	}
	row, err := f.RowBytes(cols)
	if err != nil || rows > (math.MaxInt64-RecordAlign)/4/int64(row) { // so that the sum of three still has room
		return 0
	}
	return rows * int64(row)
}

func align(n, to int64) int64 { return (n + to - 1) / to * to }

// Place sets the size of every dense tensor and all positions, for a file with metaSize bytes of GGUF metadata, and returns the bytes
// of the header, the metadata not included. The caller has set everything else but the sums; Sums has its final length.
func (f *File) Place(metaSize int64) int64 {
	f.Metadata, f.MetaSize = preamble+int64(len(f.table())), metaSize
	at := f.Metadata + metaSize
	for i := range f.Dense {
		t := &f.Dense[i]
		t.Size = tensorSize(t.Format, t.Shape)
		t.Offset = align(at, denseAlign)
		at = t.Offset + t.Size
	}
	for i := range f.Layers {
		l := &f.Layers[i]
		l.Offset = align(at, RecordAlign)
		at = l.Record(len(l.Sums)) // the last record is padded too, so that an O_DIRECT read of it stays inside the file
	}
	f.Size = at
	return f.Metadata
}

// Header returns the bytes of the file before its metadata, with the checksum that covers both. Place was called before.
func (f *File) Header(metadata []byte) []byte {
	table := f.table()
	le := binary.LittleEndian
	b := make([]byte, preamble, preamble+len(table))
	copy(b, Magic)
	le.PutUint32(b[8:], Version)
	le.PutUint64(b[16:], uint64(len(table)))
	le.PutUint64(b[24:], uint64(len(metadata)))
	le.PutUint64(b[32:], uint64(f.Size))
	b = append(b, table...)
	le.PutUint32(b[12:], Sum(Sum(0, b), metadata)) // the field itself counts as zero
	return b
}

// table encodes the list of tensors.
func (f *File) table() []byte {
	le := binary.LittleEndian
	str := func(b []byte, s string) []byte { return append(le.AppendUint16(b, uint16(len(s))), s...) }
	b := le.AppendUint32(nil, uint32(len(f.Dense)))
	for i := range f.Dense {
		t := &f.Dense[i]
		b = le.AppendUint16(str(b, t.Name), formatIDs[t.Format])
		b = append(b, byte(len(t.Shape)))
		for _, d := range t.Shape {
			b = le.AppendUint64(b, uint64(d))
		}
		b = le.AppendUint64(le.AppendUint64(b, uint64(t.Offset)), uint64(t.Size))
		b = le.AppendUint32(b, t.Sum)
	}
	b = le.AppendUint32(b, uint32(len(f.Layers)))
	for i := range f.Layers {
		l := &f.Layers[i]
		b = le.AppendUint32(le.AppendUint32(b, uint32(l.Index)), uint32(len(l.Sums)))
		b = le.AppendUint64(le.AppendUint64(b, uint64(l.Offset)), uint64(l.RecordSize()))
		for j := range l.Matrices {
			m := &l.Matrices[j]
			b = le.AppendUint16(str(b, m.Pattern), formatIDs[m.Format])
			b = le.AppendUint64(le.AppendUint64(b, uint64(m.Rows)), uint64(m.Cols))
		}
		for _, sum := range l.Sums {
			b = le.AppendUint32(b, sum)
		}
	}
	return b
}
