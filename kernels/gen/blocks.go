package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// blockFormat describes a format of blocks of 32 columns with one scale each, to the extent that the generated functions differ.
type blockFormat struct {
	head int // bytes of a row before its first block
	// A unit of unitBytes bytes holds unitBlocks blocks of 32 columns.
	unitBytes, unitBlocks int
	// bias is what codes adds to the values, a power of two; 0 if the values are signed bytes, which only AVX2 code takes (then
	// signed is set) because VPDPBUSD wants an unsigned factor.
	bias   int
	signed bool
	// setup emits what codes and scales need before the first loop, once per function; it may be nil.
	setup func(w int)
	// codes returns the 32 values of one block as bytes in a YMM (w=256), or those of two in the halves of a ZMM (w=512). A block is
	// given by the memory of its unit and its number within that.
	codes func(w int, b ...blockAt) reg.VecVirtual
	// scales returns the float32 scales of 4, 8 or 16 blocks in an XMM, YMM or ZMM. If it is nil, one scale at a row's start is for all.
	scales func(b []blockAt) reg.VecVirtual
}

// prefetch asks for n bytes of weights before their use, for a row kernel; m is the memory of the first ones to be used now. Each line is
// asked for twice: into the L2 cache from beyond the page, where the processor's own prefetching stops, and into the L1 cache, for which there
// are few requests in flight, once it is near. docs/performance.md has what either alone and other distances gave.
func prefetch(m Mem, n int) {
	const near, far = 3 << 10, 8 << 10
	for line := 0; line < n; line += 64 {
		PREFETCHT1(m.Offset(far + line))
		PREFETCHT0(m.Offset(near + line))
	}
}

// blockAt is a place of a block: its unit's memory and its number in the unit.
type blockAt struct {
	Mem
	n int
}

// blocks returns the places of n blocks from base on.
func (f *blockFormat) blocks(base reg.Register, n int) []blockAt {
	b := make([]blockAt, n)
	for i := range b {
		b[i] = blockAt{off(base, i/f.unitBlocks*f.unitBytes), i % f.unitBlocks}
	}
	return b
}

func (f *blockFormat) scalesOf(row reg.Register, b []blockAt) reg.VecVirtual {
	if f.scales != nil {
		return f.scales(b)
	}
	v := vec(32 * len(b))
	VBROADCASTSS(off(row, 0), v)
	return v
}

func shiftOf(bias int) (n uint64) {
	for 1<<n < bias {
		n++
	}
	return n
}

// rows emits a rowFunc.
func (f *blockFormat) rows(name string, w int) {
	function(name, w, "func(dst *float32, w *byte, stride, n int, q *int8, d *float32, s, half *int32, blocks int)")
	lanes := w / 32 // blocks of a step, as many as lanes
	dst, row, n, d, s, blocks := param("dst"), param("w"), param("n"), param("d"), param("s"), param("blocks")
	if f.setup != nil {
		f.setup(w)
	}
	var ones, order reg.VecVirtual
	if w == 256 {
		ones = broadcast(256, 0x00010001)
	} else {
		// The sums of pairs of blocks come out with the even blocks of each eight first.
		order = ZMM()
		VMOVDQU32(dwordsConst("evenFirst", 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15), order)
	}
	// dot returns the sums of the products of the codes with q in memory, in 8 lanes per block.
	dot := func(w2 int, q Mem, b ...blockAt) reg.VecVirtual {
		u := f.codes(w2, b...)
		if w == 512 {
			acc := vec(w2)
			zero(acc)
			vpdpbusd(q, u, acc)
			return acc
		}
		return bytesDot(u, q, ones, f.signed)
	}
	w32, q, i := GP64(), GP64(), GP64()
	acc := vec(w)
	// finish adds the products of one step: sums are the integers of its blocks, scales their scales.
	finish := func(sums, scales reg.VecVirtual) {
		if f.bias != 0 {
			t := vec(w)
			load(at(s, i, 4, 0), t)
			VPSLLD(Imm(shiftOf(f.bias)), t, t)
			VPSUBD(t, sums, sums)
		}
		VCVTDQ2PS(sums, sums)
		VMULPS(at(d, i, 4, 0), scales, scales)
		VFMADD231PS(scales, sums, acc)
	}

	nextRow, step, tail, done := label("row"), label("step"), label("tail"), label("done")
	Label(nextRow)
	LEAQ(off(row, f.head), w32)
	Load(Param("q"), q)
	XORQ(i, i)
	zero(acc)
	left := GP64()
	MOVQ(blocks, left)
	SUBQ(Imm(uint64(lanes)), left)
	JL(LabelRef(tail))
	Label(step)
	{
		prefetch(off(w32, 0), lanes/f.unitBlocks*f.unitBytes)
		b := f.blocks(w32, lanes)
		var parts []reg.VecVirtual
		var sums reg.VecVirtual
		for g := range 2 { // of four vectors of sums
			var v []reg.VecVirtual
			for k := range 4 {
				k += 4 * g
				if w == 512 {
					v = append(v, dot(512, off(q, 64*k), b[2*k], b[2*k+1]))
				} else {
					v = append(v, dot(256, off(q, 32*k), b[k]))
				}
			}
			parts = append(parts, addFourInts(v))
		}
		sums = vec(w)
		t := vec(w)
		if w == 512 {
			VSHUFI32X4(Imm(0x88), parts[1], parts[0], sums)
			VSHUFI32X4(Imm(0xdd), parts[1], parts[0], t)
			VPADDD(t, sums, sums)
			VPERMD(sums, order, sums)
		} else {
			VPERM2I128(Imm(0x20), parts[1], parts[0], sums)
			VPERM2I128(Imm(0x31), parts[1], parts[0], t)
			VPADDD(t, sums, sums)
		}
		finish(sums, f.scalesOf(row, b))
		ADDQ(I32(int32(lanes/f.unitBlocks*f.unitBytes)), w32)
		ADDQ(I32(int32(lanes*32)), q)
		ADDQ(Imm(uint64(lanes)), i)
		SUBQ(Imm(uint64(lanes)), left)
		JGE(LabelRef(step))
	}
	Label(tail)
	ADDQ(Imm(uint64(lanes)), left)
	JEQ(LabelRef(done))
	{
		// Fours of blocks, up to the last; a block that is absent is read as the last one, whose q and d are zero in its place.
		last := GP64()
		LEAQ(off(left, -1), last)
		if f.unitBlocks == 2 {
			SHRQ(Imm(1), last)
		}
		IMUL3Q(Imm(uint64(f.unitBytes)), last, last)
		ADDQ(w32, last)
		sums, scales := vec(w), vec(w)
		tailDone := label("tailDone")
		zero(sums)
		zero(scales)
		for g := range lanes / 4 {
			if g > 0 {
				CMPQ(left, Imm(uint64(4*g)))
				JLE(LabelRef(tailDone))
			}
			var b []blockAt
			for k := range 4 {
				n := g*4 + k
				if n%f.unitBlocks != 0 {
					b = append(b, blockAt{b[len(b)-1].Mem, n % f.unitBlocks})
					continue
				}
				p := GP64()
				LEAQ(off(w32, n/f.unitBlocks*f.unitBytes), p)
				CMPQ(p, last)
				CMOVQHI(last, p)
				b = append(b, blockAt{off(p, 0), 0})
			}
			var v []reg.VecVirtual
			for k := range b {
				v = append(v, dot(256, off(q, 128*g+32*k), b[k]))
			}
			t, x := addFourInts(v), XMM()
			extract128(1, t, x)
			VPADDD(t.AsX(), x, x)
			sc := f.scalesOf(row, b)
			insert128(g, x, sums, sums)
			insert128(g, sc, scales, scales)
		}
		Label(tailDone)
		finish(sums, scales)
	}
	Label(done)
	VMOVSS(sumLanes(acc), off(dst, 0))
	ADDQ(Imm(4), dst)
	stride := param("stride")
	ADDQ(stride, row)
	DECQ(n)
	JNE(LabelRef(nextRow))
	VZEROUPPER()
	RET()
}

// bytesDot is AVX2's product of 32 bytes u with the signed bytes of q, summed in fours. u is unsigned, with no two neighbours above 129
// so that the 16-bit sums hold, or signed.
func bytesDot(u reg.VecVirtual, q Mem, ones reg.VecVirtual, signed bool) reg.VecVirtual {
	t := YMM()
	if signed {
		abs := YMM()
		VPABSB(u, abs)
		VMOVDQU(q, t)
		VPSIGNB(u, t, t)
		VPMADDUBSW(t, abs, t)
	} else {
		VPMADDUBSW(q, u, t)
	}
	VPMADDWD(ones, t, t)
	return t
}

// pack emits a packFunc.
func (f *blockFormat) pack(name string, w int) {
	function(name, w, packSignature)
	t, a, tstride, row, n := param("t"), param("a"), param("tstride"), param("w"), param("n")
	if f.setup != nil {
		f.setup(w)
	}
	nextRow, step := label("row"), label("step")
	w32, to, scales, left := GP64(), GP64(), GP64(), GP64()
	Label(nextRow)
	LEAQ(off(row, f.head), w32)
	MOVQ(t, to)
	MOVQ(a, scales)
	Load(Param("tiles"), left)
	Label(step)
	b := f.blocks(w32, 16)
	if w == 512 {
		var in [8]reg.VecVirtual
		for k := range in {
			first := k/4*8 + k%4
			in[k] = f.codes(512, b[first], b[first+4])
		}
		for j, v := range transpose512(in) {
			VMOVDQU32(v, off(to, 64*j))
		}
		VMOVUPS(f.scalesOf(row, b), off(scales, 0))
	} else {
		for h := range 2 {
			var in [8]reg.VecVirtual
			for k := range in {
				in[k] = f.codes(256, b[8*h+k])
			}
			transpose256(in, func(j int, v reg.VecVirtual) { VMOVDQU(v, off(to, 64*j+32*h)) })
			VMOVUPS(f.scalesOf(row, b[8*h:8*h+8]), off(scales, 32*h))
		}
	}
	ADDQ(I32(int32(16/f.unitBlocks*f.unitBytes)), w32)
	ADDQ(I32(512), to)
	ADDQ(Imm(64), scales)
	DECQ(left)
	JNE(LabelRef(step))
	stride, bytes := param("stride"), GP64()
	ADDQ(stride, row)
	MOVQ(tstride, bytes)
	SHLQ(Imm(6), bytes)
	ADDQ(bytes, a)
	SHLQ(Imm(3), bytes)
	ADDQ(bytes, t)
	DECQ(n)
	JNE(LabelRef(nextRow))
	VZEROUPPER()
	RET()
}

// transpose512 makes the vectors of a tile of 16 blocks, in[k] and in[4+k] having blocks k and k+4, and k+8 and k+12, in their halves.
func transpose512(in [8]reg.VecVirtual) (out [8]reg.VecVirtual) {
	for g := range 2 {
		v := transposeQuarters(in[4*g : 4*g+4])
		copy(in[4*g:], v[:])
	}
	for i := range 4 {
		out[i], out[4+i] = ZMM(), ZMM()
		VSHUFI32X4(Imm(0x88), in[4+i], in[i], out[i])
		VSHUFI32X4(Imm(0xdd), in[4+i], in[i], out[4+i])
	}
	return out
}

// transpose256 calls store with each vector of half a tile; in has one block each.
func transpose256(in [8]reg.VecVirtual, store func(j int, v reg.VecVirtual)) {
	for g := range 2 {
		v := transposeQuarters(in[4*g : 4*g+4])
		copy(in[4*g:], v[:])
	}
	for i := range 4 {
		t := YMM()
		VPERM2I128(Imm(0x20), in[4+i], in[i], t)
		store(i, t)
		VPERM2I128(Imm(0x31), in[4+i], in[i], t)
		store(4+i, t)
	}
}

// transposeQuarters transposes the 4×4 lanes of 32 bits in each 128-bit part of four vectors.
func transposeQuarters(v []reg.VecVirtual) (out [4]reg.VecVirtual) {
	w := int(v[0].Size()) * 8
	unpack := func(a, b reg.VecVirtual) (lo, hi reg.VecVirtual) {
		lo, hi = vec(w), vec(w)
		VPUNPCKLDQ(b, a, lo)
		VPUNPCKHDQ(b, a, hi)
		return lo, hi
	}
	lo01, hi01 := unpack(v[0], v[1])
	lo23, hi23 := unpack(v[2], v[3])
	for i, p := range [][2]reg.VecVirtual{{lo01, lo23}, {hi01, hi23}} {
		out[2*i], out[2*i+1] = vec(w), vec(w)
		VPUNPCKLQDQ(p[1], p[0], out[2*i])
		VPUNPCKHQDQ(p[1], p[0], out[2*i+1])
	}
	return out
}

// f16Scales returns the scales of blocks whose unit begins with a binary16 scale.
func f16Scales(b []blockAt) reg.VecVirtual {
	r := vec(32 * len(b))
	half := func(b []blockAt) reg.VecVirtual {
		v := YMM()
		loadLow32(b[0].Mem, v) // with two bytes too many, which the next insertion overwrites
		for i, b := range b[1:] {
			VPINSRW(Imm(uint64(i+1)), b.Mem, v.AsX(), v.AsX())
		}
		return v
	}
	if len(b) < 16 {
		VCVTPH2PS(half(b).AsX(), r)
		return r
	}
	lo, hi := half(b[:8]), half(b[8:])
	insert128(1, hi.AsX(), lo, lo)
	VCVTPH2PS(lo, r)
	return r
}
