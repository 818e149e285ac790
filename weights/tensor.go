package weights

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/coli-moe/coli/weights/format"
	"github.com/coli-moe/coli/weights/internal/badfile"
)

// Tensor is a tensor of a checkpoint, or a part of one, and where its bytes lie. It is immutable.
type Tensor struct {
	Name   string
	Type   string        // the file's own name of the type: "BF16", "Q4_K", "I64"
	Format format.Format // format.Unknown where the type holds no weights coli computes with
	Shape  []int         // outermost dimension first; empty for a single value
	File   string        // path
	Offset int64         // from the start of File
	Size   int64         // bytes in File
	Scale  *Tensor       // F32, where rows are assembled from two tensors: for fp8 one value per 128×128 tile; otherwise nil

	file      *file
	row0      int  // rows of the first tile row of Scale that lie before this part
	companion bool // it holds the scales of another tensor
	packing   packing
	qs        *Tensor // the scales, all of them, of a packed tensor whose shape is not known yet
}

// Extent is a range of bytes in a file.
type Extent struct {
	File   string
	Offset int64
	Size   int64
}

// Extent returns where the bytes of t lie, its scales not included.
func (t *Tensor) Extent() Extent { return Extent{t.File, t.Offset, t.Size} }

// Cols returns the innermost dimension, 1 for a single value.
func (t *Tensor) Cols() int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[len(t.Shape)-1]
}

// Rows returns the product of all dimensions but the innermost.
func (t *Tensor) Rows() int {
	n := 1
	for _, d := range t.Shape[:max(len(t.Shape)-1, 0)] {
		n *= d
	}
	return n
}

// Part returns the sub-tensor at index of the outermost dimension: expert index of a stacked [E,I,H].
func (t *Tensor) Part(index int) (*Tensor, error) {
	if len(t.Shape) < 2 {
		return nil, badfile.At(t.File, t.Offset, ErrShape, "%v has no parts", t.Shape).Of(t.Name)
	}
	p, err := t.cut(index, index+1)
	if err != nil {
		return nil, err
	}
	p.Name = fmt.Sprintf("%s[%d]", t.Name, index)
	p.Shape = t.Shape[1:]
	if p.Scale != nil && len(p.Shape) > 1 {
		p.Scale, err = t.Scale.Part(index)
	}
	return p, err
}

// RowsOf returns the rows from ≤ r < to of the outermost dimension.
func (t *Tensor) RowsOf(from, to int) (*Tensor, error) {
	p, err := t.cut(from, to)
	if err != nil {
		return nil, err
	}
	p.Name = fmt.Sprintf("%s[%d:%d]", t.Name, from, to)
	return p, nil
}

func (t *Tensor) cut(from, to int) (*Tensor, error) {
	if len(t.Shape) == 0 || from < 0 || to <= from || to > t.Shape[0] {
		return nil, badfile.At(t.File, t.Offset, ErrShape, "rows %d to %d of %v", from, to, t.Shape).Of(t.Name)
	}
	p := *t
	each := t.Size / int64(t.Shape[0])
	p.Offset, p.Size = t.Offset+int64(from)*each, int64(to-from)*each
	p.Shape = slices.Clone(t.Shape)
	p.Shape[0] = to - from
	var err error
	switch {
	case t.Scale == nil:
	case len(t.Shape) == 2 && t.packing == packedNot:
		p.row0 = (t.row0 + from) % fp8Tile
		p.Scale, err = t.Scale.cut((t.row0+from)/fp8Tile, tiles(t.row0+to))
	default:
		p.Scale, err = t.Scale.cut(from, to)
	}
	return &p, err
}

// Read fills dst, which must have Size bytes, with the bytes of t as they are in the file.
func (c *Checkpoint) Read(t *Tensor, dst []byte) error {
	if int64(len(dst)) != t.Size {
		return badfile.At(t.File, t.Offset, ErrShape, "%d bytes into a buffer of %d", t.Size, len(dst)).Of(t.Name)
	}
	return c.ReadRange(t, 0, dst)
}

// ReadRange fills dst with bytes of t from byte off of t on.
func (c *Checkpoint) ReadRange(t *Tensor, off int64, dst []byte) error {
	if off < 0 || off > t.Size || int64(len(dst)) > t.Size-off {
		return badfile.At(t.File, t.Offset, ErrShape, "bytes %d to %d of %d", off, off+int64(len(dst)), t.Size).Of(t.Name)
	}
	if n, err := t.file.f.ReadAt(dst, t.Offset+off); n < len(dst) {
		if errors.Is(err, io.EOF) {
			err = ErrTruncated
		}
		return badfile.At(t.File, t.Offset+off+int64(n), err, "the file changed after it was opened").Of(t.Name).Advise(badfile.TryDownload)
	}
	return nil
}

// Map returns the bytes of t as they are in the file, read-only and valid until Close. They are mapped where the system can map files:
// pages are read when they are touched, and a file truncated by someone else meanwhile kills the process. Elsewhere they are read.
func (c *Checkpoint) Map(t *Tensor) ([]byte, error) {
	b, err := t.file.bytes(t.Offset, t.Size)
	if err != nil {
		return nil, badfile.At(t.File, t.Offset, err, "mapping %d bytes", t.Size).Of(t.Name).Advise("check free address space (ulimit -v)")
	}
	return b, nil
}

// LoadRows returns the rows of t one after another, each Format.RowBytes(Cols()) bytes: mapped as Map does, or, for tensors with scales
// of their own, assembled in memory.
func (c *Checkpoint) LoadRows(t *Tensor) ([]byte, error) {
	if t.Format == format.Unknown {
		return nil, badfile.At(t.File, t.Offset, ErrUnknownType, "%s is no weight format", t.Type).Of(t.Name)
	}
	data, err := c.Map(t)
	if err != nil || t.Scale == nil {
		return data, err
	}
	scales, err := c.Map(t.Scale)
	if err != nil {
		return nil, err
	}
	if t.packing != packedNot {
		return t.loadPacked(data, scales), nil
	}
	cols, scaleRow := t.Cols(), 4*tiles(t.Cols())
	out := make([]byte, 0, t.Rows()*(cols+scaleRow))
	// Tiles do not reach from one matrix of a stack into the next, so rows are counted within their matrix.
	perMatrix := t.Shape[len(t.Shape)-2]
	tileRows := t.Scale.Shape[len(t.Shape)-2]
	for r := range t.Rows() {
		at := (r/perMatrix*tileRows + (t.row0+r%perMatrix)/fp8Tile) * scaleRow
		out = append(append(out, data[r*cols:(r+1)*cols]...), scales[at:at+scaleRow]...)
	}
	return out, nil
}
