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
			f8Row(newSimd(w))
		}
	})
}

// f8Scale is how many columns share a scale.
const f8Scale = 128

// f8Row emits the product of weight rows with one activation row.
//
// A row is cols bytes of fp8 E4M3, then a float32 scale for each 128. Shifted to the fields of a binary16, a code is the 256th part of its
// value, whether normal or not. The code of NaN would become a number: the largest code of the row tells if there was one.
func f8Row(v *simd) {
	function("f8Row"+v.isa(), v.w, "func(dst *float32, w *byte, stride, n int, x *float32, cols int)")
	dst, x, row, n, cols := param("dst"), param("x"), param("w"), param("n"), param("cols")
	i, end, scales := GP64(), GP64(), GP64()
	v.begin()
	var tail f8Tail
	tail.prepare(v, x, cols)

	Label("row")
	acc, p, most := v.new(), v.new(), v.new()
	zero(acc)
	zero(most)
	XORQ(i, i)
	LEAQ(at(row, cols, 1, 0), scales)
	// note takes the codes, less their signs, to the largest.
	note := func(codes Op) {
		t := v.new()
		and(codes, v.inRegister(v.dwords(0x7f7f7f7f)), t)
		VPMAXUB(t, most, most)
	}
	// step multiplies 32 columns, whose codes are in memory or the low bytes of a register.
	step := func(codes Op, activations func(k int) Op) {
		for part := range floatStep * 16 / v.w {
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
				VFMADD231PS(activations(2*part+k), value, p)
			}
		}
	}
	// finish adds the products with one scale.
	finish := func() {
		scale := v.new()
		VBROADCASTSS(off(scales, 0), scale)
		ADDQ(Imm(4), scales)
		VMULPS(v.dwords(math.Float32bits(256)), p, p)
		VFMADD231PS(scale, p, acc)
	}
	inPlace := func(disp int) func(k int) Op {
		return func(k int) Op { return at(x, i, 4, 4*disp+k*v.w/8) }
	}

	MOVQ(cols, end)
	ANDQ(I32(-f8Scale), end)
	Label("block")
	CMPQ(i, end)
	JGE(LabelRef("rest"))
	zero(p)
	prefetch(at(row, i, 1, 0), f8Scale)
	for k := 0; k < f8Scale; k += v.w / 8 {
		note(at(row, i, 1, k))
	}
	for k := 0; k < f8Scale; k += floatStep {
		step(at(row, i, 1, k), inPlace(k))
	}
	finish()
	ADDQ(I32(f8Scale), i)
	JMP(LabelRef("block"))

	Label("rest")
	CMPQ(i, cols)
	JGE(LabelRef("done"))
	zero(p)
	MOVQ(cols, end)
	ANDQ(I32(-floatStep), end)
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
	step(codes, inPlace(0))
	ADDQ(I32(floatStep), i)
	JMP(LabelRef("step"))
	Label("tail")
	CMPQ(i, cols)
	JGE(LabelRef("finish"))
	codes, activations := tail.load(v, row, x, i, cols)
	note(codes)
	step(codes, activations)
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
	load(constant(f8NaNs(v)), acc)
	Label("store")
	VMOVSS(sumLanes(acc), off(dst, 0))
	ADDQ(Imm(4), dst)
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

// f8Tail is what a row has after the last whole step, zeros behind it: with AVX-512 under masks, with AVX2 copied.
type f8Tail struct {
	codes reg.OpmaskVirtual
	x     []reg.OpmaskVirtual
	w, xs Mem
}

func (t *f8Tail) prepare(v *simd, x, cols reg.GPVirtual) {
	if !v.wide() {
		t.w, t.xs = AllocLocal(floatStep), AllocLocal(4*floatStep)
		tails(x, t.xs)
		return
	}
	left, bits := GP64(), GP64()
	MOVQ(cols, left)
	ANDQ(Imm(floatStep-1), left)
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

// load returns the codes from column i of the row on, and the activations of vector k.
func (t *f8Tail) load(v *simd, row reg.Register, x, i, cols reg.GPVirtual) (reg.VecVirtual, func(k int) Op) {
	codes := v.new()
	if v.wide() {
		VMOVDQU8_Z(at(row, i, 1, 0), t.codes, codes)
		return codes, func(k int) Op {
			u := v.new()
			VMOVUPS_Z(at(x, i, 4, 64*k), t.x[k], u)
			return u
		}
	}
	from, left := GP64(), GP64()
	LEAQ(at(row, i, 1, 0), from)
	MOVQ(cols, left)
	SUBQ(i, left)
	(&floatFormat{size: 1}).copyTail(from, left, t.w, floatStep)
	load(t.w, codes)
	return codes, func(k int) Op { return t.xs.Offset(32 * k) }
}
