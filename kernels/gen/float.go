package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// floatFormat is a format whose values are floats: size bytes each, widened by load into a register, with a mask if k is not nil.
type floatFormat struct {
	name string
	size int
	load func(from Mem, k reg.Register, to reg.VecVirtual)
}

var floatFormats = []floatFormat{
	{"f32", 4, func(from Mem, k reg.Register, to reg.VecVirtual) {
		if k != nil {
			VMOVUPS_Z(from, k, to)
		} else {
			VMOVUPS(from, to)
		}
	}},
	{"f16", 2, func(from Mem, k reg.Register, to reg.VecVirtual) {
		if k != nil {
			VCVTPH2PS_Z(from, k, to)
		} else {
			VCVTPH2PS(from, to)
		}
	}},
	{"bf16", 2, func(from Mem, k reg.Register, to reg.VecVirtual) {
		if k != nil {
			VPMOVZXWD_Z(from, k, to)
		} else {
			VPMOVZXWD(from, to)
		}
		VPSLLD(Imm(16), to, to)
	}},
}

func init() {
	target("float", func() {
		for _, f := range floatFormats {
			f.row(f.name+"RowAVX512", 512)
			f.row(f.name+"RowAVX2", 256)
		}
	})
}

// floatStep is how many columns a step of every float kernel has: those of all its vectors.
const floatStep = 32

// vectors returns how many vectors the columns of a product are summed in. Several hide the latency of the additions.
func vectors(w int) int { return floatStep * 32 / w }

// row emits the product of n weight rows with one activation row.
func (f *floatFormat) row(name string, w int) {
	function(name, w, "func(dst *float32, w *byte, stride, n int, x *float32, cols int)")
	lanes := w / 32
	dst, row, n, x := param("dst"), param("w"), param("n"), param("x")
	var masks []reg.OpmaskVirtual
	var tailW, tailX Mem
	if w == 512 {
		// One mask per vector for what is left after the last whole step.
		left, bits := GP64(), GP64()
		Load(Param("cols"), left)
		ANDQ(Imm(floatStep-1), left)
		MOVQ(I32(-1), bits)
		BZHIQ(left, bits, bits)
		for v := range vectors(w) {
			masks = append(masks, K())
			KMOVW(bits.As32(), masks[v])
			SHRQ(Imm(16), bits)
		}
	} else {
		// What is left is copied, with zeros behind: of the activations here, of the weights in each row.
		tailW, tailX = AllocLocal(4*floatStep), AllocLocal(4*floatStep)
		tails(x, tailX)
	}
	Label("row")
	acc := zeros(vectors(w), w)
	w32, i, left := GP64(), GP64(), GP64()
	MOVQ(row, w32)
	XORQ(i, i)
	Load(Param("cols"), left)
	SUBQ(Imm(floatStep), left)
	JL(LabelRef("tail"))
	Label("step")
	prefetch(off(w32, 0), floatStep*f.size)
	for v, a := range acc {
		t := vec(w)
		f.load(off(w32, v*lanes*f.size), nil, t)
		VFMADD231PS(at(x, i, 4, 4*v*lanes), t, a)
	}
	ADDQ(U32(uint32(floatStep*f.size)), w32)
	ADDQ(Imm(floatStep), i)
	SUBQ(Imm(floatStep), left)
	JGE(LabelRef("step"))
	Label("tail")
	ADDQ(Imm(floatStep), left)
	JEQ(LabelRef("done"))
	if w == 256 {
		f.copyTail(w32, left, tailW, floatStep)
	}
	for v, a := range acc {
		t := vec(w)
		if w == 256 {
			f.load(tailW.Offset(v*lanes*f.size), nil, t)
			VFMADD231PS(tailX.Offset(4*v*lanes), t, a)
			continue
		}
		u := vec(w)
		f.load(off(w32, v*lanes*f.size), masks[v], t)
		VMOVUPS_Z(at(x, i, 4, 4*v*lanes), masks[v], u)
		VFMADD231PS(u, t, a)
	}
	Label("done")
	for i := 0; i < len(acc); i += 2 {
		VADDPS(acc[i+1], acc[i], acc[i])
	}
	if len(acc) == 4 {
		VADDPS(acc[2], acc[0], acc[0])
	}
	VMOVSS(sumLanes(acc[0]), off(dst, 0))
	ADDQ(Imm(4), dst)
	stride := param("stride")
	ADDQ(stride, row)
	DECQ(n)
	JNE(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// tails copies the last columns of the activation row x, those after the last whole step, to to, with zeros behind.
func tails(x reg.GPVirtual, to Mem) {
	(&floatFormat{size: 4}).clear(to, floatStep)
	whole, left, from := GP64(), GP64(), GP64()
	Load(Param("cols"), whole)
	MOVQ(whole, left)
	ANDQ(Imm(floatStep-1), left)
	JEQ(LabelRef("noTail"))
	SUBQ(left, whole)
	LEAQ(at(x, whole, 4, 0), from)
	(&floatFormat{size: 4}).copyTail(from, left, to, floatStep)
	Label("noTail")
}

// clear sets n values to zeros.
func (f *floatFormat) clear(to Mem, n int) {
	z := YMM()
	zero(z)
	for i := 0; i < n*f.size; i += 32 {
		VMOVUPS(z, to.Offset(i))
	}
}

// copyTail copies left weights to to, with zeros behind.
func (f *floatFormat) copyTail(from, left reg.GPVirtual, to Mem, step int) {
	f.clear(to, step)
	i, next := GP64(), label("copy")
	XORQ(i, i)
	Label(next)
	switch f.size {
	case 4:
		t := GP32()
		MOVL(at(from, i, 4, 0), t)
		MOVL(t, to.Idx(i, 4))
	case 2:
		t := GP16()
		MOVW(at(from, i, 2, 0), t)
		MOVW(t, to.Idx(i, 2))
	default:
		t := GP8()
		MOVB(at(from, i, 1, 0), t)
		MOVB(t, to.Idx(i, 1))
	}
	INCQ(i)
	CMPQ(i, left)
	JL(LabelRef(next))
}
