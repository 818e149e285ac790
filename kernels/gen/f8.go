package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func init() {
	target("f8", func() {
		for _, w := range []int{512, 256} {
			v := newSimd(w)
			function("f8Row"+v.isa(), w, "func(dst *float32, w *byte, stride, n int, x *float32, cols int)")
			dst := param("dst")
			f8Product(v, []reg.GPVirtual{param("x")}, func(sums []reg.VecVirtual) {
				VMOVSS(sums[0], off(dst, 0))
				ADDQ(Imm(4), dst)
			})
			v = newSimd(w)
			function("f8Rows"+v.isa(), w, "func(args *byte, w *byte, stride, n, cols int)")
			args, i := param("args"), GP64()
			XORQ(i, i)
			var x []reg.GPVirtual
			for g := range 4 {
				x = append(x, GP64())
				MOVQ(off(args, 32+8*g), x[g])
			}
			f8Product(v, x, func(sums []reg.VecVirtual) {
				for g, s := range sums {
					to := GP64()
					MOVQ(off(args, 8*g), to)
					VMOVSS(s, at(to, i, 4, 0))
				}
				INCQ(i)
			})
		}
	})
}

// f8Scale is how many columns share a scale, f8Step how many are converted at a time.
const (
	f8Scale = 128
	f8Step  = 32
)

// f8Product emits the product of weight rows with the activation rows x, and calls store with the sums of one weight row.
//
// A row is cols bytes of fp8 E4M3, then a float32 scale for each 128. Shifted to the fields of a binary16, a code is the 256th part of its
// value, whether normal or not. The code of NaN would become a number: the largest code of the row tells if there was one.
func f8Product(v *simd, x []reg.GPVirtual, store func(sums []reg.VecVirtual)) {
	row, n, cols := param("w"), param("n"), param("cols")
	i, end, scales := GP64(), GP64(), GP64()
	v.begin()
	var tail f8Tail
	tail.prepare(v, x, cols)

	Label("row")
	acc, p, most := make([]reg.VecVirtual, len(x)), make([]reg.VecVirtual, len(x)), v.new()
	for g := range acc {
		acc[g], p[g] = v.new(), v.new()
		zero(acc[g])
	}
	zero(most)
	XORQ(i, i)
	LEAQ(at(row, cols, 1, 0), scales)
	// note takes the codes, less their signs, to the largest.
	note := func(codes Op) {
		t := v.new()
		and(codes, v.inRegister(v.dwords(0x7f7f7f7f)), t)
		VPMAXUB(t, most, most)
	}
	begin := func() {
		for _, p := range p {
			zero(p)
		}
	}
	// step multiplies 32 columns, whose codes are in memory or the low bytes of a register; under masks of the vectors unless masks is nil.
	step := func(codes Op, activations func(g, k int) Mem, masks []reg.OpmaskVirtual) {
		for part := range f8Step * 16 / v.w {
			words := v.new()
			switch c := codes.(type) {
			case Mem:
				VPMOVSXBW(c.Offset(part*v.w/16), words)
			case reg.VecVirtual:
				if v.wide() {
					VPMOVSXBW(c.AsY(), words)
					break
				}
				bytes := XMM()
				extract128(part, c, bytes)
				VPMOVSXBW(bytes, words)
			}
			VPSLLW(Imm(7), words, words)
			and(v.dwords(0xbf80bf80), words, words)
			for k := range 2 {
				value := v.new()
				VCVTPH2PS(v.half(k, words), value)
				for g := range x {
					m := activations(g, 2*part+k)
					if masks != nil {
						VFMADD231PS(m, value, masks[k], p[g])
					} else {
						VFMADD231PS(m, value, p[g])
					}
				}
			}
		}
	}
	// finish adds the products with one scale.
	finish := func() {
		scale := v.new()
		VBROADCASTSS(off(scales, 0), scale)
		ADDQ(Imm(4), scales)
		for g := range x {
			VMULPS(v.dwords(math.Float32bits(256)), p[g], p[g])
			VFMADD231PS(scale, p[g], acc[g])
		}
	}
	inPlace := func(disp int) func(g, k int) Mem {
		return func(g, k int) Mem { return at(x[g], i, 4, 4*disp+k*v.w/8) }
	}

	MOVQ(cols, end)
	ANDQ(I32(-f8Scale), end)
	Label("block")
	CMPQ(i, end)
	JGE(LabelRef("rest"))
	begin()
	prefetch(at(row, i, 1, 0), f8Scale)
	for k := 0; k < f8Scale; k += v.w / 8 {
		note(at(row, i, 1, k))
	}
	for k := 0; k < f8Scale; k += f8Step {
		step(at(row, i, 1, k), inPlace(k), nil)
	}
	finish()
	ADDQ(I32(f8Scale), i)
	JMP(LabelRef("block"))

	Label("rest")
	CMPQ(i, cols)
	JGE(LabelRef("done"))
	begin()
	MOVQ(cols, end)
	ANDQ(I32(-f8Step), end)
	Label("step")
	CMPQ(i, end)
	JGE(LabelRef("tail"))
	codes := v.new()
	if v.wide() {
		loadLow(at(row, i, 1, 0), codes)
	} else {
		load(at(row, i, 1, 0), codes)
	}
	note(codes)
	step(codes, inPlace(0), nil)
	ADDQ(I32(f8Step), i)
	JMP(LabelRef("step"))
	Label("tail")
	CMPQ(i, cols)
	JGE(LabelRef("finish"))
	codes, activations := tail.load(v, row, x, i, cols)
	note(codes)
	step(codes, activations, tail.x)
	Label("finish")
	finish()

	Label("done")
	if v.wide() {
		k := K()
		VPCMPEQB(v.inRegister(v.dwords(0x7f7f7f7f)), most, k)
		KORTESTQ(k, k)
	} else {
		bits := GP32()
		VPCMPEQB(v.dwords(0x7f7f7f7f), most, most)
		VPMOVMSKB(most, bits)
		TESTL(bits, bits)
	}
	JEQ(LabelRef("store"))
	for _, a := range acc {
		load(constant(f8NaNs(v)), a)
	}
	Label("store")
	var sums []reg.VecVirtual
	for _, a := range acc {
		sums = append(sums, sumLanes(a))
	}
	store(sums)
	stride := param("stride")
	ADDQ(stride, row)
	DECQ(n)
	JNE(LabelRef("row"))
	VZEROUPPER()
	RET()
	v.end()
}

// half returns the lower or the upper half of x.
func (v *simd) half(k int, x reg.VecVirtual) Op {
	h := vec(v.w / 2)
	switch {
	case k == 0 && v.wide():
		return x.AsY()
	case k == 0:
		return x.AsX()
	case v.wide():
		VEXTRACTI64X4(Imm(1), x, h)
	default:
		VEXTRACTI128(Imm(1), x, h)
	}
	return h
}

// f8NaNs is a vector of NaN.
func f8NaNs(v *simd) (b []byte) {
	for range v.lanes {
		b = append(b, 0, 0, 0xc0, 0x7f)
	}
	return b
}

// f8Tail is what a row has after the last whole step: with AVX-512 under masks, with AVX2 copied, with zeros behind.
type f8Tail struct {
	codes reg.OpmaskVirtual
	x     []reg.OpmaskVirtual
	w, xs Mem
}

func (t *f8Tail) prepare(v *simd, x []reg.GPVirtual, cols reg.GPVirtual) {
	if !v.wide() {
		t.w, t.xs = AllocLocal(f8Step), AllocLocal(4*f8Step*len(x))
		tails(len(x), func(g int) reg.GPVirtual { return x[g] }, t.xs, f8Step)
		return
	}
	left, bits := GP64(), GP64()
	MOVQ(cols, left)
	ANDQ(Imm(f8Step-1), left)
	MOVQ(I32(-1), bits)
	BZHIQ(left, bits, bits)
	t.codes = K()
	KMOVQ(bits, t.codes)
	for k := range 2 {
		t.x = append(t.x, K())
		KMOVW(bits.As32(), t.x[k])
		SHRQ(Imm(16), bits)
	}
}

// load returns the codes from column i of the row on, and where the activations of vector k are.
func (t *f8Tail) load(v *simd, row reg.Register, x []reg.GPVirtual, i, cols reg.GPVirtual) (reg.VecVirtual, func(g, k int) Mem) {
	codes := v.new()
	if v.wide() {
		VMOVDQU8_Z(at(row, i, 1, 0), t.codes, codes)
		return codes, func(g, k int) Mem { return at(x[g], i, 4, 64*k) }
	}
	from, left := GP64(), GP64()
	LEAQ(at(row, i, 1, 0), from)
	MOVQ(cols, left)
	SUBQ(i, left)
	(&floatFormat{size: 1}).copyTail(from, left, t.w, f8Step)
	load(t.w, codes)
	return codes, func(g, k int) Mem { return t.xs.Offset(4 * (f8Step*g + 8*k)) }
}
