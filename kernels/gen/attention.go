package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// attentionQueries is how many queries dotTile and axpyTile take; the callers know it.
const attentionQueries = 4

func init() {
	target("attention", func() {
		for _, w := range []int{256, 512} {
			suffix := map[int]string{256: "AVX2", 512: "AVX512"}[w]
			dotTile("dotTile"+suffix, w)
			axpyTile("axpyTile"+suffix, w)
		}
	})
}

// queriesAtOnce is how many queries have their sums in registers: with four keys, or four vectors of columns, 16 of 32 registers or 8 of 16.
func queriesAtOnce(w int) int { return w / 128 }

// dotTile emits dst[i·ldd+j] = Σ q[i·size+c]·k[j·stride+c] for four queries i and n keys j: dotRows for each query, to the bit, with
// every key loaded once for several.
func dotTile(name string, w int) {
	function(name, w, "func(dst *float32, ldd int, q, k *float32, size, stride, n int)")
	some := queriesAtOnce(w)
	left := GP64()
	MOVQ(U32(uint32(attentionQueries/some)), left)
	queries := label("queries")
	Label(queries)
	{
		dst, q, k, size, stride := param("dst"), param("q"), param("k"), param("size"), param("stride")
		SHLQ(Imm(2), stride)
		n := param("n")
		fours, ones, done := label("fours"), label("ones"), label("done")
		for _, keys := range []int{4, 1} {
			if keys == 4 {
				Label(fours)
				CMPQ(n, Imm(4))
				JL(LabelRef(ones))
			} else {
				Label(ones)
				TESTQ(n, n)
				JEQ(LabelRef(done))
			}
			acc := make([][]reg.VecVirtual, some)
			for i := range acc {
				acc[i] = zeros(keys, w)
			}
			// Two bases reach four rows of k, or of q, with the row's length as an index.
			base, q0 := GP64(), GP64()
			MOVQ(k, base)
			MOVQ(q, q0)
			bases := []reg.GPVirtual{base}
			if keys == 4 {
				second := GP64()
				LEAQ(at(k, stride, 2, 0), second)
				bases = append(bases, second)
			}
			rowBytes, q2 := GP64(), GP64()
			MOVQ(size, rowBytes)
			SHLQ(Imm(2), rowBytes)
			if some == 4 {
				LEAQ(at(q, rowBytes, 2, 0), q2)
			}
			row := func(bases []reg.GPVirtual, length reg.GPVirtual, r int) Mem {
				if r%2 == 1 {
					return at(bases[r/2], length, 1, 0)
				}
				return off(bases[r/2], 0)
			}
			step := func(m mask) {
				u := vecs(some, w)
				for i := range u {
					m.load(row([]reg.GPVirtual{q0, q2}, rowBytes, i), u[i])
				}
				for j := range keys {
					v := vec(w)
					m.load(row(bases, stride, j), v)
					for i := range u {
						VFMADD231PS(v, u[i], acc[i][j])
					}
				}
			}
			next, tail, summed := label("next"), label("tail"), label("summed")
			columns := GP64()
			MOVQ(size, columns)
			SUBQ(Imm(uint64(w/32)), columns)
			JL(LabelRef(tail))
			Label(next)
			step(mask{})
			for _, b := range append(bases, q0) {
				ADDQ(Imm(uint64(w/8)), b)
			}
			if some == 4 {
				ADDQ(Imm(uint64(w/8)), q2)
			}
			SUBQ(Imm(uint64(w/32)), columns)
			JGE(LabelRef(next))
			Label(tail)
			ADDQ(Imm(uint64(w/32)), columns)
			JEQ(LabelRef(summed))
			step(maskOf(w, columns))
			Label(summed)
			to, ldd := GP64(), param("ldd")
			MOVQ(dst, to)
			for i := range acc {
				if keys == 4 {
					VMOVUPS(sumFour(acc[i][0], acc[i][1], acc[i][2], acc[i][3]), off(to, 0))
				} else {
					VMOVSS(sumLanes(acc[i][0]).AsX(), off(to, 0))
				}
				if i+1 < len(acc) {
					LEAQ(at(to, ldd, 4, 0), to)
				}
			}
			ADDQ(Imm(uint64(4*keys)), dst)
			SUBQ(Imm(uint64(keys)), n)
			if keys == 4 {
				LEAQ(at(k, stride, 4, 0), k)
				JMP(LabelRef(fours))
			} else {
				ADDQ(stride, k)
				JMP(LabelRef(ones))
			}
		}
		Label(done)
	}
	if some < attentionQueries {
		// The next queries. The parameters are read anew, so they are changed where they lie.
		advance := func(name string, by reg.GPVirtual, scale uint8) {
			p := param(name)
			for range some {
				LEAQ(at(p, by, scale, 0), p)
			}
			Store(p, Param(name))
		}
		advance("dst", param("ldd"), 4)
		advance("q", param("size"), 4)
		DECQ(left)
		JNE(LabelRef(queries))
	}
	end()
}

// axpyTile emits acc[i·size+c] += p[i·ldp+j]·v[j·stride+c] for four queries i and n keys j in rising order: axpyRows for each query, to the
// bit, with every value loaded once for several.
func axpyTile(name string, w int) {
	function(name, w, "func(acc, p *float32, ldp int, v *float32, size, stride, n int)")
	some := queriesAtOnce(w)
	lanes := w / 32
	left := GP64()
	MOVQ(U32(uint32(attentionQueries/some)), left)
	queries := label("queries")
	Label(queries)
	{
		acc, p, ldp, v, size, stride := param("acc"), param("p"), param("ldp"), param("v"), param("size"), param("stride")
		SHLQ(Imm(2), stride)
		SHLQ(Imm(2), ldp)
		rowBytes := GP64()
		MOVQ(size, rowBytes)
		SHLQ(Imm(2), rowBytes)
		// rows calls f with the memory of the queries' rows from base on.
		rows := func(base, length reg.GPVirtual, f func(i int, m func(disp int) Mem)) {
			b := GP64()
			MOVQ(base, b)
			for i := range some {
				f(i, func(disp int) Mem { return off(b, disp) })
				if i+1 < some {
					ADDQ(length, b)
				}
			}
		}
		columns := func(count int, m mask) {
			sum := make([][]reg.VecVirtual, some)
			rows(acc, rowBytes, func(i int, at func(int) Mem) {
				sum[i] = vecs(count, w)
				for c := range sum[i] {
					m.load(at(4*lanes*c), sum[i][c])
				}
			})
			value, weight, weight2, j, next := GP64(), GP64(), GP64(), GP64(), label("keys")
			MOVQ(v, value)
			MOVQ(p, weight)
			if some == 4 {
				LEAQ(at(p, ldp, 2, 0), weight2)
			}
			Load(Param("n"), j)
			Label(next)
			t := vecs(count, w)
			for c := range t {
				m.load(off(value, 4*lanes*c), t[c])
			}
			for i := range sum {
				f := vec(w)
				base := []reg.GPVirtual{weight, weight2}[i/2]
				if i%2 == 1 {
					VBROADCASTSS(at(base, ldp, 1, 0), f)
				} else {
					VBROADCASTSS(off(base, 0), f)
				}
				for c := range t {
					VFMADD231PS(t[c], f, sum[i][c])
				}
			}
			ADDQ(stride, value)
			ADDQ(Imm(4), weight)
			if some == 4 {
				ADDQ(Imm(4), weight2)
			}
			DECQ(j)
			JNE(LabelRef(next))
			rows(acc, rowBytes, func(i int, at func(int) Mem) {
				for c := range sum[i] {
					m.store(sum[i][c], at(4*lanes*c))
				}
			})
		}
		tail, done := label("tail"), label("done")
		for _, count := range []int{4, 1} {
			next, rest := label("columns"), label("rest")
			Label(next)
			CMPQ(size, Imm(uint64(count*lanes)))
			JL(LabelRef(rest))
			columns(count, mask{})
			ADDQ(I32(int32(4*count*lanes)), acc)
			ADDQ(I32(int32(4*count*lanes)), v)
			SUBQ(I32(int32(count*lanes)), size)
			JMP(LabelRef(next))
			Label(rest)
		}
		Label(tail)
		TESTQ(size, size)
		JEQ(LabelRef(done))
		columns(1, maskOf(w, size))
		Label(done)
	}
	if some < attentionQueries {
		advance := func(name string, by reg.GPVirtual) {
			q := param(name)
			for range some {
				LEAQ(at(q, by, 4, 0), q)
			}
			Store(q, Param(name))
		}
		advance("acc", param("size"))
		advance("p", param("ldp"))
		DECQ(left)
		JNE(LabelRef(queries))
	}
	end()
}
