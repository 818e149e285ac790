package weights

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/coli-moe/coli/weights/format"
	"github.com/coli-moe/coli/weights/internal/badfile"
)

// RecordAlign is the alignment, in bytes, of everything direct I/O touches in a Record: offsets in files, sizes and places in memory.
// Drives and file systems ask for their logical block size, 512 or 4096.
const RecordAlign = 4096

// Extents of one file that are at most mergeGap bytes apart are read as one: at the 2.5 GB/s of the drive measured, 64 KiB take 26 µs,
// about what a request of its own costs in CPU time. The gap's bytes occupy memory too, so it is at most a mergeShare-th of the record.
const (
	mergeGap   = 64 << 10
	mergeShare = 16
)

// RecordExtent is one read of a Record. Offset and At are multiples of RecordAlign. Size is one too unless the file ends there; the
// memory up to the next multiple is the extent's as well, so that a direct read can ask for whole blocks.
type RecordExtent struct {
	File         int // index in Checkpoint.Files
	Offset, Size int64
	At           int64 // where the bytes land in the record's memory
}

// Matrix says where the rows of a matrix [Rows, Cols] lie in a record's memory once it is read and assembled.
type Matrix struct {
	Format               format.Format
	Rows, Cols, RowBytes int
	Offset               int64
}

// Bytes returns the matrix's part of the record's memory.
func (m *Matrix) Bytes(mem []byte) []byte {
	n := int64(m.Rows) * int64(m.RowBytes)
	return mem[m.Offset : m.Offset+n : m.Offset+n]
}

// Record says how a routed expert is read: as few reads as its layout in the files allows, then Assemble. It is immutable.
type Record struct {
	Extents        []RecordExtent
	Gate, Up, Down Matrix
	Bytes          int64 // memory needed, a multiple of RecordAlign

	moves []move
}

// ReadBytes is the number of bytes read from files, alignment and merged gaps included.
func (r *Record) ReadBytes() int64 {
	var n int64
	for _, x := range r.Extents {
		n += x.Size
	}
	return n
}

// move turns a matrix and its scales, both as they lie in the file, into rows with their scales.
type move struct {
	from, to            int64 // of the matrix's first byte
	rows, row, scaleRow int   // bytes of a row's values and of its scales
	rowBytes            int   // bytes of an assembled row
	tile                int   // rows that share scales
	row0                int   // rows of the first tile row that belong to another part
	packing             packing
	format              format.Format
	scales, kept        int64 // the grid as it was read, and its copy behind everything
	scaleBytes          int64
}

// Assemble turns what was read into what Gate, Up and Down describe. It does nothing unless the weights have scales in a tensor of their
// own; then it works in place. mem has at least Bytes bytes.
func (r *Record) Assemble(mem []byte) {
	for i := range r.moves {
		m := &r.moves[i]
		copy(mem[m.kept:], mem[m.scales:m.scales+m.scaleBytes])
	}
	// Matrices come in the order they lie in memory, and as much room lies before the first one as all scales need: so no row is
	// overwritten before it has moved.
	for i := range r.moves {
		m := &r.moves[i]
		for k := range m.rows {
			to, from := mem[m.to+int64(k*m.rowBytes):][:m.rowBytes], mem[m.from+int64(k*m.row):][:m.row]
			scales := mem[m.kept+int64((m.row0+k)/m.tile*m.scaleRow):][:m.scaleRow]
			if m.packing != packedNot {
				m.packing.unpack(m.format, to, from, scales)
				continue
			}
			copy(to, from)
			copy(to[m.row:], scales)
		}
	}
}

// Record returns how a routed expert is read, for every layout that Expert knows.
func (c *Checkpoint) Record(layer, expert int) (Record, error) {
	gate, up, down, err := c.Expert(layer, expert)
	if err != nil {
		return Record{}, err
	}
	if len(gate.Shape) != 2 || !slices.Equal(up.Shape, gate.Shape) || !slices.Equal(down.Shape, []int{gate.Shape[1], gate.Shape[0]}) {
		return Record{}, badfile.At(down.File, down.Offset, ErrShape, "gate %v, up %v, down %v: [I,H] twice and [H,I] are expected",
			gate.Shape, up.Shape, down.Shape).Of(down.Name).Advise(badfile.TryConvert)
	}
	var r Record
	parts := []*Tensor{gate, up, down}
	var slack int64
	for i, m := range []*Matrix{&r.Gate, &r.Up, &r.Down} {
		t := parts[i]
		if t.Format == format.Unknown {
			return Record{}, badfile.At(t.File, t.Offset, ErrUnknownType, "%s is no weight format", t.Type).Of(t.Name)
		}
		rowBytes, err := t.Format.RowBytes(t.Cols())
		if err != nil {
			return Record{}, badfile.At(t.File, t.Offset, ErrShape, "%v", err).Of(t.Name).Advise(badfile.TryConvert)
		}
		*m = Matrix{Format: t.Format, Rows: t.Rows(), Cols: t.Cols(), RowBytes: rowBytes}
		if t.Scale != nil {
			parts = append(parts, t.Scale)
			slack += int64(m.Rows)*int64(rowBytes) - t.Size
		}
	}
	if slack > 0 {
		slack = alignUp(slack+3*rowAlign, RecordAlign)
	}
	r.Extents = c.extents(parts, slack)
	last := r.Extents[len(r.Extents)-1]
	r.Bytes = last.At + alignUp(last.Size, RecordAlign)
	for i, m := range []*Matrix{&r.Gate, &r.Up, &r.Down} {
		m.Offset = c.place(r.Extents, parts[i])
	}
	if slack > 0 {
		r.plan(c, parts[:3])
	}
	return r, nil
}

// rowAlign is the alignment of the first row of an assembled matrix.
const rowAlign = 64

// plan lays out how the matrices are assembled.
func (r *Record) plan(c *Checkpoint, tensors []*Tensor) {
	matrices := []*Matrix{&r.Gate, &r.Up, &r.Down}
	order := []int{0, 1, 2}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(matrices[a].Offset, matrices[b].Offset) })
	var to int64
	for _, i := range order {
		m, t := matrices[i], tensors[i]
		mv := move{
			from: m.Offset, to: to, rows: m.Rows, row: int(t.Size) / m.Rows, rowBytes: m.RowBytes, tile: fp8Tile, row0: t.row0,
			packing: t.packing, format: t.Format,
		}
		if t.packing != packedNot {
			mv.tile = 1
		}
		if t.Scale != nil {
			mv.scaleRow = int(t.Scale.Size) / t.Scale.Rows()
			mv.scales, mv.scaleBytes, mv.kept = c.place(r.Extents, t.Scale), t.Scale.Size, r.Bytes
			r.Bytes += t.Scale.Size
		}
		r.moves = append(r.moves, mv)
		m.Offset = to
		to = alignUp(to+int64(m.Rows*m.RowBytes), rowAlign)
	}
	r.Bytes = alignUp(r.Bytes, RecordAlign)
}

// extents returns the reads that cover the tensors; the first lands at byte at of the record's memory.
func (c *Checkpoint) extents(tensors []*Tensor, at int64) []RecordExtent {
	var total int64
	var all []RecordExtent
	for _, t := range tensors {
		total += t.Size
		lo := t.Offset / RecordAlign * RecordAlign
		all = append(all, RecordExtent{File: slices.Index(c.files, t.file), Offset: lo, Size: alignUp(t.Offset+t.Size, RecordAlign) - lo})
	}
	slices.SortFunc(all, func(a, b RecordExtent) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Offset, b.Offset))
	})
	merged := all[:1]
	for _, x := range all[1:] {
		last := &merged[len(merged)-1]
		if x.File == last.File && x.Offset-(last.Offset+last.Size) <= min(mergeGap, total/mergeShare) {
			last.Size = max(last.Size, x.Offset+x.Size-last.Offset)
		} else {
			merged = append(merged, x)
		}
	}
	for i := range merged {
		x := &merged[i]
		x.At = at
		at += x.Size
		x.Size = min(x.Size, c.files[x.File].size-x.Offset)
	}
	return slices.Clip(merged)
}

// place returns where a tensor lands in the record's memory.
func (c *Checkpoint) place(extents []RecordExtent, t *Tensor) int64 {
	for _, x := range extents {
		if c.files[x.File] == t.file && x.Offset <= t.Offset && t.Offset+t.Size <= x.Offset+x.Size {
			return x.At + t.Offset - x.Offset
		}
	}
	panic("weights: a tensor outside the extents made for it")
}

func alignUp(n, to int64) int64 { return (n + to - 1) / to * to }

// Records holds the records of all routed experts of a model. It is immutable.
type Records struct {
	files     []string
	layers    map[int][]Record
	slotBytes int64
}

// Records plans the reading of experts 0 to experts-1 of each of the layers.
func (c *Checkpoint) Records(layers []int, experts int) (*Records, error) {
	s := &Records{files: c.Files(), layers: map[int][]Record{}}
	for _, layer := range layers {
		for expert := range experts {
			r, err := c.Record(layer, expert)
			if err != nil {
				return nil, err
			}
			s.layers[layer] = append(s.layers[layer], r)
			s.slotBytes = max(s.slotBytes, r.Bytes)
		}
	}
	return s, nil
}

// SlotBytes is the memory the largest record needs.
func (s *Records) SlotBytes() int64 { return s.slotBytes }

// Files returns the paths that RecordExtent.File indexes.
func (s *Records) Files() []string { return s.files }

// Record returns how an expert is read.
func (s *Records) Record(layer, expert int) (*Record, error) {
	if of := s.layers[layer]; expert >= 0 && expert < len(of) {
		return &of[expert], nil
	}
	return nil, fmt.Errorf("layer %d has no routed expert %d", layer, expert)
}

// expertTensor matches the names that Expert looks up, and their scales.
var expertTensor = regexp.MustCompile(`^(model\.layers\.\d+\.mlp\.experts\.(\d+\.(gate|up|down)_proj\.weight|gate_up_proj|down_proj)(_scale_inv|\.qs)?` +
	`|model\.layers\.\d+\.mlp\.experts\.\d+\.(merged_weight|qs)` +
	`|blk\.\d+\.ffn_(gate|up|down|gate_up)_exps\.weight)$`)

// OfExpert reports whether t is part of a routed expert.
func (t *Tensor) OfExpert() bool {
	whole, _, _ := strings.Cut(t.Name, "[") // containers list parts of stacked tensors
	return expertTensor.MatchString(whole)
}

// ExpertBytes is the size in the files of all routed experts.
func (c *Checkpoint) ExpertBytes() int64 {
	expert, _ := c.byKind()
	return expert
}

// DenseBytes is the size in the files of everything but routed experts.
func (c *Checkpoint) DenseBytes() int64 {
	_, dense := c.byKind()
	return dense
}

func (c *Checkpoint) byKind() (expert, dense int64) {
	for _, t := range c.tensors {
		if t.OfExpert() {
			expert += t.Size
		} else {
			dense += t.Size
		}
	}
	return expert, dense
}
