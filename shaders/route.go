package shaders

import (
	"slices"

	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/shaders/layout"
	"github.com/coli-moe/coli/weights/format"
)

// RoutePush is the push-constant block of route.comp: the experts of each row from its router's logits, as package router chooses them.
type RoutePush struct {
	Logits  uint64 // float32 [Rows, Experts]
	Bias    uint64 // float32 [Experts]; not read without RouteBias
	IDs     uint64 // int32 [Rows, TopK] in order of rank
	Weights uint64 // float32 [Rows, TopK]
	Host    uint64 // int32 [Rows, TopK], the ids once more for the host, with RouteHost

	Rows, Experts, TopK uint32
	Groups, TopKGroups  uint32 // 0 or 1 group is no limit
	Scale               float32
	Flags               uint32
}

// The flags of RoutePush. The gating function is a specialisation constant.
const (
	RouteNormalize uint32 = 1 << iota
	RouteBias
	RouteHost
)

// MaxExperts is the most experts of a layer that route.comp takes.
const MaxExperts = 1024

// RouteLaunch is the dispatch of route.comp: a workgroup a row, whose threads each count how many experts rank before theirs.
func RouteLaunch(p RoutePush, g router.Gating) Launch {
	size := 64
	for size < min(int(p.Experts), threads) {
		size *= 2
	}
	return Launch{
		Kernel: "route", Constants: []uint32{uint32(size), groups(int(p.Experts), size), uint32(g)},
		X: p.Rows, Y: 1, Z: 1,
	}
}

// RouterPush is the push-constant block of router.comp, a router's product and the choice behind it in one stage, for few rows: logits =
// W·x + WBias as gemv.comp computes them, then as RoutePush. The other rows do not change a row's bits.
type RouterPush struct {
	W       uint64 // the matrix [Experts, Cols] in device layout, in a format that RouterFits
	X       uint64 // float32 [Rows, Cols]
	WBias   uint64 // float32 [Experts]; 0 for none
	Logits  uint64 // float32 [Rows, Experts], written
	Count   uint64 // uint32 [Rows], zero before the first dispatch; zero again after each
	Bias    uint64 // the rest as in RoutePush
	IDs     uint64
	Weights uint64
	Host    uint64

	QStride, Cols       uint32 // as in layout.Layout
	Rows, Experts, TopK uint32
	Groups, TopKGroups  uint32
	Scale               float32
	Flags               uint32
}

// SetMatrix sets what the layout of the matrix at base decides.
func (p *RouterPush) SetMatrix(base uint64, l layout.Layout) {
	p.W, p.QStride, p.Experts, p.Cols = base, uint32(l.QStride), uint32(l.Rows), uint32(l.Cols)
}

// routerFormats are the formats of router.comp by its numbers.
var routerFormats = []format.Format{format.F32, format.F16, format.BF16}

// RouterFits says whether router.comp takes a router's matrix in format f of so many experts.
func RouterFits(f format.Format, experts int) bool {
	return slices.Contains(routerFormats, f) && experts <= MaxExperts
}

// RouterLaunch is the dispatch of router.comp: a workgroup a row and expert, the last of a row chooses.
func RouterLaunch(p RouterPush, f format.Format, g router.Gating) Launch {
	const size = 128
	pieces := 4
	if f != format.F32 {
		pieces = 8
	}
	return Launch{
		Kernel: "router",
		Constants: []uint32{
			size, groups(int(p.Experts), size), uint32(g), uint32(slices.Index(routerFormats, f)),
			min(8, groups(int(p.Cols), pieces*size)), flag(p.Cols%4 == 0, 1),
		},
		X: p.Experts, Y: p.Rows, Z: 1,
	}
}

// ArgMaxPush is the push-constant block of argmax.comp: the column of each row's highest value, the lowest of several, -1 where any value
// of the row is not finite.
type ArgMaxPush struct {
	X       uint64 // float32 [Rows, Cols]
	Out     uint64 // int32 [Rows]
	Partial uint64 // scratch of ArgMaxScratch bytes
	Count   uint64 // uint32 [Rows], zero before the first dispatch; zero again after each

	Rows, Cols uint32
}

// argMaxParts is how many workgroups a row is cut into.
func argMaxParts(cols int) uint32 { return max(1, min(128, groups(cols, 4*threads))) }

// ArgMaxScratch is the size in bytes of ArgMaxPush.Partial.
func ArgMaxScratch(rows, cols int) int64 { return 8 * int64(rows) * int64(argMaxParts(cols)) }

// ArgMaxLaunch is the dispatch of argmax.comp: workgroups take parts of a row, the one that ends last joins them.
func ArgMaxLaunch(p ArgMaxPush) Launch {
	return Launch{
		Kernel: "argmax", Constants: []uint32{threads, flag(p.Cols%4 == 0, 1)},
		X: argMaxParts(int(p.Cols)), Y: p.Rows, Z: 1,
	}
}
