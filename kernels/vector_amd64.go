package kernels

import "unsafe"

// vectorsOf returns the vector operations of an instruction set.
func vectorsOf(limit isa) vector {
	switch limit {
	case avx512:
		return assembly{
			dot: dotAVX512, axpy: axpyAVX512, scale: scaleAVX512, add: addAVX512, mulScaled: mulScaledAVX512, siluMul: siluMulAVX512,
			expSum: expSumAVX512, maximum: maximumAVX512, dotRows: dotRowsAVX512, axpyRows: axpyRowsAVX512,
			decodeF16: decodeF16AVX512, decodeBF16: decodeBF16AVX512, quantize: quantizeAVX512, tiles: tilesAVX512,
			read: readAVX512, dotTile: dotTileAVX512, axpyTile: axpyTileAVX512,
		}.vector()
	case avx2:
		return assembly{
			dot: dotAVX2, axpy: axpyAVX2, scale: scaleAVX2, add: addAVX2, mulScaled: mulScaledAVX2, siluMul: siluMulAVX2,
			expSum: expSumAVX2, maximum: maximumAVX2, dotRows: dotRowsAVX2, axpyRows: axpyRowsAVX2,
			decodeF16: decodeF16AVX2, decodeBF16: decodeBF16AVX2, quantize: quantizeAVX2, tiles: tilesAVX2,
			read: readAVX2, dotTile: dotTileAVX2, axpyTile: axpyTileAVX2,
		}.vector()
	}
	return vectorGeneric
}

// assembly has the functions as the assembly takes them. Those that take n want it positive, decode wants a multiple of its lanes.
type assembly struct {
	dot                   func(a, b *float32, n int) float32
	axpy                  func(y *float32, a float32, x *float32, n int)
	scale                 func(x *float32, a float32, n int)
	add                   func(y, x *float32, n int)
	mulScaled             func(dst, x, w *float32, a, offset float32, n int)
	siluMul               func(dst, gate, up *float32, n int)
	expSum                func(x *float32, shift float32, n int) float32
	maximum               func(x *float32, n int) float32
	dotRows               func(dst, q, k *float32, size, stride, n int)
	axpyRows              func(acc, p, v *float32, size, stride, n int)
	decodeF16, decodeBF16 func(dst *float32, src *byte, n int)
	quantize              func(q *int8, d *float32, s, half *int32, x *float32, blocks int)
	tiles                 func(tiles, q *int8, n int)
	read                  func(p *byte, n int) uint64
	dotTile               func(dst *float32, ldd int, q, k *float32, size, stride, n int)
	axpyTile              func(acc, p *float32, ldp int, v *float32, size, stride, n int)
}

func data(x []float32) *float32 { return unsafe.SliceData(x) }

// vector wraps a in slices. unsafe.SliceData takes empty slices too, of which the assembly touches nothing.
func (a assembly) vector() vector {
	return vector{
		quantize:   a.quantizeRow,
		dot:        func(x, y []float32) float32 { return a.dot(data(x), data(y), len(x)) },
		axpy:       func(y []float32, f float32, x []float32) { a.axpy(data(y), f, data(x), len(y)) },
		scale:      func(x []float32, f float32) { a.scale(data(x), f, len(x)) },
		add:        func(y, x []float32) { a.add(data(y), data(x), len(y)) },
		sumSquares: func(x []float32) float32 { return a.dot(data(x), data(x), len(x)) },
		mulScaled: func(dst, x, w []float32, f, offset float32) {
			a.mulScaled(data(dst), data(x), data(w), f, offset, len(dst))
		},
		siluMul: func(dst, gate, up []float32) { a.siluMul(data(dst), data(gate), data(up), len(dst)) },
		expSum:  func(x []float32, shift float32) float32 { return a.expSum(data(x), shift, len(x)) },
		maximum: func(x []float32) float32 { return a.maximum(data(x), len(x)) },
		dotRows: func(dst, q, k []float32, stride, n int) {
			a.dotRows(data(dst), data(q), data(k), len(q), stride, n)
		},
		axpyRows: func(acc, p, v []float32, stride, n int) {
			a.axpyRows(data(acc), data(p), data(v), len(acc), stride, n)
		},
		dotTile: func(dst []float32, ldd int, q, k []float32, size, stride, n int) {
			a.dotTile(data(dst), ldd, data(q), data(k), size, stride, n)
		},
		axpyTile: func(acc, p []float32, ldp int, v []float32, size, stride, n int) {
			a.axpyTile(data(acc), data(p), ldp, data(v), size, stride, n)
		},
		decodeF16:  decodeWith(a.decodeF16, decodeF16Generic),
		decodeBF16: decodeWith(a.decodeBF16, decodeBF16Generic),
		read:       a.readAll,
	}
}

// decodeWith decodes what fills whole vectors with f and the rest with rest.
func decodeWith(f func(*float32, *byte, int), rest func([]float32, []byte)) func([]float32, []byte) {
	return func(dst []float32, src []byte) {
		n := len(dst) &^ 15
		if n > 0 {
			f(&dst[0], &src[0], n)
		}
		rest(dst[n:], src[2*n:])
	}
}

// readAll is readGeneric for any length.
func (a *assembly) readAll(b []byte) (sum uint64) {
	n := len(b) / readStep * readStep
	if n > 0 {
		sum = a.read(&b[0], n)
	}
	return sum ^ readGeneric(b[n:])
}

// quantizeRow is quantizeGeneric for any length: a last short block is quantised from a copy with zeros behind.
func (a *assembly) quantizeRow(q []int8, d []float32, s, half []int32, tiles []int8, x []float32) {
	blocks := len(x) / block
	if blocks > 0 {
		a.quantize(&q[0], &d[0], &s[0], &half[0], &x[0], blocks)
	}
	if rest := x[blocks*block:]; len(rest) > 0 {
		var last [block]float32
		copy(last[:], rest)
		a.quantize(&q[blocks*block], &d[blocks], &s[blocks], &half[blocks], &last[0], 1)
		blocks++
	}
	clear(q[blocks*block:])
	clear(d[blocks:])
	clear(s[blocks:])
	clear(half[blocks:])
	if tiles != nil {
		a.tiles(&tiles[0], &q[0], len(q)/tileCols)
	}
}
