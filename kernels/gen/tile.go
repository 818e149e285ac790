package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The layout of tileArgs: arrays of four pointers, by activation row, then single words.
const (
	tileDst    = 0
	tileX      = 32
	tileD      = 64
	tileSums   = 96
	tileW      = 128
	tileA      = 136
	tileN      = 144
	tileTiles  = 152
	tileHalves = 160
)

// packSignature is that of a packFunc.
const packSignature = "func(t *uint8, a *float32, tstride int, w *byte, stride, n, tiles int)"

// kind says which scales a block has, as in package kernels: one for all its columns or one for each half, and as many minima or none. Codes of
// formats with minima have no bias.
type kind struct{ halves, mins bool }

var (
	scaled        = kind{}
	withMin       = kind{mins: true}
	halves        = kind{halves: true}
	halvesWithMin = kind{halves: true, mins: true}
)

// planes returns how many vectors of scales and minima a tile has.
func (k kind) planes() int {
	n := 1
	if k.halves {
		n *= 2
	}
	if k.mins {
		n *= 2
	}
	return n
}

// parts returns the parts that a block's columns fall into by their scales.
func (k kind) parts() int {
	if k.halves {
		return 2
	}
	return 1
}

func init() {
	target("tile", func() {
		for _, w := range []int{512, 256} {
			for _, k := range []kind{scaled, withMin, halves, halvesWithMin} {
				k.sums(w)
			}
		}
		tile512("tileScaledAVX512", scaled)
		tile512("tileWithMinAVX512", withMin)
		tile512("tileHalvesAVX512", halves)
		tile512("tileHalvesWithMinAVX512", halvesWithMin)
		tileHalf("tileHalfScaledAVX512", scaled)
		tileHalf("tileHalfWithMinAVX512", withMin)
		tileHalf("tileHalfHalvesAVX512", halves)
		tileHalf("tileHalfHalvesWithMinAVX512", halvesWithMin)
		swapHalves("swapHalvesAVX512")
		// How many products of unsigned codes a 16-bit sum holds depends on their largest value: 2·m·31·127 < 2^15 for m = 4.
		tile256("tileSignedAVX2", scaled, true, 1)
		tile256("tileScaledAVX2", scaled, false, 4) // codes up to 31
		tile256("tileWithMinAVX2", withMin, false, 4)
		tile256("tileHalvesAVX2", halves, false, 2) // codes up to 63
		tile256("tileHalvesWithMinAVX2", halvesWithMin, false, 4)
		tile256("tileWideAVX2", scaled, false, 1) // codes up to 127
		tile256("tileWideHalvesAVX2", halves, false, 1)
	})
}

// tilePointers are the general registers of a tile function: pointers to the weight row, its scales and the activations, the number of
// the row and the byte of it.
type tilePointers struct {
	args, w, a, row, i, rowBytes, tmp reg.GPVirtual
	x                                 [4]reg.GPVirtual
}

func newTilePointers(name string, w int) *tilePointers {
	function(name, w, "func(args *byte)")
	p := &tilePointers{args: param("args"), row: GP64(), i: GP64(), tmp: GP64()}
	XORQ(p.row, p.row)
	word := func(disp int) reg.GPVirtual {
		r := GP64()
		MOVQ(off(p.args, disp), r)
		return r
	}
	for g := range p.x {
		p.x[g] = word(tileX + 8*g)
	}
	p.w, p.a = word(tileW), word(tileA)
	p.rowBytes = word(tileTiles)
	SHLQ(Imm(9), p.rowBytes)
	return p
}

// tile512 takes two weight rows and four activation rows at a time: eight integer and eight float sums in registers.
func tile512(name string, k kind) {
	p := newTilePointers(name, 512)
	nextRows, nextTile := label("rows"), label("tile")
	Label(nextRows)
	var acc [2][4]reg.VecVirtual
	for r := range acc {
		copy(acc[r][:], zeros(4, 512))
	}
	XORQ(p.i, p.i)
	w2, j := GP64(), GP64() // the second weight row; i/8, the bytes of scales passed
	LEAQ(at(p.w, p.rowBytes, 1, 0), w2)
	a2 := GP64() // bytes of a row's scales: a plane has an eighth of the codes'
	MOVQ(p.rowBytes, a2)
	SHRQ(Imm(3), a2)
	IMUL3Q(Imm(uint64(k.planes())), a2, a2)
	Label(nextTile)
	MOVQ(p.i, j)
	SHRQ(Imm(3), j)
	scales := func(plane, r int) reg.VecVirtual {
		v := ZMM()
		MOVQ(p.a, p.tmp)
		if r == 1 {
			ADDQ(a2, p.tmp)
		}
		VMOVUPS(at(p.tmp, j, uint8(k.planes()), 64*plane), v)
		return v
	}
	activation := func(array, g, planes, disp int) Mem {
		MOVQ(off(p.args, array+8*g), p.tmp)
		return at(p.tmp, j, uint8(planes), disp)
	}
	for part := range k.parts() {
		var ints [2][4]reg.VecVirtual
		for g := range 4 {
			ints[0][g], ints[1][g] = ZMM(), ZMM()
			for r := range 2 {
				if k.mins {
					zero(ints[r][g])
				} else {
					VMOVDQU32(activation(tileSums, g, k.parts(), 64*part), ints[r][g])
				}
			}
		}
		for v := range 8 / k.parts() {
			v += 4 * part
			u := vecs(2, 512)
			VMOVDQU32(at(p.w, p.i, 1, 64*v), u[0])
			VMOVDQU32(at(w2, p.i, 1, 64*v), u[1])
			for g := range 4 {
				x := ZMM()
				VMOVDQU32(at(p.x[g], p.i, 1, 64*v), x)
				vpdpbusd(x, u[0], ints[0][g])
				vpdpbusd(x, u[1], ints[1][g])
			}
		}
		a := [2]reg.VecVirtual{scales(part, 0), scales(part, 1)}
		for g := range 4 {
			d := ZMM()
			VMOVUPS(activation(tileD, g, 1, 0), d)
			for r := range 2 {
				t := ZMM()
				VMULPS(d, a[r], t)
				VCVTDQ2PS(ints[r][g], ints[r][g])
				VFMADD231PS(t, ints[r][g], acc[r][g])
			}
		}
	}
	for part := 0; part < k.parts() && k.mins; part++ {
		m := [2]reg.VecVirtual{scales(k.parts()+part, 0), scales(k.parts()+part, 1)}
		for g := range 4 {
			s := ZMM()
			VMOVUPS(activation(tileSums, g, k.parts(), 64*part), s)
			for r := range 2 {
				VFNMADD231PS(m[r], s, acc[r][g])
			}
		}
	}
	ADDQ(I32(512), p.i)
	CMPQ(p.i, p.rowBytes)
	JL(LabelRef(nextTile))

	r0, r1 := sumFour(acc[0][0], acc[0][1], acc[0][2], acc[0][3]), sumFour(acc[1][0], acc[1][1], acc[1][2], acc[1][3])
	lo, hi := XMM(), XMM()
	VUNPCKLPS(r1, r0, lo)
	VUNPCKHPS(r1, r0, hi)
	for g, v := range []reg.VecVirtual{lo, lo, hi, hi} {
		MOVQ(off(p.args, tileDst+8*g), p.tmp)
		if g%2 == 0 {
			VMOVLPS(v, at(p.tmp, p.row, 4, 0))
		} else {
			VMOVHPS(v, at(p.tmp, p.row, 4, 0))
		}
	}
	LEAQ(at(p.w, p.rowBytes, 2, 0), p.w)
	LEAQ(at(p.a, a2, 2, 0), p.a)
	ADDQ(Imm(2), p.row)
	CMPQ(p.row, off(p.args, tileN))
	JL(LabelRef(nextRows))
	VZEROUPPER()
	RET()
}

// swapHalves emits a function that exchanges the upper half of each vector of a row with the lower half of the row behind it, in pairs of rows of
// rowBytes bytes.
func swapHalves(name string) {
	function(name, 512, "func(t *byte, rowBytes, pairs int)")
	t, rowBytes, pairs := param("t"), param("rowBytes"), param("pairs")
	left, next, pair := GP64(), label("next"), label("pair")
	Label(pair)
	MOVQ(rowBytes, left)
	Label(next)
	a, b, lower, upper := ZMM(), ZMM(), ZMM(), ZMM()
	VMOVDQU32(off(t, 0), a)
	VMOVDQU32(at(t, rowBytes, 1, 0), b)
	VSHUFI64X2(Imm(0x44), b, a, lower)
	VSHUFI64X2(Imm(0xee), b, a, upper)
	VMOVDQU32(lower, off(t, 0))
	VMOVDQU32(upper, at(t, rowBytes, 1, 0))
	ADDQ(Imm(64), t)
	SUBQ(Imm(64), left)
	JNE(LabelRef(next))
	ADDQ(rowBytes, t)
	DECQ(pairs)
	JNE(LabelRef(pair))
	VZEROUPPER()
	RET()
}

// tileHalf is for rows whose last tile is at most half full. It takes four weight rows, as two pairs between which swapHalves has exchanged halves,
// and four activation rows at a time: a vector has half a tile of either row of a pair. The first halves of tiles and the second ones have
// sums of their own, which are the lower and the upper lanes of a row's.
func tileHalf(name string, k kind) {
	function(name, 512, "func(args *byte)")
	args, i, j, row, tmp := param("args"), GP64(), GP64(), GP64(), GP64()
	w, a, rowBytes, planeBytes := GP64(), GP64(), GP64(), GP64()
	MOVQ(off(args, tileW), w)
	MOVQ(off(args, tileA), a)
	MOVQ(off(args, tileTiles), rowBytes)
	MOVQ(rowBytes, planeBytes)
	SHLQ(Imm(9), rowBytes)
	IMUL3Q(I32(int32(64*k.planes())), planeBytes, planeBytes) // of a row
	rowBytes3, planeBytes3 := GP64(), GP64()
	LEAQ(at(rowBytes, rowBytes, 2, 0), rowBytes3)
	LEAQ(at(planeBytes, planeBytes, 2, 0), planeBytes3)
	var x [4]reg.GPVirtual
	for g := range x {
		x[g] = GP64()
		MOVQ(off(args, tileX+8*g), x[g])
	}
	XORQ(row, row)
	nextRows, nextTile, done := label("rows"), label("tile"), label("done")
	// of is row n of four in memory.
	of := func(base, size, size3 reg.GPVirtual, n, disp int) Mem {
		switch n {
		case 0:
			return off(base, disp)
		case 3:
			return at(base, size3, 1, disp)
		}
		return at(base, size, uint8(n), disp)
	}
	Label(nextRows)
	var acc [2][2][4]reg.VecVirtual // by half, pair, and activation row
	for half := range acc {
		for pair := range acc[half] {
			copy(acc[half][pair][:], zeros(4, 512))
		}
	}
	XORQ(i, i)
	Label(nextTile)
	MOVQ(i, j)
	SHRQ(Imm(3), j)
	for half := range 2 {
		// both loads 256 bits of the activations into either half of a vector.
		both := func(array, g, planes, disp int) reg.VecVirtual {
			v := ZMM()
			MOVQ(off(args, array+8*g), tmp)
			VBROADCASTI64X4(at(tmp, j, uint8(planes), disp+32*half), v)
			return v
		}
		scales := func(plane, pair int) reg.VecVirtual {
			v := ZMM()
			VMOVUPS(of(a, planeBytes, planeBytes3, 2*pair+half, 64*plane), v)
			return v
		}
		for part := range k.parts() {
			var ints [2][4]reg.VecVirtual
			for g := range 4 {
				for pair := range 2 {
					if k.mins {
						ints[pair][g] = zeros(1, 512)[0]
					} else {
						ints[pair][g] = both(tileSums, g, k.parts(), 64*part)
					}
				}
			}
			for v := range 8 / k.parts() {
				v += 4 * part
				u := vecs(2, 512)
				for pair := range u {
					VMOVDQU32(of(w, rowBytes, rowBytes3, 2*pair+half, 64*v), u[pair])
				}
				for g := range 4 {
					xs := ZMM()
					VBROADCASTI64X4(at(x[g], i, 1, 64*v+32*half), xs)
					for pair := range u {
						vpdpbusd(xs, u[pair], ints[pair][g])
					}
				}
			}
			s := [2]reg.VecVirtual{scales(part, 0), scales(part, 1)}
			for g := range 4 {
				d := both(tileD, g, 1, 0)
				for pair := range 2 {
					t := ZMM()
					VMULPS(d, s[pair], t)
					VCVTDQ2PS(ints[pair][g], ints[pair][g])
					VFMADD231PS(t, ints[pair][g], acc[half][pair][g])
				}
			}
		}
		for part := 0; part < k.parts() && k.mins; part++ {
			m := [2]reg.VecVirtual{scales(k.parts()+part, 0), scales(k.parts()+part, 1)}
			for g := range 4 {
				s := both(tileSums, g, k.parts(), 64*part)
				for pair := range 2 {
					VFNMADD231PS(m[pair], s, acc[half][pair][g])
				}
			}
		}
		if half == 0 {
			LEAQ(off(i, 512), tmp)
			CMPQ(tmp, rowBytes)
			JE(LabelRef(done))
		}
	}
	ADDQ(I32(512), i)
	ADDQ(I32(512), w)
	ADDQ(I32(int32(64*k.planes())), a)
	JMP(LabelRef(nextTile))

	Label(done)
	var sums []reg.VecVirtual // of each weight row, by activation row
	for pair := range 2 {
		var halves [2]reg.VecVirtual
		for half := range halves {
			v, t := acc[half][pair], ZMM()
			s := sumEachFour(v[0], v[1], v[2], v[3])
			VSHUFF32X4(Imm(0xb1), s, s, t)
			VADDPS(s, t, t)
			halves[half] = t
		}
		VADDPS(halves[1], halves[0], halves[0])
		second := XMM()
		extract128(2, halves[0], second)
		sums = append(sums, halves[0], second)
	}
	for g := range 4 {
		first, last := XMM(), XMM()
		if g < 2 {
			VUNPCKLPS(sums[1].AsX(), sums[0].AsX(), first)
			VUNPCKLPS(sums[3].AsX(), sums[2].AsX(), last)
		} else {
			VUNPCKHPS(sums[1].AsX(), sums[0].AsX(), first)
			VUNPCKHPS(sums[3].AsX(), sums[2].AsX(), last)
		}
		if g%2 == 0 {
			VUNPCKLPD(last, first, first)
		} else {
			VUNPCKHPD(last, first, first)
		}
		MOVQ(off(args, tileDst+8*g), tmp)
		VMOVUPS(first, at(tmp, row, 4, 0))
	}
	ADDQ(rowBytes3, w) // w and a are at their last tile
	LEAQ(off(w, 512), w)
	ADDQ(planeBytes3, a)
	LEAQ(off(a, 64*k.planes()), a)
	ADDQ(Imm(4), row)
	CMPQ(row, off(args, tileN))
	JL(LabelRef(nextRows))
	VZEROUPPER()
	RET()
}

// tile256 takes one weight row and four activation rows at a time. batch is how many products fit a 16-bit sum.
func tile256(name string, k kind, signed bool, batch int) {
	p := newTilePointers(name, 256)
	ones := broadcast(256, 0x00010001)
	nextRow, nextTile, done := label("row"), label("tile"), label("done")
	Label(nextRow)
	acc := zeros(4, 256)
	XORQ(p.i, p.i)
	j, halves := GP64(), GP64()
	MOVQ(off(p.args, tileHalves), halves)
	Label(nextTile)
	MOVQ(p.i, j)
	SHRQ(Imm(3), j)
	for half := range 2 { // of the 16 lanes
		activation := func(array, g, planes, disp int) Mem {
			MOVQ(off(p.args, array+8*g), p.tmp)
			return at(p.tmp, j, uint8(planes), disp+32*half)
		}
		scales := func(plane int) reg.VecVirtual {
			a := YMM()
			VMOVUPS(at(p.a, j, uint8(k.planes()), 64*plane+32*half), a)
			return a
		}
		for part := range k.parts() {
			var ints [4]reg.VecVirtual
			vectors := 8 / k.parts()
			for v := 0; v < vectors; v += batch {
				var short [4]reg.VecVirtual
				for m := range batch {
					u, disp := YMM(), 64*(vectors*part+v+m)+32*half
					VMOVDQU(at(p.w, p.i, 1, disp), u)
					var abs reg.VecVirtual
					if signed {
						abs = YMM()
						VPABSB(u, abs)
					}
					for g := range 4 {
						t, x := YMM(), at(p.x[g], p.i, 1, disp)
						if signed {
							VMOVDQU(x, t)
							VPSIGNB(u, t, t)
							VPMADDUBSW(t, abs, t)
						} else {
							VPMADDUBSW(x, u, t)
						}
						if m == 0 {
							short[g] = t
						} else {
							VPADDW(t, short[g], short[g])
						}
					}
				}
				for g, t := range short {
					VPMADDWD(ones, t, t)
					if v > 0 {
						VPADDD(t, ints[g], ints[g])
						continue
					}
					if ints[g] = t; !k.mins && !signed {
						VPADDD(activation(tileSums, g, k.parts(), 64*part), t, t)
					}
				}
			}
			a := scales(part)
			for g := range 4 {
				t := YMM()
				VMULPS(activation(tileD, g, 1, 0), a, t)
				VCVTDQ2PS(ints[g], ints[g])
				VFMADD231PS(t, ints[g], acc[g])
			}
		}
		for part := 0; part < k.parts() && k.mins; part++ {
			m := scales(k.parts() + part)
			for g := range 4 {
				VFNMADD231PS(activation(tileSums, g, k.parts(), 64*part), m, acc[g])
			}
		}
		DECQ(halves)
		if half == 0 {
			JEQ(LabelRef(done))
		}
	}
	LEAQ(off(p.i, 512), p.i)
	JNE(LabelRef(nextTile))
	Label(done)

	r := sumFour(acc[0], acc[1], acc[2], acc[3])
	for g := range 4 {
		MOVQ(off(p.args, tileDst+8*g), p.tmp)
		VEXTRACTPS(Imm(uint64(g)), r, at(p.tmp, p.row, 4, 0))
	}
	ADDQ(p.rowBytes, p.w)
	MOVQ(p.rowBytes, j)
	SHRQ(Imm(3), j)
	LEAQ(at(p.a, j, uint8(k.planes()), 0), p.a)
	INCQ(p.row)
	CMPQ(p.row, off(p.args, tileN))
	JL(LabelRef(nextRow))
	VZEROUPPER()
	RET()
}

// sums emits a function that makes, of the sums S of an activation row, what tiles of this kind begin their integers with or multiply with the
// minima: for each tile and part of its blocks 16 lanes of -bias·S, or of d·S if there are minima.
func (k kind) sums(w int) {
	name := "tileSums"
	if k.halves {
		name += "Halves"
	}
	if k.mins {
		name += "WithMin"
	}
	function(name+newSimd(w).isa(), w, "func(t, s, half *int32, d *float32, shift, tiles int)")
	t, s, half, d, tiles := param("t"), param("s"), param("half"), param("d"), param("tiles")
	shift := XMM()
	VMOVQ(param("shift"), shift)
	next := label("tile")
	Label(next)
	for lane := 0; lane < 64; lane += w / 8 {
		whole, first := vec(w), vec(w)
		load(off(s, lane), whole)
		parts := []reg.VecVirtual{whole}
		if k.halves {
			load(off(half, lane), first)
			VPSUBD(first, whole, whole)
			parts = []reg.VecVirtual{first, whole}
		}
		for i, p := range parts {
			if k.mins {
				VCVTDQ2PS(p, p)
				VMULPS(off(d, lane), p, p)
			} else {
				z := vec(w)
				zero(z)
				VPSLLD(shift, p, p)
				VPSUBD(p, z, p)
			}
			load(p, off(t, 64*i+lane))
		}
	}
	for _, r := range []reg.GPVirtual{s, half, d} {
		ADDQ(Imm(64), r)
	}
	ADDQ(I32(int32(64*k.parts())), t)
	DECQ(tiles)
	JNE(LabelRef(next))
	VZEROUPPER()
	RET()
}
