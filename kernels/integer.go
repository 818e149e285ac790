package kernels

import (
	"bytes"
	"math/bits"
	"unsafe"

	"github.com/coli-moe/coli/weights/format"
)

// matmulFunc is MatMul with its arguments checked and the bytes of a weight row.
type matmulFunc func(dst []float32, ldd int, w []byte, stride, n int, x *Input, rows []int32)

// best returns the product of format f for the highest instruction set that has one, not above limit.
func (s *scheme) best(f format.Format, limit isa) (isa, matmulFunc) {
	if impls := integerKernels[f]; impls != nil {
		if i, k := best(*impls, limit); k != nil {
			return i, func(dst []float32, ldd int, w []byte, stride, n int, x *Input, rows []int32) {
				k.matmul(f, s.kind, i, dst, ldd, w, stride, n, x, rows)
			}
		}
	}
	return generic, s.generic
}

// generic unpacks each weight row once and sums its blocks in rising order.
func (s *scheme) generic(dst []float32, ldd int, w []byte, stride, n int, x *Input, rows []int32) {
	p := panels.Get().(*panel)
	defer panels.Put(p)
	c := &p.codes
	c.reset(x.Cols)
	pad := x.Padded()
	for i := range n {
		s.unpack(c, w[i*stride:][:stride])
		for j, r := range rows {
			q, d := x.Q[int(r)*pad:][:len(c.q)], x.D[int(r)*pad/block:]
			sums, half := x.S[int(r)*pad/block:], x.half[int(r)*pad/block:]
			var acc float32
			for b := range (len(c.q) + block - 1) / block {
				lo, mid, hi := b*block, min(b*block+block/2, len(q)), min(b*block+block, len(q))
				i0, i1 := dotInt8(c.q[lo:mid], q[lo:mid]), dotInt8(c.q[mid:hi], q[mid:hi])
				switch s.kind {
				case scaled:
					acc += float32(i0+i1) * (c.a[2*b] * d[b])
				case withMin:
					acc += float32(i0+i1) * (c.a[2*b] * d[b])
					acc -= c.m[2*b] * (d[b] * float32(sums[b]))
				case halves, halvesWithMin:
					acc += float32(i0) * (c.a[2*b] * d[b])
					acc += float32(i1) * (c.a[2*b+1] * d[b])
				}
				if s.kind == halvesWithMin {
					acc -= c.m[2*b] * (d[b] * float32(half[b]))
					acc -= c.m[2*b+1] * (d[b] * float32(sums[b]-half[b]))
				}
			}
			dst[j*ldd+i] = acc
		}
	}
}

func dotInt8(a, b []int8) (sum int32) {
	b = b[:len(a)]
	for i, v := range a {
		sum += int32(v) * int32(b[i])
	}
	return sum
}

// matmul gives a few activation rows to k.row, one after the other; of more it gives fours to k.tile, over panels of packed weight rows.
func (k *integerKernel) matmul(
	f format.Format, kind kind, i isa, dst []float32, ldd int, w []byte, stride, n int, x *Input, rows []int32,
) {
	if k.prepare != nil {
		k.prepare()
	}
	pad, planes, lanes := x.Padded(), kind.planes(), 16
	few := 0 // so many rows behind the last four are faster alone
	if i == avx2 {
		lanes, few = 8, 1
		if k.bias == 0 && planes == kind.parts() { // signed codes
			few = 2
		}
	}
	// Packing pays for few+2 rows, for more if much of the tiles is empty. Without tiles of the activations a row is only repeated.
	if len(rows)*x.Cols < (few+2)*roundUp(x.Cols, lanes*block) || x.Rows == 1 {
		step := max(1, weightBlock/stride)
		for at := 0; at < n; at += step {
			for j, r := range rows {
				k.one(f, dst[j*ldd+at:], w[at*stride:], stride, min(step, n-at), x, r)
			}
		}
		return
	}
	p := panels.Get().(*panel)
	defer panels.Put(p)
	size := panelBytes
	if len(rows) <= fewRows {
		size = fewBytes
	}
	step := max(2, min(panelRows, size/pad&^1))
	p.t, p.a = grow(p.t, step*pad), grow(p.a, planes*step*pad/block)
	a := &p.args
	a.tiles = pad / tileCols
	a.halves = roundUp(x.Cols, tileCols/2) / (tileCols / 2)
	each := kind.parts() * pad / block
	p.sums = grow(p.sums, len(rows)*each)
	for j, r := range rows {
		b := int(r) * pad / block
		tileSums[i][kind](&p.sums[j*each], &x.S[b], &x.half[b], &x.D[b], bits.TrailingZeros32(uint32(k.bias)), a.tiles)
	}
	for at := 0; at < n; at += step {
		count := min(step, n-at)
		dst, w := dst[at:], w[at*stride:][:count*stride]
		k.packRows(f, planes, p, w, stride, count, x.Cols)
		whole, fours := count&^1, 0 // tiles take pairs of weight rows
		if tileHalves[i][kind] != nil && a.halves%2 == 1 {
			fours = count &^ 3
		}
		if fours > 0 {
			swapHalves(&p.t[0], pad, fours/2)
			swapHalves((*byte)(unsafe.Pointer(&p.a[0])), 4*planes*pad/block, fours/2)
		}
		for j := 0; j < len(rows) && whole > 0; j += 4 {
			if len(rows)-j <= few {
				for ; j < len(rows); j++ {
					k.one(f, dst[j*ldd:], w, stride, whole, x, rows[j])
				}
				break
			}
			for g := range a.x {
				from := min(j+g, len(rows)-1)
				r := int(rows[from])
				a.x[g], a.d[g], a.sums[g] = &x.tiles[r*pad], &x.D[r*pad/block], &p.sums[from*each]
				a.dst[g] = &p.spare[0]
				if j+g < len(rows) {
					a.dst[g] = &dst[(j+g)*ldd]
				}
			}
			a.w, a.a = &p.t[0], &p.a[0]
			if a.n = fours; a.n > 0 {
				tileHalves[i][kind]((*byte)(unsafe.Pointer(a)))
			}
			if a.n = whole - fours; a.n > 0 {
				a.w, a.a = &p.t[fours*pad], &p.a[fours*planes*pad/block]
				for g := range a.dst {
					a.dst[g] = (*float32)(unsafe.Add(unsafe.Pointer(a.dst[g]), 4*fours))
				}
				k.tile((*byte)(unsafe.Pointer(a)))
			}
		}
		for j := 0; j < len(rows) && whole < count; j++ {
			k.one(f, dst[j*ldd+whole:], w[whole*stride:], stride, 1, x, rows[j])
		}
	}
	*a = tileArgs{} // the pool shall not keep the caller's memory alive
}

// one multiplies n weight rows with row r of x.
func (k *integerKernel) one(f format.Format, dst []float32, w []byte, stride, n int, x *Input, r int32) {
	pad := int(r) * x.Padded()
	q, d, s, half := &x.Q[pad], &x.D[pad/block], &x.S[pad/block], &x.half[pad/block]
	blocks := (x.Cols + block - 1) / block
	if x.Cols%block == 0 {
		k.row(&dst[0], &w[0], stride, n, q, d, s, half, blocks)
		return
	}
	// The last block is short, which the kernel would read past: give it a copy of each row with zeros behind.
	p := panels.Get().(*panel)
	defer panels.Put(p)
	p.pad = grow(p.pad, stride+block)
	clear(p.pad[stride:])
	for i := range n {
		copy(p.pad, w[i*stride:][:stride])
		k.row(&dst[i], &p.pad[0], len(p.pad), 1, q, d, s, half, blocks)
	}
}

// packRows fills the panel with n weight rows. The blocks after the last whole tile are packed from a copy that is filled
// up with 0x40: absent blocks count for nothing, but must have a scale that is an ordinary number in every format, as multiplying a
// subnormal one (MXFP4's 0) is slow.
func (k *integerKernel) packRows(f format.Format, planes int, p *panel, w []byte, stride, n, cols int) {
	tiles := roundUp(cols, tileCols) / tileCols
	whole := cols / tileCols
	if whole > 0 {
		k.pack(&p.t[0], &p.a[0], tiles, &w[0], stride, n, whole)
	}
	if whole == tiles {
		return
	}
	in := f.Info()
	tileBytes := tileCols / in.Block * in.BlockBytes
	size := in.RowHead + tileBytes
	p.pad = grow(p.pad, n*size)
	for i := range n {
		row, pad := w[i*stride:][:stride], p.pad[i*size:][:size]
		have := copy(pad, row[:in.RowHead])
		have += copy(pad[have:], row[in.RowHead+whole*tileBytes:])
		copy(pad[have:], filling[:])
	}
	k.pack(&p.t[whole*tileCols], &p.a[planes*whole*tileLanes], tiles, &p.pad[0], size, n, 1)
}

// filling is as long as any tile of weights.
var filling = [tileCols * 34 / block]byte(bytes.Repeat([]byte{0x40}, tileCols*34/block))
