package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// unitFormat describes a format of fewer than eight bits and generates its kernels: the row kernel, which multiplies weights where they
// lie, and the pack kernel, which transposes them into tiles. Both work on groups of as many blocks of 32 columns as a vector has 32-bit
// lanes, and make codes straight from the format's bytes, several units at a time; that is what blocks.go cannot do.
type unitFormat struct {
	name       string
	unit       []int // a unit of the format is copied in pieces of these many bytes, powers of two up to 32
	unitBlocks int   // blocks of 32 columns of a unit
	max        int   // the largest unsigned code
	bias       int   // what the codes are above their values, a power of two; 0: nothing
	held       bool  // there are registers for some constants of AVX2's row kernel, those that inRegister is asked for
	// signed is for codes too large for AVX2's products of unsigned ones: for AVX2 they are signed bytes, then, and have no bias.
	signed bool

	// codes emits the unsigned codes of a group at w, block after block: vectors of one block, with 512 bits of two.
	codes func(v *simd, w reg.Register, emit func(u reg.VecVirtual))
	// negate, unless nil, returns what negates the activations x of the k-th vector of codes where its signs say so; codes are magnitudes
	// then, and have no bias.
	negate func(v *simd, w reg.Register) func(k int, x reg.VecVirtual)
	// adjust, unless nil, corrects the products i of a group at w, less the bias, of codes that are tile's but for a number a block; sums
	// are the activations'.
	adjust func(v *simd, w reg.Register, sums, i reg.VecVirtual)
	// scales returns the scales of a group at w, a lane a block: one vector, or those of the first and of the second halves; and behind
	// them as many minima, if there are any.
	scales func(v *simd, w reg.Register) []reg.VecVirtual
	// tile emits a group's codes transposed: t has the codes 4j..4j+3 of each block.
	tile func(v *simd, w reg.Register, emit func(j int, t reg.VecVirtual))

	kind
}

// unitTarget registers the output of a format.
func unitTarget(f *unitFormat) {
	target(f.name, func() {
		for _, w := range []int{512, 256} {
			v := newSimd(w)
			v.held = v.held || f.held
			f.rows(v)
			f.pack(newSimd(w))
		}
	})
}

// groupBytes returns the bytes of a group.
func (f *unitFormat) groupBytes(v *simd) (n int) {
	for _, p := range f.unit {
		n += p
	}
	return n * v.lanes / f.unitBlocks
}

// simd emits instructions of one vector length for one function.
type simd struct {
	w     int // bits: 512 with AVX-512, 256 with AVX2
	lanes int // of 32 bits
	// With 512 bits, where registers abound, constants and masks are loaded once per call: by code that begin jumps to and end emits,
	// when it is known which there are. With 256 bits it is those that inRegister is asked for, if held.
	held  bool
	kept  map[string]reg.VecVirtual
	masks map[uint32]reg.OpmaskVirtual
}

func newSimd(w int) *simd {
	return &simd{w: w, lanes: w / 32, held: w == 512, kept: map[string]reg.VecVirtual{}, masks: map[uint32]reg.OpmaskVirtual{}}
}

// begin goes after the loading of the function's parameters, end after its last instruction.
func (v *simd) begin() {
	if v.held {
		JMP(LabelRef("constants"))
		Label("begin")
	}
}

func (v *simd) end() {
	if !v.held {
		return
	}
	Label("constants")
	for _, data := range slices.Sorted(maps.Keys(v.kept)) {
		load(constant([]byte(data)), v.kept[data])
	}
	for _, m := range slices.Sorted(maps.Keys(v.masks)) {
		r := GP32()
		MOVL(U32(m), r)
		KMOVD(r, v.masks[m])
	}
	JMP(LabelRef("begin"))
}

// mask returns a mask register with the bits of m.
func (v *simd) mask(m uint32) reg.OpmaskVirtual {
	if v.masks[m] == nil {
		v.masks[m] = K()
	}
	return v.masks[m]
}

func (v *simd) wide() bool { return v.lanes == 16 }

func (v *simd) isa() string {
	if v.wide() {
		return "AVX512"
	}
	return "AVX2"
}

func (v *simd) new() reg.VecVirtual { return vec(v.w) }

func (v *simd) load(m Mem) reg.VecVirtual {
	x := v.new()
	load(m, x)
	return x
}

func (v *simd) and(a Op, x reg.VecVirtual) reg.VecVirtual {
	y := v.new()
	and(a, x, y)
	return y
}

func (v *simd) or(a Op, x reg.VecVirtual) reg.VecVirtual {
	y := v.new()
	or(a, x, y)
	return y
}

// nibble returns the low nibbles of x's bytes after a shift to the right by 0 or 4 bits, which the lanes of counts say.
func (v *simd) nibble(counts Op, x reg.VecVirtual) reg.VecVirtual {
	y := v.new()
	VPSRLVD(counts, x, y)
	return v.and(v.dwords(0x0f0f0f0f), y)
}

// lowHigh returns the low and the high nibbles of x's bytes.
func (v *simd) lowHigh(x reg.VecVirtual) (low, high reg.VecVirtual) {
	high = v.new()
	VPSRLD(Imm(4), x, high)
	return v.and(v.dwords(0x0f0f0f0f), x), v.and(v.dwords(0x0f0f0f0f), high)
}

// constantNames has the names of the constants of the output, by content.
var constantNames, constantData = map[string]string{}, map[string]string{}

func constant(data []byte) Mem {
	name, ok := constantNames[string(data)]
	if !ok {
		name = fmt.Sprintf("constant%d", len(constantNames))
		constantNames[string(data)] = name
		constantData[name] = string(data)
	}
	return bytesConst(name, data)
}

// keep returns the constant vector of data, which is not to be changed: a register if there are enough of them, else memory.
func (v *simd) keep(data []byte) Op {
	if !v.wide() {
		return constant(data)
	}
	if v.kept[string(data)] == nil {
		v.kept[string(data)] = v.new()
	}
	return v.kept[string(data)]
}

// dwords returns a constant vector that repeats the given 32-bit lanes.
func (v *simd) dwords(lanes ...uint32) Op {
	var data []byte
	for i := range v.lanes {
		data = binary.LittleEndian.AppendUint32(data, lanes[i%len(lanes)])
	}
	return v.keep(data)
}

// words returns a constant vector that repeats the given 16-bit lanes.
func (v *simd) words(lanes ...uint16) Op {
	var data []byte
	for i := range 2 * v.lanes {
		data = binary.LittleEndian.AppendUint16(data, lanes[i%len(lanes)])
	}
	return v.keep(data)
}

// inRegister returns x, or a register loaded from it if it is memory.
func (v *simd) inRegister(x Op) reg.VecVirtual {
	if r, ok := x.(reg.VecVirtual); ok {
		return r
	}
	r := v.new()
	if m := x.(Mem); v.held && constantData[m.Symbol.Name] != "" {
		if kept := v.kept[constantData[m.Symbol.Name]]; kept != nil {
			return kept
		}
		v.kept[constantData[m.Symbol.Name]] = r
		return r
	}
	load(x, r)
	return r
}

// broadcast128 sets all 128-bit lanes of x to m. It is a load alone, and unlike one of 128 bits sets all of x, as avo sees it.
func broadcast128(m Mem, x reg.VecVirtual) {
	if wide {
		VBROADCASTI32X4(m, x)
	} else {
		VBROADCASTI128(m, x)
	}
}

// quarters returns a vector whose 128-bit lane i is the 16 bytes at w+offset(i).
func (v *simd) quarters(w reg.Register, offset func(i int) int) reg.VecVirtual {
	x := v.new()
	broadcast128(off(w, offset(0)), x)
	for i := 1; i < v.lanes/4; i++ {
		insert128(i, off(w, offset(i)), x, x)
	}
	return x
}

// words16 returns a vector whose 16-bit lane i is the word at w+offsets[i]: with 512 bits of up to 32 lanes, else an XMM of up to 8.
// It reads nothing outside of the size bytes at w, of which all offsets must be even, or all odd.
func (v *simd) words16(w reg.Register, size int, offsets ...int) reg.VecVirtual {
	if !v.wide() {
		x := XMM()
		VPXOR(x, x, x)
		for i, o := range offsets {
			VPINSRW(Imm(uint64(i)), off(w, o), x, x)
		}
		return x
	}
	// Each load of 64 bytes gives the words in it their lanes.
	lanes := make([]uint16, 32)
	type load struct {
		at   int
		mask uint32
	}
	var loads []load
	left := slices.Clone(offsets)
	for slices.Max(left) >= 0 {
		first := size
		for _, o := range left {
			if o >= 0 {
				first = min(first, o)
			}
		}
		l := load{at: min(first, size-64-(size-first)%2)}
		for i, o := range left {
			if o >= 0 && o+2 <= l.at+64 {
				lanes[i], l.mask, left[i] = uint16((o-l.at)/2), l.mask|1<<i, -1
			}
		}
		loads = append(loads, l)
	}
	x, which := v.new(), v.inRegister(v.words(lanes...))
	for i, l := range loads {
		if i == 0 {
			VPERMW(off(w, l.at), which, x)
		} else {
			VPERMW(off(w, l.at), which, v.mask(l.mask), x)
		}
	}
	return x
}

// strided returns the offsets of the words at the same place in each of a group's blocks.
func (v *simd) strided(at, stride int) []int {
	o := make([]int, v.lanes)
	for i := range o {
		o[i] = at + i*stride
	}
	return o
}

// halfScales returns the binary16 scales that blocks of stride bytes start with.
func (v *simd) halfScales(w reg.Register, stride int) reg.VecVirtual {
	h, a := v.words16(w, v.lanes*stride, v.strided(0, stride)...), v.new()
	if v.wide() {
		VCVTPH2PS(h.AsY(), a)
	} else {
		VCVTPH2PS(h, a)
	}
	return a
}

// halfPairs returns the pairs of binary16 numbers that blocks of stride bytes start with.
func (v *simd) halfPairs(w reg.Register, stride int) (first, second reg.VecVirtual) {
	first, second = v.new(), v.new()
	if v.wide() {
		h, upper := v.words16(w, v.lanes*stride, append(v.strided(0, stride), v.strided(2, stride)...)...), YMM()
		VEXTRACTI64X4(Imm(1), h, upper)
		VCVTPH2PS(h.AsY(), first)
		VCVTPH2PS(upper, second)
		return first, second
	}
	// The blocks 0 1 4 5 and 2 3 6 7.
	var pairs [2]reg.VecVirtual
	for i := range pairs {
		x := XMM()
		pairs[i] = YMM()
		VMOVD(off(w, 2*i*stride), x)
		for k, block := range []int{1, 4, 5} {
			VPINSRD(Imm(uint64(k+1)), off(w, (2*i+block)*stride), x, x)
		}
		VCVTPH2PS(x, pairs[i])
	}
	VSHUFPS(Imm(0x88), pairs[1], pairs[0], first)
	VSHUFPS(Imm(0xdd), pairs[1], pairs[0], second)
	return first, second
}

// unitHalves returns the binary16 number at w+at in the lanes of a unit of eight blocks, with 512 bits that at w+unit+at in those of the
// next one.
func (v *simd) unitHalves(w reg.Register, unit, at int) reg.VecVirtual {
	h, d := YMM(), v.new()
	VPBROADCASTW(off(w, at), h)
	if v.wide() {
		second := XMM()
		VPBROADCASTW(off(w, unit+at), second)
		insert128(1, second, h, h)
		VCVTPH2PS(h, d)
	} else {
		VCVTPH2PS(h.AsX(), d)
	}
	return d
}

// units128 returns the 16 bytes at w+at, with 512 bits and those at w+unit+at above, in a YMM.
func (v *simd) units128(w reg.Register, unit, at int) reg.VecVirtual {
	x := YMM()
	broadcast128(off(w, at), x)
	if v.wide() {
		insert128(1, off(w, unit+at), x, x)
	}
	return x
}

// blockWords widens the words of a unit's 16 bytes, one for each block, in what units128 returns.
func (v *simd) blockWords(x reg.VecVirtual) reg.VecVirtual {
	y := v.new()
	if v.wide() {
		VPMOVZXWD(x, y)
	} else {
		VPMOVZXWD(x.AsX(), y)
	}
	return y
}

// bytePairs returns d times the low and d times the high bytes of what blockWords takes, as signed integers: the scales of the halves.
func (v *simd) bytePairs(x, d reg.VecVirtual) (first, second reg.VecVirtual) {
	second = v.blockWords(x)
	first = v.new()
	VPSLLD(Imm(24), second, first)
	VPSLLD(Imm(16), second, second)
	for _, s := range []reg.VecVirtual{first, second} {
		VPSRAD(Imm(24), s, s)
		VCVTDQ2PS(s, s)
		VMULPS(d, s, s)
	}
	return first, second
}

// rolled returns the 32-bit lanes of x rotated to the left by so many bits, to the right if negative; the counts repeat. Bits that would
// come around are zero with AVX2.
func (v *simd) rolled(x reg.VecVirtual, bits ...int) reg.VecVirtual {
	left, right, all := make([]uint32, len(bits)), make([]uint32, len(bits)), make([]uint32, len(bits))
	for i, n := range bits {
		left[i], right[i], all[i] = uint32(max(n, 0)), uint32(max(-n, 0)), uint32(n&31)
	}
	y := v.new()
	if v.wide() {
		VPROLVD(v.dwords(all...), x, y)
		return y
	}
	switch {
	case slices.Max(left) == 0:
		VPSRLVD(v.dwords(right...), x, y)
	case slices.Max(right) == 0:
		VPSLLVD(v.dwords(left...), x, y)
	default:
		VPSLLVD(v.dwords(left...), x, y)
		VPSRLVD(v.dwords(right...), y, y)
	}
	return y
}

// include adds to x the bits of y that mask has, which are clear in x.
func (v *simd) include(x, y reg.VecVirtual, mask uint32) reg.VecVirtual {
	if v.wide() {
		VPTERNLOGD(Imm(0xf8), v.dwords(mask), y, x)
		return x
	}
	return v.or(v.and(v.dwords(mask), y), x)
}

// look returns the bytes of table that nibbles select.
func (v *simd) look(table [16]int8, nibbles reg.VecVirtual) reg.VecVirtual {
	var t [4]uint32
	for i, b := range table {
		t[i/4] |= uint32(uint8(b)) << (i % 4 * 8)
	}
	x := v.new()
	VPSHUFB(nibbles, v.inRegister(v.dwords(t[:]...)), x)
	return x
}

// interleave is a pair of unpack instructions: the low and the high halves of two vectors, interleaved.
type interleave struct{ low, high func(...Op) }

var (
	words  = interleave{VPUNPCKLWD, VPUNPCKHWD}
	dwords = interleave{VPUNPCKLDQ, VPUNPCKHDQ}
	qwords = interleave{VPUNPCKLQDQ, VPUNPCKHQDQ}
)

func (n interleave) of(v *simd, a, b reg.VecVirtual) (low, high reg.VecVirtual) {
	low, high = v.new(), v.new()
	n.low(b, a, low)
	n.high(b, a, high)
	return low, high
}

// reduction sums the lanes of eight vectors, down to two vectors in which each 128 bits have a lane or two for each of the blocks that
// were there. It is fed the vectors one by one, and merges two as soon as both are there, which takes the fewest registers.
type reduction struct {
	merge   [2]func(a, b reg.VecVirtual) reg.VecVirtual
	waiting [2]reg.VecVirtual
	merged  []reg.VecVirtual // two, past both merges: each has parts of the sums of half of the blocks
}

func (r *reduction) add(x reg.VecVirtual) {
	for i, w := range r.waiting {
		if w == nil {
			r.waiting[i] = x
			return
		}
		x, r.waiting[i] = r.merge[i](w, x), nil
	}
	r.merged = append(r.merged, x)
}

// interleavedSum returns a merge that adds the interleaved halves.
func interleavedSum(v *simd, n interleave, add func(...Op)) func(a, b reg.VecVirtual) reg.VecVirtual {
	return func(a, b reg.VecVirtual) reg.VecVirtual {
		low, high := n.of(v, a, b)
		add(low, high, high)
		return high
	}
}

// ones returns what VPMADDWD adds pairs of words by.
func (v *simd) ones() Op {
	if v.held {
		return v.inRegister(v.words(1))
	}
	return v.words(1)
}

// narrowedSum merges vectors whose lanes fit 16 bits by adding adjacent lanes: in each 128 bits, two sums of a and then two of b.
func (v *simd) narrowedSum(a, b reg.VecVirtual) reg.VecVirtual {
	x := v.new()
	VPACKSSDW(b, a, x)
	VPMADDWD(v.words(1), x, x)
	return x
}

// adjacentSum is narrowedSum for lanes of 32 bits.
func (v *simd) adjacentSum(a, b reg.VecVirtual) reg.VecVirtual {
	even, odd := v.new(), v.new()
	VSHUFPS(Imm(0x88), b, a, even)
	VSHUFPS(Imm(0xdd), b, a, odd)
	VPADDD(even, odd, odd)
	return odd
}

// dots returns the integer dot products of a group's codes with the activations at q + 8·o, a lane a block, i1 being nil; or those of
// the blocks' first and second halves if the format has halves. The bias is still in them.
func (f *unitFormat) dots(v *simd, w, q, o reg.Register) (i0, i1 reg.VecVirtual) {
	short := !v.wide() && !f.signed && f.max*127*8 <= math.MaxInt16            // sums of eight products fit 16 bits
	fours := (v.wide() || f.held) && !f.signed && f.max*127*4 <= math.MaxInt16 // those of four do, and are made use of
	var r reduction
	r.merge[0], r.merge[1] = interleavedSum(v, dwords, VPADDD), interleavedSum(v, qwords, VPADDD)
	switch {
	case short:
		r.merge[0], r.merge[1] = interleavedSum(v, words, VPADDW), interleavedSum(v, dwords, VPADDW)
	case !v.wide() && fours:
		add := interleavedSum(v, dwords, VPADDW)
		r.merge[0] = func(a, b reg.VecVirtual) reg.VecVirtual {
			x := add(a, b)
			VPMADDWD(v.ones(), x, x)
			return x
		}
	case v.wide() && f.max*127*8 <= math.MaxInt16:
		r.merge[0], r.merge[1] = v.narrowedSum, v.narrowedSum
	case v.wide() && fours:
		r.merge[0], r.merge[1] = v.narrowedSum, v.adjacentSum
	}
	negate := func(int, reg.VecVirtual) {}
	if f.negate != nil {
		negate = f.negate(v, w)
	}
	k := 0
	f.codes(v, w, func(u reg.VecVirtual) {
		var x Op = at(q, o, 8, k*v.w/8)
		if f.negate != nil {
			r := v.load(x.(Mem))
			negate(k, r)
			x = r
		}
		k++
		y := v.new()
		if v.wide() {
			zero(y)
			vpdpbusd(x, u, y)
		} else {
			if f.signed {
				abs := v.new()
				VPABSB(u, abs)
				load(x, y)
				VPSIGNB(u, y, y)
				VPMADDUBSW(y, abs, y)
			} else {
				VPMADDUBSW(x, u, y)
			}
			if !short && !fours {
				VPMADDWD(v.ones(), y, y)
			}
		}
		r.add(y)
	})
	a, b := r.merged[0], r.merged[1]
	switch {
	case v.wide():
		// a has the blocks 0 2 4 6 and, from bit 256 on, 1 3 5 7, each in halves of 128 bits; b has the others.
		i0, i1 = v.new(), a
		load(a, i0)
		VPERMT2D(b, v.inRegister(v.dwords(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27)), i0)
		VPERMT2D(b, v.inRegister(v.dwords(4, 12, 5, 13, 6, 14, 7, 15, 20, 28, 21, 29, 22, 30, 23, 31)), i1)
		if !f.halves {
			VPADDD(i1, i0, i0)
			i1 = nil
		}
		return i0, i1
	case !short:
		i0, i1 = YMM(), YMM()
		VPERM2I128(Imm(0x20), b, a, i0)
		VPERM2I128(Imm(0x31), b, a, i1)
		if !f.halves {
			VPADDD(i1, i0, i0)
			i1 = nil
		}
		return i0, i1
	}
	low, high := qwords.of(v, a, b)
	if f.max*127*16 <= math.MaxInt16 {
		VPADDW(low, high, high)
		i0, i1 = widened(high)
	} else {
		i0, i1 = widened(low)
		t0, t1 := widened(high)
		VPADDD(t0, i0, i0)
		VPADDD(t1, i1, i1)
	}
	if !f.halves {
		VPADDD(i1, i0, i0)
		i1 = nil
	}
	return i0, i1
}

// widened extends the 16-bit lanes of x's halves to 32 bits.
func widened(x reg.VecVirtual) (first, second reg.VecVirtual) {
	h := XMM()
	first, second = YMM(), YMM()
	extract128(1, x, h)
	VPMOVSXWD(x.AsX(), first)
	VPMOVSXWD(h, second)
	return first, second
}

// biased tells whether the codes that v makes have a bias.
func (f *unitFormat) biased(v *simd) bool { return f.bias > 0 && (v.wide() || !f.signed) }

// unbias subtracts from the products i the bias of the codes times the activations' sums.
func (f *unitFormat) unbias(v *simd, sums, i reg.VecVirtual) {
	if n := shiftOf(f.bias); n > 0 {
		t := v.new()
		VPSLLD(Imm(n), sums, t)
		sums = t
	}
	VPSUBD(sums, i, i)
}

// blockArgs are the registers of a row kernel that point into the activations; o is the offset in d, s and half.
type blockArgs struct{ q, d, s, half, o reg.GPVirtual }

// group adds the products of the group at w to acc, in the order that panel.go states; of the blocks of mask, unless that is nil.
func (f *unitFormat) group(v *simd, w reg.Register, x blockArgs, acc, mask reg.VecVirtual) {
	lane := func(base reg.Register) Mem { return at(base, x.o, 1, 0) }
	// sums returns the activations' sums over the columns that share a scale.
	sums := func() []reg.VecVirtual {
		all := v.load(lane(x.s))
		if !f.halves {
			return []reg.VecVirtual{all}
		}
		first := v.load(lane(x.half))
		VPSUBD(first, all, all)
		return []reg.VecVirtual{first, all}
	}
	i0, i1 := f.dots(v, w, x.q, x.o)
	ints := []reg.VecVirtual{i0}
	if f.halves {
		ints = append(ints, i1)
	}
	if f.biased(v) {
		for k, s := range sums() {
			f.unbias(v, s, ints[k])
			if f.adjust != nil {
				f.adjust(v, w, s, ints[k])
			}
		}
	}
	scales := f.scales(v, w)
	if mask != nil {
		for _, s := range scales {
			and(mask, s, s)
		}
	}
	d := v.load(lane(x.d))
	for k, i := range ints {
		VCVTDQ2PS(i, i)
		VMULPS(d, scales[k], scales[k])
		VFMADD231PS(scales[k], i, acc)
	}
	if f.mins {
		for k, s := range sums() {
			VCVTDQ2PS(s, s)
			VMULPS(d, s, s)
			VFNMADD231PS(s, scales[len(ints)+k], acc)
		}
	}
}

// rows generates the row kernel. A group at a row's end that is not whole is read with what lies behind, the next rows: those columns'
// activations are zero, and their scales are made so. Only where that would pass the last row's end the group is copied first.
func (f *unitFormat) rows(v *simd) {
	function(f.name+"Row"+v.isa(), v.w, "func(dst *float32, w *byte, stride, n int, q *int8, d *float32, s, half *int32, blocks int)")
	dst, w, stride, n, end := param("dst"), param("w"), param("stride"), param("n"), param("blocks")
	x := blockArgs{param("q"), param("d"), param("s"), param("half"), GP64()}
	p := GP64()
	v.begin()
	rest := f.newRest(v, n, stride, end)
	ANDQ(I32(-v.lanes), end)
	SHLQ(Imm(2), end)

	Label("row")
	acc := v.new()
	zero(acc)
	MOVQ(w, p)
	XORQ(x.o, x.o)
	Label("group")
	CMPQ(x.o, end)
	JGE(LabelRef("rest"))
	prefetch(off(p, 0), f.groupBytes(v))
	f.group(v, p, x, acc, nil)
	ADDQ(I32(f.groupBytes(v)), p)
	ADDQ(I32(4*v.lanes), x.o)
	JMP(LabelRef("group"))
	Label("rest")
	if rest != nil {
		CMPQ(rest.blocks, Imm(0))
		JE(LabelRef("done"))
		rest.copyAtEnd(f, p)
		f.group(v, p, x, acc, rest.mask)
		Label("done")
	}
	VMOVSS(sumLanes(acc), off(dst, 0))
	ADDQ(Imm(4), dst)
	ADDQ(stride, w)
	DECQ(n)
	JG(LabelRef("row"))
	VZEROUPPER()
	RET()
	v.end()
}

// rest is what a row kernel knows of the group at the rows' end.
type rest struct {
	blocks   reg.GPVirtual  // 0 if all groups are whole
	mask     reg.VecVirtual // of the lanes with a block
	readable Mem            // has the last address from which a group can be read
	local    Mem            // room for a group
}

// newRest returns nil if rows of the format always consist of whole groups.
func (f *unitFormat) newRest(v *simd, n, stride, blocks reg.GPVirtual) *rest {
	if f.unitBlocks == v.lanes {
		return nil
	}
	r := &rest{GP64(), v.new(), AllocLocal(8), AllocLocal((f.groupBytes(v) + 31) / 32 * 32)}
	readable := param("w")
	size := GP64()
	MOVQ(stride, size)
	IMULQ(n, size)
	ADDQ(size, readable)
	SUBQ(I32(f.groupBytes(v)), readable)
	MOVQ(readable, r.readable)

	MOVQ(blocks, r.blocks)
	ANDQ(I32(v.lanes-1), r.blocks)
	var ones []byte
	for i := range 8 * v.lanes {
		ones = append(ones, byte(i/(4*v.lanes)-1))
	}
	table := GP64()
	LEAQ(constant(ones), table)
	SHLQ(Imm(2), r.blocks)
	SUBQ(r.blocks, table)
	load(off(table, 4*v.lanes), r.mask)
	SHRQ(Imm(2), r.blocks)

	fill := YMM() // bytes that make ordinary scales of any format, not zero or subnormal ones, which are slow
	load(constant(bytes.Repeat([]byte{0x40}, 32)), fill)
	for i := 0; i < f.groupBytes(v); i += 32 {
		load(fill, r.local.Offset(i))
	}
	return r
}

// copyAtEnd lets p point to a copy if a whole group cannot be read there.
func (r *rest) copyAtEnd(f *unitFormat, p reg.GPVirtual) {
	CMPQ(p, r.readable)
	JLS(LabelRef("inPlace"))
	left, to := GP64(), GP64()
	MOVQ(r.blocks, left)
	LEAQ(r.local, to)
	Label("copy")
	for _, size := range f.unit {
		copyBytes(p, to, size)
		ADDQ(I32(size), p)
		ADDQ(I32(size), to)
	}
	SUBQ(I32(f.unitBlocks), left)
	JG(LabelRef("copy"))
	LEAQ(r.local, p)
	Label("inPlace")
}

func copyBytes(from, to reg.Register, size int) {
	src, dst := off(from, 0), off(to, 0)
	switch size {
	case 1:
		r := GP32()
		MOVBLZX(src, r)
		MOVB(r.As8(), dst)
	case 2:
		r := GP32()
		MOVWLZX(src, r)
		MOVW(r.As16(), dst)
	case 4:
		r := GP32()
		MOVL(src, r)
		MOVL(r, dst)
	case 16:
		r := XMM()
		load(src, r)
		load(r, dst)
	case 32:
		r := YMM()
		load(src, r)
		load(r, dst)
	default:
		panic(fmt.Sprintf("copy of %d bytes", size))
	}
}

// pack generates the pack kernel.
func (f *unitFormat) pack(v *simd) {
	function(f.name+"Pack"+v.isa(), v.w, packSignature)
	t, a, w, stride, n := param("t"), param("a"), param("w"), param("stride"), param("n")
	tstride, end := param("tstride"), param("tiles")
	v.begin()
	SHLQ(Imm(6), tstride)
	SHLQ(Imm(6), end)

	planes := uint8(f.planes())
	o, p := GP64(), GP64() // o is the offset in a plane of a; t's is eight times that
	Label("row")
	MOVQ(w, p)
	XORQ(o, o)
	Label("tile")
	for part := 0; part < 64; part += 4 * v.lanes {
		f.tile(v, p, func(j int, x reg.VecVirtual) { load(x, at(t, o, 8, 64*j+part)) })
		for k, s := range f.scales(v, p) {
			load(s, at(a, o, planes, 64*k+part))
		}
		ADDQ(I32(f.groupBytes(v)), p)
	}
	ADDQ(Imm(64), o)
	CMPQ(o, end)
	JL(LabelRef("tile"))
	ADDQ(stride, w)
	LEAQ(at(a, tstride, planes, 0), a)
	LEAQ(Mem{Base: t, Index: tstride, Scale: 8}, t)
	DECQ(n)
	JG(LabelRef("row"))
	VZEROUPPER()
	RET()
	v.end()
}
