package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

func init() {
	target("read", func() {
		read("readAVX2", 256)
		read("readAVX512", 512)
	})
}

// readStep is how many bytes a turn of the loop of read loads; the callers know it.
const readStep = 512

// read emits a function that returns the exclusive or of the 64-bit words of n bytes, a positive multiple of readStep: as little work as
// makes use of what is loaded.
func read(name string, w int) {
	function(name, w, "func(p *byte, n int) uint64")
	p, n := param("p"), param("n")
	acc := zeros(readStep*8/w/2, w)
	next := label("next")
	Label(next)
	for half := range 2 {
		for i, a := range acc {
			xor(off(p, (half*len(acc)+i)*w/8), a, a)
		}
	}
	ADDQ(U32(readStep), p)
	SUBQ(U32(readStep), n)
	JG(LabelRef(next))
	for len(acc) > 1 {
		last := acc[len(acc)-1]
		acc = acc[:len(acc)-1]
		xor(last, acc[0], acc[0])
	}
	v, t := acc[0], vec(w)
	if w == 512 {
		VEXTRACTI64X4(Imm(1), v, t.AsY())
		xor(t.AsY(), v.AsY(), v.AsY())
	}
	extract128(1, v, t.AsX())
	xor(t.AsX(), v.AsX(), v.AsX())
	VPSHUFD(Imm(swap128), v.AsX(), t.AsX())
	xor(t.AsX(), v.AsX(), v.AsX())
	sum := GP64()
	VMOVQ(v.AsX(), sum)
	Store(sum, ReturnIndex(0))
	end()
}
