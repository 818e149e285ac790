package kernels

import (
	"sync"

	"github.com/coli-moe/coli/weights/format"
)

// The integer form of a matrix product.
//
// A weight row of one of these formats is, per block of 32 columns, int8 codes q with one scale (scaled), a scale and a minimum
// (withMin: w = a·q - m), a scale for each half of 16 columns (halves), or a scale and a minimum for each half (halvesWithMin). The dot
// product of a block's codes with the activations' q is an exact integer I, so the only roundings, and the only order that matters,
// are those of the float32 sum over the blocks.
// For the assembly that order is: 16 lanes (AVX2: 8), lane l sums the blocks b ≡ l modulo the lanes, in rising order:
//
//	scaled:  acc = fma(float32(I), a·d, acc)
//	withMin: acc = fma(float32(I), a·d, acc); acc = fma(-m, d·float32(S), acc)
//	halves:  acc = fma(float32(I0), a0·d, acc); acc = fma(float32(I1), a1·d, acc)
//	halvesWithMin: as halves, then acc = fma(-m0, d·float32(S0), acc); acc = fma(-m1, d·float32(S1), acc)
//
// with d and S of the activations, and in the end, over lanes e: s = (e0+e2)+(e1+e3) within each four, then (s0+s1)+(s2+s3).
// A single activation row takes a kernel that reads the weights where they lie (row); several take one that reads packed rows (tile).
// Both have that order, and absent blocks count as zeros (d = S = 0).
//
// A tile is 16 blocks, transposed: vector j (64 bytes) has in its 32-bit lane l the codes 4j..4j+3 of block l, so that eight
// multiply-adds give the sixteen I without a horizontal sum. Input.tiles and packed weight rows consist of tiles. Packed codes may have
// a bias, u = q + bias, which VPDPBUSD and VPMADDUBSW need as their first factor is unsigned; it is undone by bias·S. Those of formats with minima have none.

// kind says which scales a block has.
type kind uint8

const (
	scaled kind = iota
	withMin
	halves
	halvesWithMin
)

// planes returns how many scales and minima a block has.
func (k kind) planes() int { return [...]int{scaled: 1, withMin: 2, halves: 2, halvesWithMin: 4}[k] }

// parts returns how many parts with a scale each a block has.
func (k kind) parts() int { return [...]int{scaled: 1, withMin: 1, halves: 2, halvesWithMin: 2}[k] }

// scheme is a format's integer form.
type scheme struct {
	kind kind
	// unpack expands a row: len(c.q) codes, a scale per 16 columns in c.a and, if the kind has minima, as many of them in c.m.
	unpack func(c *codes, row []byte)
}

// codes is one weight row unpacked: value i is a[i/16]·q[i] - m[i/16].
type codes struct {
	q    []int8
	a, m []float32
}

func (c *codes) reset(cols int) {
	n := roundUp(cols, block)
	c.q, c.a, c.m = grow(c.q, n), grow(c.a, n/16), grow(c.m, n/16)
	clear(c.q[cols:])
	c.q = c.q[:cols]
}

// tileIndex returns where column i of a row lies in its tiles.
func tileIndex(i int) int {
	b, c := i/block%tileLanes, i%block
	return i/tileCols*tileCols + c/4*64 + b*4 + c%4
}

// integerKernel is one instruction set's part of a format's integer form.
type integerKernel struct {
	row  rowFunc
	pack packFunc
	tile tileFunc
	bias int // of packed codes, a power of two; 0 if they have none
	// prepare, unless nil, goes before any use: it makes what the functions look up.
	prepare func()
}

// rowFunc sets dst[i] for n weight rows, stride bytes apart, and one activation row. q, d, s and half point to that row in the
// fields of Input; blocks is the number of blocks, whatever the padding.
type rowFunc func(dst *float32, w *byte, stride, n int, q *int8, d *float32, s, half *int32, blocks int)

// packFunc packs whole tiles of n weight rows, stride bytes apart. Row i goes to t + i·tstride·512 and its scales and minima to
// a + i·tstride·16·planes (counted in elements): for each tile 16 scales, with halves those of the first and then those of the second
// halves, and behind them the minima in the same order.
type packFunc func(t *uint8, a *float32, tstride int, w *byte, stride, n, tiles int)

// tileFunc multiplies n packed weight rows, an even number, with four activation rows. args points to a tileArgs.
type tileFunc func(args *byte)

// tileArgs is read by the assembly, which knows its layout (gen/tile.go); avo can give it no type of this package.
type tileArgs struct {
	dst   [4]*float32 // results of each activation row
	x     [4]*int8    // its tiles
	d     [4]*float32
	sums  [4]*int32 // what tileSums makes
	w     *uint8    // packed rows, tiles·512 bytes each
	a     *float32
	n     int
	tiles int
	// halves is how many there are of half tiles, which AVX2 takes.
	halves int
}

// sumsFunc makes what the tiles take in place of the sums of an activation row, once for all weights: for each tile, and each half if the kind has
// such scales, -bias·S of the 16 blocks, with shift the binary logarithm of the bias, or d·S as float32 if the kind has minima.
type sumsFunc func(t, s, half *int32, d *float32, shift, tiles int)

// tileSums has them by instruction set and kind.
var tileSums [numISAs][halvesWithMin + 1]sumsFunc

// tileHalves has, by instruction set and kind, what multiplies fours of packed weight rows whose last tile is at most half full. swapHalves prepares
// their codes, and their scales: of each pair of rows of so many bytes it exchanges the upper half of each vector of the first with the lower half
// of that of the second.
var (
	tileHalves [numISAs][halvesWithMin + 1]tileFunc
	swapHalves func(t *byte, rowBytes, pairs int)
)

var integerKernels = map[format.Format]*[numISAs]*integerKernel{}

// registerInteger is for the init functions of the formats' files.
func registerInteger(f format.Format, i isa, k *integerKernel) {
	if integerKernels[f] == nil {
		integerKernels[f] = new([numISAs]*integerKernel)
	}
	integerKernels[f][i] = k
}

// panelRows is how many weight rows are packed at a time, less for long rows: the panel stays in the L2 cache while all activation rows pass. That
// for few of them, up to fewRows, stays in the L1 cache, as writing to the L2 takes longer than what few rows do with it.
const (
	panelRows  = 32
	panelBytes = 64 << 10
	fewRows    = 8
	fewBytes   = 16 << 10
)

// panel is a thread's scratch memory.
type panel struct {
	codes  codes
	t      []uint8
	a      []float32
	sums   []int32
	args   tileArgs
	floats floatArgs
	spare  [panelRows]float32 // results of absent activation rows
	pad    []byte
}

var panels = sync.Pool{New: func() any { return new(panel) }}
