package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() {
	target("vector", func() {
		for _, w := range []int{256, 512} {
			suffix := map[int]string{256: "AVX2", 512: "AVX512"}[w]
			dotRows("dotRows"+suffix, w)
			axpyRows("axpyRows"+suffix, w)
			dot("dot"+suffix, w)
			axpy("axpy"+suffix, w)
			scale("scale"+suffix, w)
			add("add"+suffix, w)
			mulScaled("mulScaled"+suffix, w)
			siluMul("siluMul"+suffix, w)
			expSum("expSum"+suffix, w)
			maximum("maximum"+suffix, w)
			widen("decodeF16"+suffix, w, floatFormats[1])
			widen("decodeBF16"+suffix, w, floatFormats[2])
			quantize("quantize"+suffix, w)
			transposeTiles("tiles"+suffix, w)
		}
	})
}

// mask selects the first lanes of a vector of w bits: in an opmask register for AVX-512, in a vector for AVX2.
type mask struct {
	w int
	k reg.OpmaskVirtual
	v reg.VecVirtual
}

// maskOf makes the mask of left lanes, fewer than a vector has.
func maskOf(w int, left reg.GPVirtual) mask {
	t := GP64()
	if w == 512 {
		k := K()
		MOVQ(I32(-1), t)
		BZHIQ(left, t, t)
		KMOVW(t.As32(), k)
		return mask{w: w, k: k}
	}
	table := dwordsConst("lanes", append(slicesOf(8, ^uint32(0)), slicesOf(8, 0)...)...)
	base, v := GP64(), YMM()
	LEAQ(table, base)
	MOVQ(U32(8), t)
	SUBQ(left, t)
	VMOVDQU(at(base, t, 4, 0), v)
	return mask{w: w, v: v}
}

func slicesOf(n int, v uint32) []uint32 {
	s := make([]uint32, n)
	for i := range s {
		s[i] = v
	}
	return s
}

// load loads the selected lanes and clears the others; a mask of no width selects all.
func (m mask) load(from Mem, to reg.VecVirtual) {
	switch m.w {
	case 512:
		VMOVUPS_Z(from, m.k, to)
	case 256:
		VMASKMOVPS(from, m.v, to)
	default:
		VMOVUPS(from, to)
	}
}

func (m mask) store(v reg.VecVirtual, to Mem) {
	switch m.w {
	case 512:
		VMOVUPS(v, m.k, to)
	case 256:
		VMASKMOVPS(v, m.v, to)
	default:
		VMOVUPS(v, to)
	}
}

// others puts fill into the lanes that are not selected.
func (m mask) others(fill, v reg.VecVirtual) {
	switch m.w {
	case 512:
		VBLENDMPS(v, fill, m.k, v)
	case 256:
		VBLENDVPS(m.v, v, fill, v)
	}
}

// each emits a loop over n floats: body is called with the index of a vector, times, and the mask of what of it there is, once for
// whole vectors and once for the rest.
func each(w int, n reg.GPVirtual, body func(i reg.GPVirtual, m mask)) {
	lanes := w / 32
	i, left := GP64(), GP64()
	next, tail, done := label("next"), label("tail"), label("done")
	XORQ(i, i)
	MOVQ(n, left)
	SUBQ(Imm(uint64(lanes)), left)
	JL(LabelRef(tail))
	Label(next)
	body(i, mask{})
	ADDQ(Imm(uint64(lanes)), i)
	SUBQ(Imm(uint64(lanes)), left)
	JGE(LabelRef(next))
	Label(tail)
	ADDQ(Imm(uint64(lanes)), left)
	JEQ(LabelRef(done))
	body(i, maskOf(w, left))
	Label(done)
}

func end() {
	VZEROUPPER()
	RET()
}

func float(i reg.GPVirtual, base reg.GPVirtual) Mem { return at(base, i, 4, 0) }

// scalar returns the float parameter in every lane.
func scalar(w int, name string) reg.VecVirtual {
	v := vec(w)
	VBROADCASTSS(paramMem(name), v)
	return v
}

func paramMem(name string) Mem {
	b, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

func axpy(name string, w int) {
	function(name, w, "func(y *float32, a float32, x *float32, n int)")
	y, x, n, a := param("y"), param("x"), param("n"), scalar(w, "a")
	each(w, n, func(i reg.GPVirtual, m mask) {
		u, v := vec(w), vec(w)
		m.load(float(i, x), u)
		m.load(float(i, y), v)
		VFMADD231PS(u, a, v)
		m.store(v, float(i, y))
	})
	end()
}

func scale(name string, w int) {
	function(name, w, "func(x *float32, a float32, n int)")
	x, n, a := param("x"), param("n"), scalar(w, "a")
	each(w, n, func(i reg.GPVirtual, m mask) {
		v := vec(w)
		m.load(float(i, x), v)
		VMULPS(a, v, v)
		m.store(v, float(i, x))
	})
	end()
}

func add(name string, w int) {
	function(name, w, "func(y, x *float32, n int)")
	y, x, n := param("y"), param("x"), param("n")
	each(w, n, func(i reg.GPVirtual, m mask) {
		u, v := vec(w), vec(w)
		m.load(float(i, x), u)
		m.load(float(i, y), v)
		VADDPS(u, v, v)
		m.store(v, float(i, y))
	})
	end()
}

func mulScaled(name string, w int) {
	function(name, w, "func(dst, x, w *float32, a, offset float32, n int)")
	dst, x, weight, n, a, offset := param("dst"), param("x"), param("w"), param("n"), scalar(w, "a"), scalar(w, "offset")
	each(w, n, func(i reg.GPVirtual, m mask) {
		u, v := vec(w), vec(w)
		m.load(float(i, weight), u)
		VADDPS(offset, u, u)
		m.load(float(i, x), v)
		VMULPS(a, v, v)
		VMULPS(u, v, v)
		m.store(v, float(i, dst))
	})
	end()
}

func maximum(name string, w int) {
	function(name, w, "func(x *float32, n int) float32")
	x, n := param("x"), param("n")
	least := broadcastF(w, float32(math.Inf(-1)))
	top := vec(w)
	VMOVAPS(least, top)
	each(w, n, func(i reg.GPVirtual, m mask) {
		v := vec(w)
		m.load(float(i, x), v)
		m.others(least, v)
		VMAXPS(top, v, top) // a NaN in v leaves top
	})
	h := YMM()
	if w == 512 {
		VEXTRACTF64X4(Imm(1), top, h)
		VMAXPS(h, top.AsY(), h)
	} else {
		h = top
	}
	r := XMM()
	extract128(1, h, r)
	VMAXPS(h.AsX(), r, r)
	t := XMM()
	VPERMILPS(Imm(swap128), r, t)
	VMAXPS(t, r, r)
	VPERMILPS(Imm(swap64), r, t)
	VMAXPS(t, r, r)
	Store(r, ReturnIndex(0))
	end()
}

func widen(name string, w int, f floatFormat) {
	function(name, w, "func(dst *float32, src *byte, n int)")
	dst, src, n := param("dst"), param("src"), param("n")
	i, next := GP64(), label("next")
	XORQ(i, i)
	Label(next)
	v := vec(w)
	f.load(at(src, i, 2, 0), nil, v)
	VMOVUPS(v, float(i, dst))
	ADDQ(Imm(uint64(w/32)), i)
	CMPQ(i, n)
	JL(LabelRef(next))
	end()
}

// dot has four sums, so that the additions overlap.
func dot(name string, w int) {
	function(name, w, "func(a, b *float32, n int) float32")
	a, b, n := param("a"), param("b"), param("n")
	lanes := w / 32
	acc := zeros(4, w)
	next, rest := label("next"), label("rest")
	Label(next)
	CMPQ(n, Imm(uint64(4*lanes)))
	JL(LabelRef(rest))
	for v := range acc {
		t := vec(w)
		VMOVUPS(off(a, 4*lanes*v), t)
		VFMADD231PS(off(b, 4*lanes*v), t, acc[v])
	}
	ADDQ(I32(int32(16*lanes)), a)
	ADDQ(I32(int32(16*lanes)), b)
	SUBQ(Imm(uint64(4*lanes)), n)
	JMP(LabelRef(next))
	Label(rest)
	each(w, n, func(i reg.GPVirtual, m mask) {
		u, v := vec(w), vec(w)
		m.load(float(i, a), u)
		m.load(float(i, b), v)
		VFMADD231PS(u, v, acc[0])
	})
	VADDPS(acc[1], acc[0], acc[0])
	VADDPS(acc[3], acc[2], acc[2])
	VADDPS(acc[2], acc[0], acc[0])
	Store(sumLanes(acc[0]).AsX(), ReturnIndex(0))
	end()
}

// dotRows takes four rows at a time and the rest singly, with one sum per row and lane either way, so that a row's result does not
// depend on its place.
func dotRows(name string, w int) {
	function(name, w, "func(dst, q, k *float32, size, stride, n int)")
	dst, q, k, size, stride, n := param("dst"), param("q"), param("k"), param("size"), param("stride"), param("n")
	SHLQ(Imm(2), stride)
	fours, ones, done := label("fours"), label("ones"), label("done")
	k3 := GP64()
	for _, rows := range []int{4, 1} {
		if rows == 4 {
			Label(fours)
			CMPQ(n, Imm(4))
			JL(LabelRef(ones))
			LEAQ(at(stride, stride, 2, 0), k3)
			ADDQ(k, k3)
		} else {
			Label(ones)
			TESTQ(n, n)
			JEQ(LabelRef(done))
		}
		acc := zeros(rows, w)
		k1, k2 := GP64(), GP64()
		if rows == 4 {
			LEAQ(at(k, stride, 1, 0), k1)
			LEAQ(at(k, stride, 2, 0), k2)
		}
		bases := []reg.GPVirtual{k, k1, k2, k3}[:rows]
		each(w, size, func(i reg.GPVirtual, m mask) {
			u := vec(w)
			m.load(float(i, q), u)
			for r, base := range bases {
				if m.w == 0 {
					VFMADD231PS(float(i, base), u, acc[r])
					continue
				}
				v := vec(w)
				m.load(float(i, base), v)
				VFMADD231PS(v, u, acc[r])
			}
		})
		if rows == 4 {
			VMOVUPS(sumFour(acc[0], acc[1], acc[2], acc[3]), off(dst, 0))
			LEAQ(at(k, stride, 4, 0), k)
			ADDQ(Imm(16), dst)
			SUBQ(Imm(4), n)
			JMP(LabelRef(fours))
		} else {
			VMOVSS(sumLanes(acc[0]), off(dst, 0))
			ADDQ(stride, k)
			ADDQ(Imm(4), dst)
			DECQ(n)
			JMP(LabelRef(ones))
		}
	}
	Label(done)
	end()
}

// axpyRows keeps eight vectors of acc in registers while all rows pass, then four, then single ones.
func axpyRows(name string, w int) {
	function(name, w, "func(acc, p, v *float32, size, stride, n int)")
	acc, p, v, size, stride, n := param("acc"), param("p"), param("v"), param("size"), param("stride"), param("n")
	SHLQ(Imm(2), stride)
	lanes := w / 32
	columns := func(count int, i reg.GPVirtual, m mask) {
		sum := vecs(count, w)
		base, j, next := GP64(), GP64(), label("rows")
		at0 := func(b reg.GPVirtual, c int) Mem { return at(b, i, 4, 4*lanes*c) }
		for c := range sum {
			m.load(at0(acc, c), sum[c])
		}
		MOVQ(v, base)
		XORQ(j, j)
		Label(next)
		f := vec(w)
		VBROADCASTSS(at(p, j, 4, 0), f)
		for c := range sum {
			if m.w == 0 {
				VFMADD231PS(at0(base, c), f, sum[c])
				continue
			}
			t := vec(w)
			m.load(at0(base, c), t)
			VFMADD231PS(t, f, sum[c])
		}
		ADDQ(stride, base)
		INCQ(j)
		CMPQ(j, n)
		JL(LabelRef(next))
		for c := range sum {
			m.store(sum[c], at0(acc, c))
		}
	}
	zeroIndex := GP64()
	XORQ(zeroIndex, zeroIndex)
	for _, count := range []int{8, 4} {
		next, rest := label("columns"), label("rest")
		Label(next)
		CMPQ(size, Imm(uint64(count*lanes)))
		JL(LabelRef(rest))
		columns(count, zeroIndex, mask{})
		ADDQ(I32(int32(4*count*lanes)), acc)
		ADDQ(I32(int32(4*count*lanes)), v)
		SUBQ(I32(int32(count*lanes)), size)
		JMP(LabelRef(next))
		Label(rest)
	}
	each(w, size, func(i reg.GPVirtual, m mask) { columns(1, i, m) })
	end()
}

// exponential holds the constants of exp.
type exponential struct {
	w                                     int
	log2e, ln2hi, ln2lo, least, most, one reg.VecVirtual
	poly                                  []Mem
}

// newExponential prepares for exp of arguments that are clamped to [least, most].
func newExponential(w int, least, most float32) *exponential {
	e := &exponential{
		w: w, log2e: broadcastF(w, math.Log2E), ln2hi: broadcastF(w, 0.693359375), ln2lo: broadcastF(w, -2.12194440e-4),
		least: broadcastF(w, least), most: broadcastF(w, most), one: broadcastF(w, 1),
	}
	// The polynomial of Cephes' expf (S. Moshier): exp(r) = 1 + r + r²·p(r) for |r| <= ln(2)/2.
	for i, c := range []float32{1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1} {
		v := make([]uint32, w/32)
		for l := range v {
			v[l] = math.Float32bits(c)
		}
		e.poly = append(e.poly, dwordsConst(fmt.Sprintf("exp%d_%d", i, w), v...))
	}
	return e
}

// exp replaces x by its exponential; a NaN stays one.
func (e *exponential) exp(x reg.VecVirtual) {
	VMAXPS(x, e.least, x) // the first operand is taken if it is a NaN
	VMINPS(x, e.most, x)
	n, r, p := vec(e.w), x, vec(e.w)
	VMULPS(e.log2e, x, n)
	if e.w == 512 {
		VRNDSCALEPS(Imm(0), n, n)
	} else {
		VROUNDPS(Imm(0), n, n)
	}
	VFNMADD231PS(e.ln2hi, n, r)
	VFNMADD231PS(e.ln2lo, n, r)
	VMOVUPS(e.poly[0], p)
	for _, c := range e.poly[1:] {
		VFMADD213PS(c, r, p)
	}
	square := vec(e.w)
	VMULPS(r, r, square)
	VFMADD213PS(r, square, p)
	VADDPS(e.one, p, p)
	VCVTPS2DQ(n, n)
	VPSLLD(Imm(23), n, n)
	VPADDD(n, p, x)
}

func siluMul(name string, w int) {
	function(name, w, "func(dst, gate, up *float32, n int)")
	dst, gate, up, n := param("dst"), param("gate"), param("up"), param("n")
	e := newExponential(w, -87, 88)
	each(w, n, func(i reg.GPVirtual, m mask) {
		g, u, t := vec(w), vec(w), vec(w)
		m.load(float(i, gate), g)
		m.load(float(i, up), u)
		zero(t)
		VSUBPS(g, t, t)
		e.exp(t)
		VADDPS(e.one, t, t)
		VDIVPS(t, g, g)
		VMULPS(u, g, g)
		m.store(g, float(i, dst))
	})
	end()
}

func expSum(name string, w int) {
	function(name, w, "func(x *float32, shift float32, n int) float32")
	x, n, shift := param("x"), param("n"), scalar(w, "shift")
	e := newExponential(w, -87, 88)
	least := broadcastF(w, float32(math.Inf(-1)))
	sum := zeros(1, w)[0]
	each(w, n, func(i reg.GPVirtual, m mask) {
		v, t := vec(w), vec(w)
		m.load(float(i, x), v)
		VSUBPS(shift, v, v)
		m.others(least, v)
		VMOVAPS(v, t)
		e.exp(t)
		if w == 512 {
			k := K()
			VCMPPS(Imm(5), e.least, v, k) // not less than
			VMOVAPS_Z(t, k, t)
		} else {
			VCMPPS(Imm(5), e.least, v, v)
			VANDPS(v, t, t)
		}
		VADDPS(t, sum, sum)
		m.store(t, float(i, x))
	})
	Store(sumLanes(sum).AsX(), ReturnIndex(0))
	end()
}

// quantize emits the integer form of whole blocks.
func quantize(name string, w int) {
	function(name, w, "func(q *int8, d *float32, s, half *int32, x *float32, blocks int)")
	q, d, s, half, x, n := param("q"), param("d"), param("s"), param("half"), param("x"), param("blocks")
	magnitude := broadcast(w, 0x7fffffff)
	ones, ones16 := broadcast(256, 0x01010101), broadcast(256, 0x00010001)
	lowest := broadcast(256, 0x81818181) // -127
	divisor := XMM()
	VMOVSS(dwordsConst("f127", math.Float32bits(127), 0), divisor)
	order := YMM()
	VMOVDQU(dwordsConst("packed", 0, 4, 1, 5, 2, 6, 3, 7), order)
	parts := 1024 / w
	next, nothing, done := label("block"), label("nothing"), label("stored")
	Label(next)
	v := vecs(parts, w)
	for i := range v {
		VMOVUPS(off(x, w/8*i), v[i])
	}
	var top reg.VecVirtual // the largest of the bits without the sign: a NaN is above infinity
	for i := range v {
		t := vec(w)
		and(v[i], magnitude, t)
		if top != nil {
			VPMAXUD(top, t, t)
		}
		top = t
	}
	if w == 512 {
		t := YMM()
		VEXTRACTI64X4(Imm(1), top, t)
		VPMAXUD(top.AsY(), t, t)
		top = t
	}
	m, t := XMM(), XMM()
	extract128(1, top, m)
	VPMAXUD(top.AsX(), m, m)
	for _, swap := range []uint64{swap128, swap64} {
		VPSHUFD(Imm(swap), m, t)
		VPMAXUD(t, m, m)
	}
	VDIVSS(divisor, m, m)
	VMOVSS(m, off(d, 0))
	bits := GP32()
	VMOVD(m, bits)
	DECL(bits)
	CMPL(bits, U32(0x7f7fffff)) // 0, infinite and NaN scales give zeros
	JCC(LabelRef(nothing))
	scale := vec(w)
	VBROADCASTSS(m, scale)
	for i := range v {
		VDIVPS(scale, v[i], v[i])
		VCVTPS2DQ(v[i], v[i])
	}
	bytes := YMM()
	if w == 512 {
		a, b := YMM(), YMM() // saturated bytes in the low halves
		VPMOVSDW(v[0], a)
		VPMOVSDW(v[1], b)
		VPACKSSWB(b, a, bytes)
		VPERMQ(Imm(0xd8), bytes, bytes)
	} else {
		VPACKSSDW(v[1], v[0], v[0])
		VPACKSSDW(v[3], v[2], v[2])
		VPACKSSWB(v[2], v[0], bytes)
		VPERMD(bytes, order, bytes)
	}
	VPMAXSB(lowest, bytes, bytes)
	load(bytes, off(q, 0))
	sums := YMM()
	VPMADDUBSW(bytes, ones, sums)
	VPMADDWD(ones16, sums, sums)
	pair := YMM()
	for _, swap := range []uint64{swap128, swap64} {
		VPSHUFD(Imm(swap), sums, pair)
		VPADDD(pair, sums, sums)
	}
	high := XMM()
	extract128(1, sums, high)
	first, second := GP32(), GP32()
	VMOVD(sums.AsX(), first)
	VMOVD(high, second)
	MOVL(first, off(half, 0))
	ADDL(first, second)
	MOVL(second, off(s, 0))
	JMP(LabelRef(done))
	Label(nothing)
	z := YMM()
	zero(z)
	load(z, off(q, 0))
	MOVL(U32(0), off(half, 0))
	MOVL(U32(0), off(s, 0))
	Label(done)
	ADDQ(Imm(32), q)
	ADDQ(Imm(4), d)
	ADDQ(Imm(4), s)
	ADDQ(Imm(4), half)
	ADDQ(U32(128), x)
	DECQ(n)
	JNE(LabelRef(next))
	end()
}

// transposeTiles copies the integer form of an activation row, in whole tiles, to the order of tiles.
func transposeTiles(name string, w int) {
	function(name, w, "func(tiles, q *int8, n int)")
	to, q, n := param("tiles"), param("q"), param("n")
	next := label("tile")
	Label(next)
	if w == 512 {
		var in [8]reg.VecVirtual
		for k := range in {
			first := k/4*8 + k%4
			in[k] = ZMM()
			loadLow(off(q, 32*first), in[k])
			VINSERTI64X4(Imm(1), off(q, 32*first+128), in[k], in[k])
		}
		for j, v := range transpose512(in) {
			VMOVDQU32(v, off(to, 64*j))
		}
	} else {
		for h := range 2 {
			var in [8]reg.VecVirtual
			for k := range in {
				in[k] = YMM()
				VMOVDQU(off(q, 256*h+32*k), in[k])
			}
			transpose256(in, func(j int, v reg.VecVirtual) { VMOVDQU(v, off(to, 64*j+32*h)) })
		}
	}
	ADDQ(I32(512), q)
	ADDQ(I32(512), to)
	DECQ(n)
	JNE(LabelRef(next))
	end()
}
