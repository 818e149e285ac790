package main

import (
	"encoding/binary"
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Operands are in avo's order: the destination is last. Other widths of a register: v.AsX(), v.AsY(), v.AsZ().

// wide says that the function being emitted is one for AVX-512, in which avo uses all 32 vector registers at any width. Some operations
// have another name then, since the old ones know 16 registers: load, and, or, xor, insert128 and extract128 do so. A name
// that knows too few makes the assembler say "invalid instruction".
var wide bool

// function begins a function for AVX-512 (w=512) or AVX2 (w=256). Its pointers do not escape: no function keeps one.
func function(name string, w int, signature string) {
	wide = w == 512
	TEXT(name, 4, signature) // NOSPLIT: the frames are small
	Pragma("noescape")
}

// vpdpbusd adds to each 32-bit lane of acc the four products of unsigned bytes of u with signed bytes of x. avo 0.5 does not know it.
func vpdpbusd(x, u, acc Op) {
	Instruction(&ir.Instruction{
		Opcode: "VPDPBUSD", Operands: []Op{x, u, acc}, Inputs: []Op{x, u, acc}, Outputs: []Op{acc}, ISA: []string{"AVX512VNNI"},
	})
}

func vec(w int) reg.VecVirtual {
	switch w {
	case 128:
		return XMM()
	case 256:
		return YMM()
	}
	return ZMM()
}

func vecs(n, w int) []reg.VecVirtual {
	v := make([]reg.VecVirtual, n)
	for i := range v {
		v[i] = vec(w)
	}
	return v
}

// zero clears v. avo takes a VPXORD of a register with itself for a use of it, and must be told.
func zero(v reg.VecVirtual) {
	opcode := "VPXOR"
	if wide {
		opcode = "VPXORD"
	}
	Instruction(&ir.Instruction{Opcode: opcode, Operands: []Op{v, v, v}, Outputs: []Op{v}})
}

func zeros(n, w int) []reg.VecVirtual {
	v := vecs(n, w)
	for _, v := range v {
		zero(v)
	}
	return v
}

// load moves a whole unaligned vector, from or to memory.
func load(from, to Op) {
	if wide {
		VMOVDQU32(from, to)
	} else {
		VMOVDQU(from, to)
	}
}

// loadLow loads the low 256 bits of a ZMM and clears the rest. avo would take the rest for undefined since the start of the function,
// and keep a register for it.
func loadLow(from Mem, v reg.VecVirtual) {
	Instruction(&ir.Instruction{Opcode: "VMOVDQU32", Operands: []Op{from, v.AsY()}, Inputs: []Op{from}, Outputs: []Op{v}})
}

// loadLow32 loads the low 32 bits of v and clears the rest, in the same sense.
func loadLow32(from Op, v reg.VecVirtual) {
	Instruction(&ir.Instruction{Opcode: "VMOVD", Operands: []Op{from, v.AsX()}, Inputs: []Op{from}, Outputs: []Op{v}})
}

func and(a, b, to Op) {
	if wide {
		VPANDD(a, b, to)
	} else {
		VPAND(a, b, to)
	}
}

func or(a, b, to Op) {
	if wide {
		VPORD(a, b, to)
	} else {
		VPOR(a, b, to)
	}
}

func xor(a, b, to Op) {
	if wide {
		VPXORD(a, b, to)
	} else {
		VPXOR(a, b, to)
	}
}

// insert128 sets to = v with its i-th 128 bits replaced by part.
func insert128(i int, part Op, v, to reg.VecVirtual) {
	if wide {
		VINSERTI32X4(Imm(uint64(i)), part, v, to)
	} else {
		VINSERTI128(Imm(uint64(i)), part, v, to)
	}
}

// extract128 sets to, a register or memory, to the i-th 128 bits of v.
func extract128(i int, v reg.VecVirtual, to Op) {
	if wide {
		VEXTRACTI32X4(Imm(uint64(i)), v, to)
	} else {
		VEXTRACTI128(Imm(uint64(i)), v, to)
	}
}

// param loads a parameter of the function into a general register.
func param(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

// at is the memory at base + index·scale + disp.
func at(base, index reg.Register, scale uint8, disp int) Mem {
	return Mem{Base: base, Index: index, Scale: scale, Disp: disp}
}

// off is the memory at base + disp.
func off(base reg.Register, disp int) Mem { return Mem{Base: base, Disp: disp} }

var labels int

// label returns a name not used before in the output.
func label(what string) string {
	labels++
	return fmt.Sprintf("%s%d", what, labels)
}

// constants, one of each name per output
var constants = map[string]Mem{}

// bytesConst is a read-only constant of these bytes.
func bytesConst(name string, b []byte) Mem {
	if m, ok := constants[name]; ok {
		return m
	}
	m := GLOBL(name, 24) // RODATA|NOPTR
	for i := 0; i < len(b); i += 8 {
		DATA(i, U64(binary.LittleEndian.Uint64(b[i:])))
	}
	constants[name] = m
	return m
}

// dwordsConst is a read-only constant of these 32-bit values.
func dwordsConst(name string, v ...uint32) Mem {
	var b []byte
	for _, v := range v {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return bytesConst(name, b)
}

// broadcast returns a vector with v in every 32-bit lane.
func broadcast(w int, v uint32) reg.VecVirtual {
	r := vec(w)
	VPBROADCASTD(dwordsConst(fmt.Sprintf("dword_%08x", v), v, v), r)
	return r
}

func broadcastF(w int, v float32) reg.VecVirtual { return broadcast(w, math.Float32bits(v)) }

// swap128 is the immediate of VPSHUFD and such that swaps the halves of 128 bits, swap64 those of 64.
const (
	swap128 = 0x4e
	swap64  = 0xb1
)

// sumLanes returns the sum of all lanes of a float vector in lane 0, in the order the package documents: within each four
// (e0+e2)+(e1+e3), then (s0+s1)+(s2+s3). It is the order in which transposing additions (sumFour) work.
func sumLanes(v reg.VecVirtual) reg.VecVirtual {
	w := int(v.Size()) * 8
	t, u := vec(w), vec(w)
	VPERMILPS(Imm(swap128), v, t)
	VADDPS(v, t, t)
	VPERMILPS(Imm(swap64), t, u)
	VADDPS(u, t, t)
	return sumQuarters(t)
}

// sumQuarters adds the 128-bit parts of v as (s0+s1)+(s2+s3).
func sumQuarters(v reg.VecVirtual) reg.VecVirtual {
	r := XMM()
	if v.Size() == 32 {
		extract128(1, v, r)
		VADDPS(v.AsX(), r, r)
		return r
	}
	t := ZMM()
	VSHUFF32X4(Imm(0xb1), v, v, t)
	VADDPS(v, t, t)
	extract128(2, t, r)
	VADDPS(t.AsX(), r, r)
	return r
}

// sumFour returns the sums of four float vectors in the lanes of one XMM, each in the order of sumLanes.
func sumFour(a, b, c, d reg.VecVirtual) reg.VecVirtual { return sumQuarters(sumEachFour(a, b, c, d)) }

// sumEachFour returns a vector whose 128-bit parts have in their lanes the sums of the same part of the four vectors.
func sumEachFour(a, b, c, d reg.VecVirtual) reg.VecVirtual {
	w := int(a.Size()) * 8
	pair := func(a, b reg.VecVirtual) reg.VecVirtual {
		lo, hi := vec(w), vec(w)
		VUNPCKLPS(b, a, lo)
		VUNPCKHPS(b, a, hi)
		VADDPS(hi, lo, lo)
		return lo
	}
	ab, cd := pair(a, b), pair(c, d)
	lo, hi := vec(w), vec(w)
	VUNPCKLPD(cd, ab, lo)
	VUNPCKHPD(cd, ab, hi)
	VADDPS(hi, lo, lo)
	return lo
}

// addFourInts returns a vector whose 128-bit parts have in lane i the sum of the same part of v[i].
func addFourInts(v []reg.VecVirtual) reg.VecVirtual {
	w := int(v[0].Size()) * 8
	pair := func(a, b reg.VecVirtual) reg.VecVirtual {
		lo, hi := vec(w), vec(w)
		VPUNPCKLDQ(b, a, lo)
		VPUNPCKHDQ(b, a, hi)
		VPADDD(hi, lo, lo)
		return lo
	}
	ab, cd := pair(v[0], v[1]), pair(v[2], v[3])
	lo, hi := vec(w), vec(w)
	VPUNPCKLQDQ(cd, ab, lo)
	VPUNPCKHQDQ(cd, ab, hi)
	VPADDD(hi, lo, lo)
	return lo
}
