package weights

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/coli-moe/coli/weights/format"
	"github.com/coli-moe/coli/weights/internal/badfile"
	"github.com/coli-moe/coli/weights/internal/jsonscan"
)

// This file reads the containers of the C engine "colibri": safetensors where a quantised tensor X is raw bytes (U8 or I8) beside a
// tensor X.qs of float32 scales, or where a routed expert's three matrices and their scales are one tensor each (merged_weight, qs).
// Neither shape nor format is in the file but for an optional declaration in its metadata. coli takes the shape from what the
// architecture needs, and accepts the one format whose bytes and scales fit it and the declaration.

const (
	qsSuffix     = ".qs"
	mergedSuffix = ".merged_weight"
	// declarationKey is the metadata entry with a JSON object from tensor to format number.
	declarationKey = "colibri.fmt"
)

// packing says how the rows of such a tensor are stored.
type packing uint8

const (
	packedNot    packing = iota
	packedInt8           // int8
	packedOffset         // two int4 a byte, the even column in the low nibble, each with 8 added
	packedSigned         // likewise, in two's complement
)

// layout is one way a matrix may be stored: a packing and the columns that share a scale, 0 for a whole row.
type layout struct {
	packing packing
	group   int
	number  int // colibri's format number
	name    string
}

var (
	int8Rows    = layout{packedInt8, 0, 1, "int8 per row"}
	offsetRows  = layout{packedOffset, 0, 2, "int4 per row"}
	offsetG64   = layout{packedOffset, 64, 4, "int4 per 64 columns"}
	signedRows  = layout{packedSigned, 0, 2, "int4 per row"}
	signedG64   = layout{packedSigned, 64, 4, "int4 per 64 columns"}
	singleForms = []layout{int8Rows, offsetRows, offsetG64}
)

// mergedForms are the layouts of gate and up, and of down, that occur in one merged tensor.
var mergedForms = [][2]layout{
	{int8Rows, int8Rows}, {signedRows, signedRows}, {signedG64, signedG64}, {signedRows, int8Rows}, {signedG64, int8Rows},
}

// bytes returns the size of a matrix, scales the number of its scales.
func (l layout) bytes(rows, cols int) int64 {
	if l.packing == packedInt8 {
		return int64(rows) * int64(cols)
	}
	return int64(rows) * int64((cols+1)/2)
}

func (l layout) scales(rows, cols int) int64 {
	if l.group == 0 {
		return int64(rows)
	}
	return int64(rows) * int64((cols+l.group-1)/l.group)
}

// format is what rows become in memory; both hold the stored values exactly.
func (l layout) format(cols int) format.Format {
	if l.packing != packedInt8 && cols%64 == 0 {
		return format.I4G64
	}
	return format.I8Row
}

// fits reports whether a matrix of size bytes with scaleSize bytes of scales is of this layout. Groups that the columns do not fill
// have no counterpart in coli's formats.
func (l layout) fits(rows, cols int, size, scaleSize int64) bool {
	return l.bytes(rows, cols) == size && 4*l.scales(rows, cols) == scaleSize && l.suits(cols)
}

func (l layout) suits(cols int) bool { return l.group == 0 || cols%l.group == 0 || cols < l.group }

// declare reads the declaration in a file's metadata.
func (c *Checkpoint) declare(fl *file, metadata map[string]string) error {
	text, ok := metadata[declarationKey]
	if !ok {
		return nil
	}
	dec, err := jsonscan.New([]byte(text))
	if err == nil {
		err = jsonscan.Object(dec, func(name string) error {
			v, err := jsonscan.Any(dec)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(fmt.Sprint(v))
			if err != nil {
				return fmt.Errorf("tensor %q has the format %v, which is no number", name, v)
			}
			c.declared[name] = n
			return nil
		})
	}
	if err != nil {
		return badfile.In(fl.path, ErrHeader, "%v", err).ForKey(declarationKey).Advise(badfile.TryConvert)
	}
	return nil
}

// pairQuantised joins packed tensors with their scales. What they hold is decided by resolve, when a shape is asked for.
func (c *Checkpoint) pairQuantised() {
	for _, t := range c.tensors {
		if t.Type != "U8" && t.Type != "I8" {
			continue
		}
		name := t.Name + qsSuffix
		if whole, ok := strings.CutSuffix(t.Name, mergedSuffix); ok {
			name = whole + qsSuffix
		}
		if scale, ok := c.byName[name]; ok && scale.Format == format.F32 {
			t.qs, scale.companion = scale, true
		}
	}
}

// Packed returns the scales of a packed tensor, of which neither shape nor format is known before an architecture asks for it; nil for
// all others.
func (t *Tensor) Packed() *Tensor { return t.qs }

// resolve returns the packed matrix t as [rows, cols], or the mistake in it.
func (c *Checkpoint) resolve(t *Tensor, shape []int) (*Tensor, error) {
	if len(shape) != 2 || len(t.Shape) == 2 && t.Shape[0] != shape[0] {
		return nil, badfile.At(t.File, t.Offset, ErrShape, "it is %v, config and architecture need %v", t.Shape, shape).Of(t.Name).
			Advise("check that config and weights belong to the same model")
	}
	rows, cols := shape[0], shape[1]
	for _, l := range singleForms {
		if l.fits(rows, cols, t.Size, t.qs.Size) {
			if err := c.checkDeclared(t, l); err != nil {
				return nil, err
			}
			return t.unpacked(t.Name, l, rows, cols, 0, 0), nil
		}
	}
	return nil, c.noLayout(t, fmt.Sprintf("%v", shape))
}

// checkDeclared compares the layout found with the one declared.
func (c *Checkpoint) checkDeclared(t *Tensor, l layout) error {
	n, ok := c.declared[t.Name]
	if !ok || n == l.number {
		return nil
	}
	return badfile.At(t.File, t.Offset, ErrLayout, "bytes and scales are those of %s (format %d), %s declares format %d", l.name, l.number,
		declarationKey, n).Of(t.Name).Advise(badfile.TryConvert)
}

func (c *Checkpoint) noLayout(t *Tensor, shape string) error {
	said := ""
	if n, ok := c.declared[t.Name]; ok {
		said = fmt.Sprintf(", declared as format %d", n)
	}
	return badfile.At(t.File, t.Offset, ErrUnknownType, "%d bytes with %d scales%s are none of int8 per row, int4 per row and int4 per 64 columns for %s",
		t.Size, t.qs.Size/4, said, shape).Of(t.Name).Advise("coli convert the original checkpoint instead")
}

// unpacked returns a matrix that begins at byte at of t, its scales at byte scaleAt of theirs.
func (t *Tensor) unpacked(name string, l layout, rows, cols int, at, scaleAt int64) *Tensor {
	scales := l.scales(rows, cols)
	scale := *t.qs
	scale.Shape, scale.Offset, scale.Size = []int{rows, int(scales) / rows}, t.qs.Offset+scaleAt, 4*scales
	out := *t
	out.Name, out.Shape, out.Format = name, []int{rows, cols}, l.format(cols)
	out.Offset, out.Size = t.Offset+at, l.bytes(rows, cols)
	out.Scale, out.qs, out.packing = &scale, nil, l.packing
	return &out
}

// quantisedExpert is Expert for packed tensors; ok is false where the expert is none.
func (c *Checkpoint) quantisedExpert(prefix string) (gate, up, down *Tensor, ok bool, err error) {
	merged, isMerged := c.Lookup(prefix + mergedSuffix[1:])
	first := merged
	if !isMerged {
		first, _ = c.Lookup(prefix + "gate_proj.weight")
	}
	if first == nil || first.qs == nil {
		return nil, nil, nil, false, nil
	}
	cfg, err := c.Config()
	if err == nil {
		err = cfg.Check("hidden_size", "moe_intermediate_size")
	}
	if err != nil {
		return nil, nil, nil, true, err
	}
	inter, hidden := cfg.MoEIntermediateSize, cfg.HiddenSize
	if !isMerged {
		found, err := c.Require(Need{[]string{first.Name}, []int{inter, hidden}}, Need{[]string{prefix + "up_proj.weight"}, []int{inter, hidden}},
			Need{[]string{prefix + "down_proj.weight"}, []int{hidden, inter}})
		if err != nil {
			return nil, nil, nil, true, err
		}
		return found[0], found[1], found[2], true, nil
	}
	for _, form := range mergedForms {
		gu, d := form[0], form[1]
		n, s := gu.bytes(inter, hidden), 4*gu.scales(inter, hidden)
		if !gu.suits(hidden) || !d.fits(hidden, inter, merged.Size-2*n, merged.qs.Size-2*s) {
			continue
		}
		if gu.packing == d.packing { // a mixed tensor has no number of its own
			if err := c.checkDeclared(merged, gu); err != nil {
				return nil, nil, nil, true, err
			}
		}
		return merged.unpacked(merged.Name+"[gate]", gu, inter, hidden, 0, 0), merged.unpacked(merged.Name+"[up]", gu, inter, hidden, n, s),
			merged.unpacked(merged.Name+"[down]", d, hidden, inter, 2*n, 2*s), true, nil
	}
	return nil, nil, nil, true, c.noLayout(merged, fmt.Sprintf("gate and up [%d %d] and down [%d %d]", inter, hidden, hidden, inter))
}

// unpack turns a row as the file has it, and its scales, into a row of format I4G64 or I8Row. The new row may begin in memory where the
// old one does or before, if the old one is at least as far behind as the new one is longer.
func (p packing) unpack(to format.Format, dst, raw, scales []byte) {
	flip := byte(0) // makes a nibble's value value+8
	if p == packedSigned {
		flip = 0x88
	}
	switch {
	case p == packedInt8:
		copy(dst[4:], raw)
		copy(dst, scales[:4])
	case to == format.I8Row:
		cols := len(dst) - 4
		for j, b := range raw {
			b ^= flip
			dst[4+2*j] = b&15 - 8
			if 2*j+1 < cols {
				dst[4+2*j+1] = b>>4 - 8
			}
		}
		copy(dst, scales[:4])
	default: // one scale for the row or one for each block
		var pairs [32]byte
		for ; len(raw) > 0; raw, dst = raw[32:], dst[36:] {
			copy(pairs[:], raw)
			copy(dst, scales[:4])
			if len(scales) > 4 {
				scales = scales[4:]
			}
			// Columns 2j and 2j+1 move to where j and j+32 share a byte.
			for j := range 16 {
				a, b := pairs[j]^flip, pairs[j+16]^flip
				dst[4+2*j] = a&15 | b<<4
				dst[4+2*j+1] = a>>4 | b&0xf0
			}
		}
	}
}

// loadPacked assembles the rows of a packed matrix.
func (t *Tensor) loadPacked(data, scales []byte) []byte {
	rows := t.Rows()
	row, err := t.Format.RowBytes(t.Cols())
	if err != nil {
		panic(err) // the layout chose a format that takes these columns
	}
	raw, each := len(data)/rows, len(scales)/rows
	out := make([]byte, rows*row)
	for r := range rows {
		t.packing.unpack(t.Format, out[r*row:][:row], data[r*raw:][:raw], scales[r*each:][:each])
	}
	return out
}
