package shaders

import (
	"github.com/coli-moe/coli/shaders/layout"
	"github.com/coli-moe/coli/weights/format"
)

// GEMMPush is the push-constant block of the gemm kernels: y[r,o] = W[o,:]·x[r,:] + bias[o] for 16 rows or more, of a matrix (dense) or
// of the experts that group_plan.comp assigns rows to (grouped). Any number of rows is right; below 16 the gemv kernels are faster, and
// only they promise that a row's bits do not depend on the others.
//
// A workgroup computes a tile of 64 weight rows × TileRows rows. 64 columns at a time it unpacks the weights once into shared memory, as
// int8 with the scale of each block of 32 (16 columns at a time and float32 in the float form), puts the activations beside them, and
// each thread multiplies 8 weight rows, 4 in low tiles, with 4 rows from there. The sum of a block is exact in int32; sums of blocks
// join in float32 in rising order of blocks.
//
// Gated, a tile has 32 rows of the gate matrix and the same rows of the up matrix, and y = act(gate·x)·(up·x).
//
// Grouped, a row is a pair: pair p is rank p%top_k of row p/top_k. Its input is row p/Divide of x, so that Divide is top_k for gate and
// up and 1 for down, and its output is row p of y. Pairs of an expert whose address is 0 are left alone.
type GEMMPush struct {
	W       uint64 // the matrix in device layout; grouped: uint64 [experts][3], the addresses of gate, up and down
	X       uint64 // float32 [·, Cols]; in the integer form int8 [·, blocks·32]
	XD      uint64 // float32 pairs (d, d·Σq) [·, blocks]; not read in the float form
	Y       uint64 // float32 [Rows, Out]
	Bias    uint64 // float32 [Out], 0 for none; not read if gated
	Tiles   uint64 // GroupPush.Tiles; 0 for a dense product
	Pairs   uint64 // GroupPush.Pairs; not read for a dense product
	SOffset uint64 // layout.Layout's SOffset, QStride and SStride: gate and up must agree in format and shape

	QStride, SStride uint32
	Rows             uint32 // of x and y; grouped: pairs
	Out, Cols        uint32 // a matrix is [Out, Cols]
	Matrix           uint32 // grouped: 0 gate, 1 up, 2 down; not read if gated
	Divide           uint32 // grouped: pairs that share a row of x
	Flags            uint32
}

// SetMatrix sets what the layout of the matrix, or of the experts' matrices, decides.
func (p *GEMMPush) SetMatrix(l layout.Layout) {
	p.SOffset = uint64(l.SOffset)
	p.QStride, p.SStride, p.Out, p.Cols = uint32(l.QStride), uint32(l.SStride), uint32(l.Rows), uint32(l.Cols)
}

// GEMMAdd is a flag of GEMMPush: y += instead of y =.
const GEMMAdd uint32 = 1

// GEMMForm is how a gemm kernel multiplies.
type GEMMForm uint8

// The forms. Formats that multiply the integer form of activations (package kernels' FormQ8) take one of the first three; F32, F16 and
// BF16 take one of the others. Which of them is a matter of speed: their results differ as float32 sums of another order do.
const (
	GEMMBytes GEMMForm = iota // int8 widened to int32: any device
	GEMMDot                   // packed dot products of four int8: a device with integer dot products
	GEMMCoop                  // cooperative matrices, int8 to int32, 16×16×32; the pipeline must have subgroups of 32
	GEMMFloat                 // float32: any device
	GEMMHalf                  // cooperative matrices, float16 to float32, 16×16×16, two float16 a value; subgroups of 32; tiles to 64 rows
)

var gemmKernels = [...]string{
	GEMMBytes: "gemm_bytes", GEMMDot: "gemm_dot", GEMMCoop: "gemm_coop", GEMMFloat: "gemm_float", GEMMHalf: "gemm_half",
}

// GEMMSpec is what a gemm kernel is specialised for.
type GEMMSpec struct {
	Format   format.Format
	Form     GEMMForm
	TileRows int    // 16, 32, 64 or 128, see Tiled
	Act      uint32 // the activation if gated, ActNone if not
	Experts  int    // of the plan; 0 for a dense product
}

// gemmFormats are the values of the constant FORMAT in include/gemm.glsl.
var gemmFormats = map[format.Format]uint32{
	format.F32: 0, format.F16: 1, format.BF16: 2, format.Q5_K: 3, format.Q8_0: 4, format.I8Row: 5, format.Q4_0: 6, format.I4G64: 7,
	format.MXFP4: 8, format.Q4_K: 9, format.Q6_K: 10,
}

// gemmOuts is the number of weight rows of a tile.
const gemmOuts = 64

// Tiled returns the specification with a form and the height of tile that suits so many rows; for experts that is the mean of an expert,
// rows·top_k/experts. Where heights differ by use they were measured on an H200: gated products on matrices gain from reading weights
// less often, others there from more workgroups, and experts lose what their last tiles leave empty.
func (s GEMMSpec) Tiled(form GEMMForm, rows int) GEMMSpec {
	s.Form, s.TileRows = form, 64
	switch {
	case rows <= 16:
		s.TileRows = 16
	case rows <= 32, form == GEMMCoop && (rows < 64 || s.Act == ActNone), form == GEMMDot && rows < 128 && s.Experts > 0:
		s.TileRows = 32
	}
	return s
}

// GEMMLaunch is the dispatch of a gemm kernel: x counts tiles of weight rows, y tiles of rows.
func GEMMLaunch(p GEMMPush, s GEMMSpec) Launch {
	outs, tiles := gemmOuts, groups(int(p.Rows), s.TileRows)
	invocations := max(2*s.TileRows, min(128, 4*s.TileRows))
	if s.Act != ActNone {
		outs /= 2
	}
	if s.Experts > 0 {
		tiles = uint32(GroupTiles(int(p.Rows), s.Experts, s.TileRows))
	}
	return Launch{
		Kernel:    gemmKernels[s.Form],
		Constants: []uint32{uint32(invocations), uint32(s.TileRows), gemmFormats[s.Format], s.Act},
		X:         groups(int(p.Out), outs), Y: tiles, Z: 1,
	}
}
