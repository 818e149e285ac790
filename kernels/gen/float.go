package main

import (
	"slices"

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
			f.rows(f.name+"RowsAVX512", 512)
			f.row(f.name+"RowAVX2", 256)
			f.rows(f.name+"RowsAVX2", 256)
		}
	})
}

// vectors returns how many vectors the columns of a product are summed in. Several hide the latency of the additions; with AVX-512, two
// leave registers for two weight rows with four activation rows.
func vectors(w int) int {
	if w == 512 {
		return 2
	}
	return 4
}

// row emits the product of n weight rows with one activation row, rows that with four.
func (f *floatFormat) row(name string, w int) {
	function(name, w, "func(dst *float32, w *byte, stride, n int, x *float32, cols int)")
	dst := param("dst")
	f.product(w, 1, 1, func(int) reg.GPVirtual { return param("x") }, func(acc [][]reg.VecVirtual) {
		VMOVSS(sumLanes(acc[0][0]), off(dst, 0))
		ADDQ(Imm(4), dst)
	})
}

func (f *floatFormat) rows(name string, w int) {
	function(name, w, "func(args *byte, w *byte, stride, n, cols int)")
	args, i := param("args"), GP64() // floatArgs: four pointers to results, four to activation rows
	XORQ(i, i)
	pointer := func(n int) reg.GPVirtual {
		p := GP64()
		MOVQ(off(args, 8*n), p)
		return p
	}
	weights := 1
	if w == 512 {
		weights = 2
	}
	f.product(w, weights, 4, func(g int) reg.GPVirtual { return pointer(4 + g) }, func(acc [][]reg.VecVirtual) {
		for r, a := range acc {
			sums := sumFour(a[0], a[1], a[2], a[3])
			for g := range 4 {
				VEXTRACTPS(Imm(uint64(g)), sums, at(pointer(g), i, 4, 4*r))
			}
		}
		ADDQ(Imm(uint64(len(acc))), i)
	})
}

// product emits the loops over count activation rows, whose pointers pointer loads, for weights weight rows at a time and then single
// ones; store is called at their end, with the sum of the vectors by weight row and activation row.
//
// With AVX2 four activation rows of four vectors do not fit the registers, so they are taken in pairs.
func (f *floatFormat) product(w, weights, count int, pointer func(g int) reg.GPVirtual, store func(acc [][]reg.VecVirtual)) {
	lanes := w / 32
	step := vectors(w) * lanes
	row, n, stride := param("w"), param("n"), param("stride")
	masks := make([]reg.OpmaskVirtual, vectors(w))
	var tailW, tailX Mem
	if w == 512 {
		// One mask per vector for what is left after the last whole step.
		left, bits := GP64(), GP64()
		Load(Param("cols"), left)
		ANDQ(Imm(uint64(step-1)), left)
		MOVQ(I32(-1), bits)
		BZHIQ(left, bits, bits)
		for v := range masks {
			masks[v] = K()
			KMOVW(bits.As32(), masks[v])
			SHRQ(Imm(16), bits)
		}
	} else {
		// What is left is copied, with zeros behind: of the activations here, of the weights in each row.
		tailW, tailX = AllocLocal(4*step), AllocLocal(4*step*count)
		tails(count, pointer, tailX, step)
	}
	for _, weights := range slices.Compact([]int{weights, 1}) {
		nextRow, enough := label("row"), label("rest")
		Label(nextRow)
		CMPQ(n, Imm(uint64(weights)))
		JL(LabelRef(enough))
		sums := make([][]reg.VecVirtual, weights)
		group := count
		if w == 256 {
			group = min(group, 2)
		}
		for from := 0; from < count; from += group {
			x := make([]reg.GPVirtual, group)
			for g := range x {
				x[g] = pointer(from + g)
			}
			acc := make([][][]reg.VecVirtual, weights)
			for r := range acc {
				for range group {
					acc[r] = append(acc[r], zeros(vectors(w), w))
				}
			}
			nextStep, tail, done := label("step"), label("tail"), label("done")
			w32, i, left := GP64(), GP64(), GP64()
			MOVQ(row, w32)
			XORQ(i, i)
			Load(Param("cols"), left)
			SUBQ(Imm(uint64(step)), left)
			JL(LabelRef(tail))
			Label(nextStep)
			prefetch(off(w32, 0), step*f.size)
			weight := func(r, v int) Mem {
				if r == 1 {
					return at(w32, stride, 1, v*lanes*f.size)
				}
				return off(w32, v*lanes*f.size)
			}
			for v := range vectors(w) {
				t := vecs(weights, w)
				for r := range t {
					f.load(weight(r, v), nil, t[r])
				}
				for g := range x {
					m := at(x[g], i, 4, 4*v*lanes)
					if weights == 1 {
						VFMADD231PS(m, t[0], acc[0][g][v])
						continue
					}
					u := vec(w)
					VMOVUPS(m, u)
					for r := range t {
						VFMADD231PS(u, t[r], acc[r][g][v])
					}
				}
			}
			ADDQ(U32(uint32(step*f.size)), w32)
			ADDQ(Imm(uint64(step)), i)
			SUBQ(Imm(uint64(step)), left)
			JGE(LabelRef(nextStep))
			Label(tail)
			ADDQ(Imm(uint64(step)), left)
			JEQ(LabelRef(done))
			if w == 256 {
				f.copyTail(w32, left, tailW, step)
			}
			for v := range vectors(w) {
				for r := range weights {
					t := vec(w)
					if w == 512 {
						f.load(weight(r, v), masks[v], t)
					} else {
						f.load(tailW.Offset(v*lanes*f.size), nil, t)
					}
					for g := range x {
						if w == 512 {
							VFMADD231PS(at(x[g], i, 4, 4*v*lanes), t, masks[v], acc[r][g][v])
						} else {
							VFMADD231PS(tailX.Offset(4*(step*(from+g)+v*lanes)), t, acc[r][g][v])
						}
					}
				}
			}
			Label(done)
			for r := range acc {
				for _, a := range acc[r] {
					for i := 0; i < len(a); i += 2 {
						VADDPS(a[i+1], a[i], a[i])
					}
					if len(a) == 4 {
						VADDPS(a[2], a[0], a[0])
					}
					sums[r] = append(sums[r], a[0])
				}
			}
		}
		store(sums)
		for range weights {
			ADDQ(stride, row)
		}
		SUBQ(Imm(uint64(weights)), n)
		JMP(LabelRef(nextRow))
		Label(enough)
	}
	VZEROUPPER()
	RET()
}

// tails copies the last columns of each activation row, those after the last whole step, to consecutive steps of to.
func tails(count int, pointer func(g int) reg.GPVirtual, to Mem, step int) {
	z := YMM()
	zero(z)
	for i := 0; i < 4*step*count; i += 32 {
		VMOVUPS(z, to.Offset(i))
	}
	whole, left, done := GP64(), GP64(), label("noTail")
	Load(Param("cols"), whole)
	MOVQ(whole, left)
	ANDQ(Imm(uint64(step-1)), left)
	JEQ(LabelRef(done))
	SUBQ(left, whole)
	for g := range count {
		from, i, t, next := GP64(), GP64(), GP32(), label("copy")
		LEAQ(at(pointer(g), whole, 4, 0), from)
		XORQ(i, i)
		Label(next)
		MOVL(at(from, i, 4, 0), t)
		MOVL(t, to.Offset(4*step*g).Idx(i, 4))
		INCQ(i)
		CMPQ(i, left)
		JL(LabelRef(next))
	}
	Label(done)
}

// copyTail copies left weights to to, with zeros behind.
func (f *floatFormat) copyTail(from, left reg.GPVirtual, to Mem, step int) {
	z := YMM()
	zero(z)
	for i := 0; i < step*f.size; i += 32 {
		VMOVUPS(z, to.Offset(i))
	}
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
