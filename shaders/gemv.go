package shaders

import (
	"strings"

	"github.com/coli-moe/coli/shaders/layout"
	"github.com/coli-moe/coli/weights/format"
)

// GEMVPush is the push-constant block of gemv.comp: y[r,o] = W[o,:]·x[r,:] + bias[o], added to y with Add, for few rows. A subgroup
// computes GEMVLaunch's number of weight rows, its lanes take turns at pieces of 16 bytes of values, and their sums are added up across
// the subgroup. A row's bits do not depend on the other rows.
//
// Formats that Integer names multiply the integer form of x: the sum of a block of 32 columns, or of half of one, is exact in int32
// and is multiplied by the scales in float32.
type GEMVPush struct {
	W    uint64 // the matrix in device layout
	S    uint64 // its scales
	X    uint64 // float32 [Rows, Cols], or int8 [Rows, 32·blocks]
	XD   uint64 // float32 pairs (d, d·Σq) [Rows, blocks]; not read for float32 x
	Y    uint64 // float32 [Rows, Outs]
	Bias uint64 // float32 [Outs]; 0 for none

	QStride, SStride uint32 // as in layout.Layout
	Rows             uint32 // of x and y
	Outs, Cols       uint32 // the matrix's rows and columns
	Add              uint32 // 1: y += instead of y =

	TailNorm
}

// TailNorm is the norm behind a product, in the same dispatch: the last workgroup that completes a row of y, or in gemv.comp all rows, then
// writes y·rsqrt(mean(y²)+Eps)·NormW, with the bits that rmsnorm.comp gives. Its zero value is none.
type TailNorm struct {
	NormW uint64 // float32 [Outs]; 0: no norm
	NormY uint64 // float32 [Rows, Outs]; 0: not wanted
	NormQ uint64 // int8 [Rows, Outs]; 0: the integer form is not wanted
	Count uint64 // uint32 [Rows]: 0 before and after
	NormD uint32 // bytes from NormQ to the scales: float32 pairs (d, d·Σq) [Rows, Outs/32]
	Eps   float32
}

// TailNormFits says whether rows of so many columns can be normalised behind a product: in whole blocks, which fit into registers.
func TailNormFits(cols int) bool { return cols%32 == 0 && cols <= 8192 }

// constants are the two of include/tail.glsl for rows of cols columns: how many lanes share one in rmsnorm.comp, and vectors of each.
func (t TailNorm) constants(cols uint32, subgroup int) [2]uint32 {
	if t.NormW == 0 {
		return [2]uint32{0, 1}
	}
	lanes := normLanes(int(cols), subgroup)
	return [2]uint32{uint32(lanes), groups(int(cols), 4*lanes)}
}

// SetMatrix sets what the layout of the matrix at base decides.
func (p *GEMVPush) SetMatrix(base uint64, l layout.Layout) {
	p.W, p.S = base, base+uint64(l.SOffset)
	p.QStride, p.SStride, p.Outs, p.Cols = uint32(l.QStride), uint32(l.SStride), uint32(l.Rows), uint32(l.Cols)
}

// ExpertPush is the push-constant block of expert.comp: y[p,:] = W·x[p/Divide,:] for each pair p of a row and an expert, W being the
// gate, up or down matrix of expert IDs[p]. Pairs of experts whose address is 0 are left alone, so that experts in different formats take
// a dispatch for each format. Otherwise as gemv.comp.
type ExpertPush struct {
	Table   uint64 // uint64 [Experts, 3]: addresses of gate, up and down in device layout; 0: not here
	IDs     uint64 // int32 [Pairs]: rank p%top_k of row p/top_k
	X       uint64 // as GEMVPush, [Pairs/Divide rows]
	XD      uint64
	Y       uint64 // float32 [Pairs, Outs]
	SOffset uint64 // as in layout.Layout

	QStride, SStride uint32
	Pairs            uint32
	Outs, Cols       uint32
	Experts          uint32
	Matrix           uint32 // 0 gate, 1 up, 2 down
	Divide           uint32 // pairs that share a row of x: top_k for gate and up, 1 for down
}

// SetMatrix sets what the layout of the experts' matrices decides.
func (p *ExpertPush) SetMatrix(l layout.Layout) {
	p.SOffset = uint64(l.SOffset)
	p.QStride, p.SStride, p.Outs, p.Cols = uint32(l.QStride), uint32(l.SStride), uint32(l.Rows), uint32(l.Cols)
}

// GateUpPush is the push-constant block of gate_up.comp: h[p,:] = act(gate·x)·(up·x) for each pair p of a row and an expert, x being row
// p/TopK, in one pass over both matrices, which have one format. h is written as float32, in the integer form, or both. Pairs of
// experts that are not here are left alone.
type GateUpPush struct {
	Table   uint64 // as ExpertPush
	IDs     uint64 // int32 [Pairs]
	X       uint64 // as GEMVPush
	XD      uint64
	Y       uint64 // float32 [Pairs, Outs]; 0: not wanted
	YQ      uint64 // int8 [Pairs, 32·ceil(Outs/32)]; 0: not wanted
	YD      uint64 // float32 pairs (d, d·Σq) [Pairs, ceil(Outs/32)]
	SOffset uint64

	QStride, SStride uint32
	Pairs            uint32
	Outs, Cols       uint32
	Experts          uint32
	TopK             uint32
	Act              uint32 // ActSiLU
}

// SetMatrix sets what the layout of the gate matrices, which is that of the up matrices, decides.
func (p *GateUpPush) SetMatrix(l layout.Layout) {
	p.SOffset = uint64(l.SOffset)
	p.QStride, p.SStride, p.Outs, p.Cols = uint32(l.QStride), uint32(l.SStride), uint32(l.Rows), uint32(l.Cols)
}

// DownPush is the push-constant block of down.comp: y[r,:] = Σ_rank weight·down·h[p,:], p = r·TopK+rank, summed in order of rank, added to
// y with Add. Pairs of experts that are not here count for nothing.
type DownPush struct {
	Table   uint64 // as ExpertPush
	IDs     uint64 // int32 [Rows, TopK]
	Weights uint64 // float32 [Rows, TopK]
	X       uint64 // h: float32 [Rows·TopK, Cols], or int8 [Rows·TopK, 32·blocks]
	XD      uint64 // as GEMVPush
	Y       uint64 // float32 [Rows, Outs]
	SOffset uint64

	QStride, SStride uint32
	Rows             uint32
	Outs, Cols       uint32
	Experts          uint32
	TopK             uint32
	Add              uint32 // 1: y += instead of y =

	TailNorm
}

// SetMatrix sets what the layout of the down matrices decides.
func (p *DownPush) SetMatrix(l layout.Layout) {
	p.SOffset = uint64(l.SOffset)
	p.QStride, p.SStride, p.Outs, p.Cols = uint32(l.QStride), uint32(l.SStride), uint32(l.Rows), uint32(l.Cols)
}

// Integer tells whether weights in format f multiply the integer form of activations on the device.
func Integer(f format.Format) bool {
	switch f {
	case format.Q8_0, format.I8Row, format.Q4_0, format.I4G64, format.MXFP4, format.Q4_K, format.Q5_K, format.Q6_K:
		return true
	}
	return false
}

// perFormat is the name of a kernel's module for weights in format f, with packed dot products if dot.
func perFormat(kernel string, f format.Format, dot bool) string {
	name := kernel + "_" + strings.ToLower(f.String())
	if dot && Integer(f) {
		name += "_dot"
	}
	return name
}

// tile says how the work of the kernels in this file is cut; all of it are specialisation constants.
type tile struct {
	threads int       // of a workgroup: constant 0
	outs    int       // weight rows a subgroup computes: constant 1
	unroll  int       // pieces of a weight row a lane loads at once: constant 2
	rows    int       // rows of x multiplied while a piece is at hand: constant 3, only gemv.comp
	join    int       // 1: a workgroup's subgroups share its rows: constant 4, only gemv.comp
	ranks   int       // experts multiplied at once: constant 3, only down.comp
	norm    [2]uint32 // TailNorm's, the next two of these
}

// launch is the dispatch for so many weight rows of cols columns. The last constant says whether columns are whole vectors of float32.
func (t tile) launch(kernel string, outs int, cols uint32, subgroup, y int) Launch {
	constants := []uint32{uint32(t.threads), uint32(t.outs), uint32(t.unroll)}
	perGroup := t.threads / subgroup * t.outs
	switch {
	case t.rows > 0:
		constants = append(constants, uint32(t.rows), uint32(t.join), t.norm[0], t.norm[1])
	case t.ranks > 0:
		constants = append(constants, uint32(t.ranks), t.norm[0], t.norm[1])
	}
	if t.join != 0 || t.ranks > 0 {
		perGroup = t.outs
	}
	constants = append(constants, flag(cols%4 == 0, 1))
	return Launch{Kernel: kernel, Constants: constants, X: groups(outs, perGroup), Y: uint32(y), Z: 1}
}

// columns is how many a piece has: COLS in include/weights.glsl.
func columns(f format.Format) int {
	switch f {
	case format.F32:
		return 4
	case format.F16, format.BF16:
		return 8
	case format.Q8_0, format.I8Row:
		return 16
	}
	return 32
}

// unroll is how many of the pieces that a lane has of a row it loads at once, at most most: what a lane waits for at a time decides how
// fast memory is read.
func unroll(f format.Format, cols uint32, lanes, most int) int {
	n := 1
	for n < most && n*columns(f)*lanes < int(cols) {
		n *= 2
	}
	return n
}

// atOnce limits how many times the unpacking of a piece is repeated in a shader: a device with narrow subgroups is a CPU, which gains
// nothing by it and takes seconds to compile it.
func atOnce(subgroup, most int) int {
	if subgroup < 16 {
		return min(most, 2)
	}
	return most
}

// maxGroups is how many workgroups of a dimension every device takes.
const maxGroups = 65535

// GEMVLaunch is the dispatch of gemv.comp for weights in format f; dot uses packed dot products (device.Features.IntegerDot).
func GEMVLaunch(p GEMVPush, f format.Format, dot bool, subgroup int) Launch {
	t := tile{threads: 128, outs: 1, unroll: unroll(f, p.Cols, subgroup, atOnce(subgroup, 4)), rows: 1, norm: p.constants(p.Outs, subgroup)}
	if p.NormW != 0 { // fewer workgroups arrive, and the last one normalises with more lanes
		t.threads = 256
	}
	if !Integer(f) && p.Outs <= 256 { // a router's rows, too few for a subgroup each to keep a large device busy
		t.threads, t.join, t.unroll = threads, 1, unroll(f, p.Cols, threads, atOnce(subgroup, 2))
	}
	for t.rows < min(int(p.Rows), atOnce(subgroup, 4)) {
		t.rows *= 2
	}
	l := t.launch(perFormat("gemv", f, dot), int(p.Outs), p.Cols, subgroup, 1)
	l.X, l.Y = min(l.X, maxGroups), groups(int(l.X), maxGroups)
	return l
}

// ExpertLaunch is the dispatch of expert.comp.
func ExpertLaunch(p ExpertPush, f format.Format, dot bool, subgroup int) Launch {
	t := tile{threads: 128, outs: 1, unroll: unroll(f, p.Cols, subgroup, atOnce(subgroup, 4))}
	return t.launch(perFormat("expert", f, dot), int(p.Outs), p.Cols, subgroup, int(p.Pairs))
}

// GateUpLaunch is the dispatch of gate_up.comp. A workgroup computes 32 neighbouring outputs, a block of the integer form.
func GateUpLaunch(p GateUpPush, f format.Format, dot bool, subgroup int) Launch {
	t := tile{threads: min(512, 32*subgroup), unroll: unroll(f, p.Cols, subgroup, atOnce(subgroup, 2))}
	t.outs = 32 * subgroup / t.threads
	return t.launch(perFormat("gate_up", f, dot), int(p.Outs), p.Cols, subgroup, int(p.Pairs))
}

// DownLaunch is the dispatch of down.comp: a subgroup multiplies with an expert's rows and the workgroup sums the experts.
func DownLaunch(p DownPush, f format.Format, dot bool, subgroup int) Launch {
	t := tile{outs: 1, unroll: unroll(f, p.Cols, subgroup, atOnce(subgroup, 2)), ranks: min(int(p.TopK), 8), norm: p.constants(p.Outs, subgroup)}
	switch {
	case p.NormW != 0: // fewer workgroups arrive
		t.outs = atOnce(subgroup, 4)
	case columns(f) < 32: // more loads than the pieces of a row, which hold less
		t.outs = atOnce(subgroup, 2)
	}
	t.threads = t.ranks * subgroup
	return t.launch(perFormat("down", f, dot), int(p.Outs), p.Cols, subgroup, int(p.Rows))
}
