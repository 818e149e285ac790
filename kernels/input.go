package kernels

import "math"

const (
	block     = 32                // columns that share a scale
	tileLanes = 16                // blocks of a tile
	tileCols  = tileLanes * block // columns of a tile
)

// Input is a batch of activation rows in the forms the kernels read. The zero value is ready for Set. Its buffers are kept from one
// Set to the next.
//
// The integer form pads every row with zeros to a whole number of tiles of 512 columns, so Q has Rows×Padded() values, and D, S and
// the like have Padded()/32 a row.
type Input struct {
	Rows, Cols int
	F32        []float32 // [Rows][Cols], the caller's memory
	Q          []int8    // [Rows][Padded()]: x/d to the nearest, ties to even, d = amax/127 over the block
	D          []float32 // [Rows][Padded()/32]: the scales d
	S          []int32   // [Rows][Padded()/32]: sum of the block's q

	// half has the sums of each block's first 16 values, for formats with a scale per 16.
	half []int32
	// tiles has Q once more in the order of panel.go, if there is more than one row.
	tiles []int8
}

// Padded returns the columns of a row of the integer form, Cols rounded up to 512.
func (in *Input) Padded() int { return roundUp(in.Cols, tileCols) }

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// Set makes in stand for rows × cols values of x, which it keeps a reference to. It quantises nothing.
func (in *Input) Set(x []float32, rows, cols int) {
	in.Rows, in.Cols, in.F32 = rows, cols, x[:rows*cols]
	n := rows * in.Padded()
	in.Q, in.D = grow(in.Q, n), grow(in.D, n/block)
	in.S, in.half = grow(in.S, n/block), grow(in.half, n/block)
	if rows > 1 {
		in.tiles = grow(in.tiles, n)
	}
}

// grow returns s with length n, in new memory if it does not fit. The contents are lost.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// Quantize fills the integer form of rows r0..r1-1. Callers may split the rows between threads.
//
// A block with a value that is not finite gets a scale that is not finite, so that every product with it shows.
func (in *Input) Quantize(r0, r1 int) {
	v := current().vector
	for r := r0; r < r1; r++ {
		in.quantize(v, r)
	}
}

func (in *Input) quantize(v vector, r int) {
	p := in.Padded()
	q, d := in.Q[r*p:][:p], in.D[r*p/block:][:p/block]
	s, half := in.S[r*p/block:][:p/block], in.half[r*p/block:][:p/block]
	var tiles []int8
	if in.Rows > 1 {
		tiles = in.tiles[r*p:][:p]
	}
	v.quantize(q, d, s, half, tiles, in.F32[r*in.Cols:][:in.Cols])
}

// quantizeGeneric quantises one row x. The outputs cover the padding too; tiles may be nil.
func quantizeGeneric(q []int8, d []float32, s, half []int32, tiles []int8, x []float32) {
	clear(q)
	clear(d)
	clear(s)
	clear(half)
	for b := range (len(x) + block - 1) / block {
		x := x[b*block : min(len(x), (b+1)*block)]
		var amax uint32 // of the bits, by which a NaN is larger than infinity
		for _, v := range x {
			amax = max(amax, math.Float32bits(v)&^(1<<31))
		}
		d[b] = math.Float32frombits(amax) / 127
		if d[b] == 0 || !(d[b] <= math.MaxFloat32) {
			continue
		}
		for i, v := range x {
			v := int8(max(-127, min(127, math.RoundToEven(float64(v/d[b])))))
			q[b*block+i] = v
			s[b] += int32(v)
			if i < block/2 {
				half[b] += int32(v)
			}
		}
	}
	if tiles != nil {
		for i, v := range q {
			tiles[tileIndex(i)] = v
		}
	}
}
