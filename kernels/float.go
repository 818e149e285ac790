package kernels

import (
	"unsafe"

	"github.com/coli-moe/coli/weights/format"
)

// floatKernel is one instruction set's product of a float format with float32 activations.
//
// The order of its sums: with AVX-512, column c goes to lane c%16 of vector c/16%2, in rising order, then v0+v1; with AVX2, to lane c%8
// of vector c/8%4, then (v0+v1)+(v2+v3); and over the lanes as panel.go has it. Absent columns count as zeros. With F8E4M3, column c goes to
// lane c%16 or c%8; each lane sums the columns that share a scale, in rising order, and then acc = fma(sum, scale, acc).
//
// One activation row takes a kernel that goes through the weights row by row (row). For several there are tiles, which multiply groups of
// weight rows with a few activation rows at a time, in blocks of columns between which the vectors of sums lie in memory. Both have the order
// above.
type floatKernel struct {
	// row sets dst[i] for n weight rows, stride bytes apart, and one activation row of cols values.
	row func(dst *float32, w *byte, stride, n int, x *float32, cols int)
	// large and small are the tiles of the two sizes there are, which read rows as they are: 128 columns have block bytes. Those of the formats
	// of 16 bits can leave a panel of decoded rows behind, which those of packed take.
	large, small floatTile
	block        int
	packed       *floatKernel
	// pack, unless nil, decodes columns from..from+cols-1 of a group, of rows of total columns, into a panel that large and small take.
	pack func(t *float32, w *byte, stride, from, cols, total int)
	// lanes is how many columns of a row are beside each other in a panel, head how many values precede each 128 columns of a group.
	lanes, head int
}

// floatTile multiplies with rows activation rows; args points to a floatArgs.
type floatTile struct {
	rows int
	f    func(args *byte)
}

const (
	floatGroup = 4         // weight rows of a group
	floatStep  = 32        // columns of a step
	floatBlock = 1024      // columns of a block at most: those of a tile's activation rows stay in the L1 cache
	floatRows  = 96        // activation rows that pass some weights before the next ones do: they stay in the L2 cache, as
	floatBytes = 256 << 10 // so many bytes of decoded weights do
	floatSums  = floatGroup * 6 * floatStep
)

// From how many activation rows on tiles pay, those of formats that are decoded first, and a panel of what tiles of 16 bits decode. Measured on
// Emerald Rapids; the bits are the same on both sides.
const (
	leastTiled  = 2
	leastPacked = 3
	leastLeft   = 16
)

// floatArgs is read by the assembly, which knows its layout (gen/floattile.go).
type floatArgs struct {
	dst, x    [6]*float32
	w         *byte // the first group
	stride    int   // bytes of a weight row
	panel     *float32
	panelStep int // bytes of a group's step in the panel, 0 to leave none
	acc       *float32
	accStride int // bytes of a group's sums
	cols      int
	groups    int
	first     int // 1: the first block of columns, there are no sums yet
	last      int // 1: the last one, the results are stored
	row, pass int // the assembly's
}

// floatKernels has what assembly there is. The rest goes through format.Decode.
var floatKernels = map[format.Format]*[numISAs]*floatKernel{}

// registerFloat is for the init functions of the formats' files.
func registerFloat(f format.Format, i isa, k *floatKernel) {
	if floatKernels[f] == nil {
		floatKernels[f] = new([numISAs]*floatKernel)
	}
	floatKernels[f][i] = k
}

// floatMatMul returns the product of f for the highest instruction set not above limit, and whether it reads the weights as they are.
func floatMatMul(f format.Format, limit isa) (used isa, direct bool, m matmulFunc) {
	if impls := floatKernels[f]; impls != nil {
		if i, k := best(*impls, limit); k != nil {
			return i, true, k.matmul
		}
	}
	return generic, f == format.F32, decoded(f)
}

// decoded returns the product in Go, which decodes each weight row once.
func decoded(f format.Format) matmulFunc {
	return func(dst []float32, ldd int, w []byte, stride, n int, x *Input, rows []int32) {
		p := panels.Get().(*panel)
		defer panels.Put(p)
		p.a = grow(p.a, x.Cols)
		for i := range n {
			if err := format.Decode(f, p.a, w[i*stride:][:stride]); err != nil {
				panic("kernels: " + err.Error()) // the sizes are MatMul's own
			}
			for j, r := range rows {
				dst[j*ldd+i] = dotGeneric(p.a, x.F32[int(r)*x.Cols:][:x.Cols])
			}
		}
	}
}

// weightBlock is about how many bytes of weights all activation rows pass before the next ones: they stay in the L2 cache.
const weightBlock = 512 << 10

func (k *floatKernel) matmul(dst []float32, ldd int, w []byte, stride, n int, x *Input, rows []int32) {
	tiled, step := 0, max(1, weightBlock/stride)
	if len(rows) >= leastTiled && k.pack == nil || len(rows) >= leastPacked {
		tiled = n / floatGroup * floatGroup
	}
	for i := tiled; i < n; i += step {
		for j, r := range rows {
			k.row(&dst[j*ldd+i], &w[i*stride], stride, min(step, n-i), &x.F32[int(r)*x.Cols], x.Cols)
		}
	}
	if tiled == 0 {
		return
	}
	p := panels.Get().(*panel)
	defer panels.Put(p)
	parts := (len(rows) + floatRows - 1) / floatRows
	share := roundUp((len(rows)+parts-1)/parts, k.large.rows)
	for len(rows) > 0 {
		now := min(len(rows), share)
		k.tiles(p, dst, ldd, w, stride, tiled, x, rows[:now])
		rows, dst = rows[now:], dst[min(len(dst), now*ldd):]
	}
	p.floats = floatArgs{} // the pool shall not keep the caller's memory alive
}

// tiles multiplies n weight rows, whole groups, with about floatRows activation rows at most.
func (k *floatKernel) tiles(p *panel, dst []float32, ldd int, w []byte, stride, n int, x *Input, rows []int32) {
	blocks := (x.Cols + floatBlock - 1) / floatBlock
	blockCols := roundUp((x.Cols+blocks-1)/blocks, 128)
	step := min(n, max(1, floatBytes/(4*x.Cols)/floatGroup)*floatGroup)
	if k.pack != nil && len(rows) <= k.large.rows { // the panel is used once, from the L1 cache
		step = floatGroup
	}
	leave := k.packed != nil && len(rows) >= leastLeft
	size := floatGroup * k.lanes // of the panel; tiles that leave none write one step's vectors again and again
	if leave || k.pack != nil {
		size = step / floatGroup * k.panelSize(x.Cols)
	}
	p.a = grow(p.a, size+step/floatGroup*floatSums)
	a := &p.floats
	a.stride, a.panelStep, a.acc, a.accStride = stride, 0, &p.a[size], 4*floatSums
	if blocks == 1 { // sums are kept between the passes over a group alone
		a.accStride = 0
	}
	if leave {
		a.panelStep = 4 * floatGroup * k.lanes
	}
	for i := 0; i < n; i += step {
		groups := min(step, n-i) / floatGroup
		for j := 0; j < len(rows); {
			tile := k.tile(len(rows) - j)
			if leave && j > 0 {
				tile = k.packed.tile(len(rows) - j)
			}
			for at, c := 0, 0; c < x.Cols; c += blockCols {
				cols := min(blockCols, x.Cols-c)
				t := p.a[at:]
				if leave || k.pack != nil {
					at += groups * k.panelSize(cols)
				}
				for g := 0; g < groups && k.pack != nil && j == 0; g++ {
					k.pack(&t[g*k.panelSize(cols)], &w[(i+g*floatGroup)*stride], stride, c, cols, x.Cols)
				}
				for g := range tile.rows {
					r := min(j+g, len(rows)-1) // the last row fills the tile up: its results are written again
					a.dst[g], a.x[g] = &dst[r*ldd+i], &x.F32[int(rows[r])*x.Cols+c]
				}
				a.w, a.panel, a.cols, a.groups, a.row = &w[i*stride+c/128*k.block], &t[0], cols, groups, 0
				a.first, a.last = flag(c == 0), flag(c+cols == x.Cols)
				tile.f((*byte)(unsafe.Pointer(a)))
			}
			j += tile.rows
		}
	}
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// panelSize returns how many values cols columns of a group have in a panel.
func (k *floatKernel) panelSize(cols int) int {
	return floatGroup*roundUp(cols, floatStep) + (cols+127)/128*k.head
}

// tile returns which tile to use next if left activation rows are left.
func (k *floatKernel) tile(left int) floatTile {
	if left <= k.small.rows || left > k.large.rows && left <= 2*k.small.rows {
		return k.small
	}
	return k.large
}
