package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/coli-moe/coli/weights/format"
)

// eachISA runs f once per instruction set that this processor has.
func eachISA(t *testing.T, f func(t *testing.T, s *set)) {
	for i := generic; i <= detect(); i++ {
		t.Run(i.String(), func(t *testing.T) { f(t, newSet(i)) })
	}
}

// randomRow returns the bytes of a row of random codes whose values are finite and of ordinary size.
func randomRow(t testing.TB, rng *rand.Rand, f format.Format, cols int) []byte {
	in := f.Info()
	size, err := f.RowBytes(cols)
	if err != nil {
		t.Fatal(err)
	}
	row := make([]byte, 0, size)
	random := func(n int) {
		for range n {
			row = append(row, byte(rng.Uint32()))
		}
	}
	number := func() { row = binary.LittleEndian.AppendUint32(row, math.Float32bits(rng.Float32()/64)) }
	switch f {
	case format.I8Row:
		number()
		random(cols)
		return row
	case format.F8E4M3:
		for range cols {
			row = append(row, byte(rng.Uint32())&0xbf) // no NaN
		}
		for len(row) < size {
			number()
		}
		return row
	}
	switch f { // of random bits, too many would be subnormal
	case format.F32:
		for _, v := range randomFloats(rng, cols) {
			row = binary.LittleEndian.AppendUint32(row, math.Float32bits(v))
		}
		return row
	case format.F16, format.BF16:
		for _, v := range randomFloats(rng, cols) {
			h := format.F32ToF16(v)
			if f == format.BF16 {
				h = format.F32ToBF16(v)
			}
			row = binary.LittleEndian.AppendUint16(row, h)
		}
		return row
	}
	values := make([]float32, in.Block)
	for start := 0; start < size; {
		random(in.BlockBytes)
		if f == format.I4G64 {
			row = row[:start]
			number()
			random(in.BlockBytes - 4)
		}
		if err := format.Decode(f, values, row[start:]); err != nil {
			t.Fatal(err)
		}
		var top float64
		for _, v := range values {
			top = max(top, math.Abs(float64(v))) // NaN stays
		}
		if row = row[:start]; top < 10 && top > 1e-3 {
			start += in.BlockBytes
			row = row[:start]
		}
	}
	return row
}

func randomFloats(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64()) * 2
	}
	return x
}

// product is the float64 reference: w·x in the values the kernel reads, and a bound of its error by float32 sums: with terms of the
// magnitudes |t| and chains of m additions, m·2^-24·Σ|t|.
func product(t testing.TB, k *Kernel, w []byte, in *Input, r int) (want, tolerance float64) {
	cols := in.Cols
	values := make([]float32, cols)
	if err := format.Decode(k.Format, values, w); err != nil {
		t.Fatal(err)
	}
	var c codes
	s := schemes[k.Format]
	if k.Form == FormQ8 {
		c.reset(cols)
		s.unpack(&c, w)
	}
	var total float64
	for i, v := range values {
		x, magnitude := float64(in.F32[r*cols+i]), math.Abs(float64(v))
		if k.Form == FormQ8 {
			p := in.Padded()
			x = float64(in.Q[r*p+i]) * float64(in.D[r*p/block+i/block])
			magnitude = math.Abs(float64(c.q[i]) * float64(c.a[i/16]))
			if s.kind == withMin || s.kind == halvesWithMin {
				magnitude += math.Abs(float64(c.m[i/16]))
			}
		}
		want += float64(v) * x
		total += magnitude * math.Abs(x)
	}
	chain := cols / 32
	if k.ISA == generic.String() {
		chain = cols / 4
	}
	return want, float64(chain+12) * 0x1p-24 * total
}

// shapes of a matrix product: weight rows, columns, rows of the input, and those multiplied.
type shape struct {
	n, cols, rows int
	pick          []int32
}

func checkMatMul(t *testing.T, rng *rand.Rand, set *set, f format.Format, sh shape) {
	t.Helper()
	k := set.kernels[f]
	var w []byte
	for range sh.n {
		w = append(w, randomRow(t, rng, f, sh.cols)...)
	}
	w = slices.Clip(w)
	var in Input
	in.Set(randomFloats(rng, sh.rows*sh.cols), sh.rows, sh.cols)
	for r := range sh.rows {
		in.quantize(set.vector, r)
	}
	ldd := sh.n + 3
	const untouched = 12345
	dst := make([]float32, len(sh.pick)*ldd)
	fill(dst, untouched)
	k.MatMul(dst, ldd, w, sh.n, &in, sh.pick)
	single := make([]float32, 1)
	stride := len(w) / sh.n
	for j, r := range sh.pick {
		for i := range ldd {
			got := dst[j*ldd+i]
			if i >= sh.n {
				if got != untouched {
					t.Fatalf("%s %+v: wrote behind row %d", f, sh, j)
				}
				continue
			}
			row := w[i*stride:][:stride]
			want, tolerance := product(t, k, row, &in, int(r))
			if diff := math.Abs(float64(got) - want); !(diff <= tolerance) {
				t.Fatalf("%s %+v: result %d of row %d is %g, want %g ± %g", f, sh, i, j, got, want, tolerance)
			}
			if k.MatMul(single, 1, row, 1, &in, []int32{r}); math.Float32bits(single[0]) != math.Float32bits(got) {
				t.Fatalf("%s %+v: result %d of row %d is %x, alone %x", f, sh, i, j, math.Float32bits(got), math.Float32bits(single[0]))
			}
		}
	}
}

// Every format, instruction set and kind of shape agrees with float64, and a result's bits do not depend on what shares the call.
func TestMatMul(t *testing.T) {
	picks := [][]int32{
		{0},
		{1, 0},
		{2, 0, 1},
		{0, 1, 2, 3},
		{6, 0, 3, 2, 5},
		{0, 1, 2, 3, 4, 5},
		{0, 2, 4, 6, 1, 3, 5},
		{0, 1, 2, 3, 4, 5, 6, 7},
		{8, 7, 6, 5, 4, 3, 2, 1, 0},
	}
	eachISA(t, func(t *testing.T, s *set) {
		for _, f := range format.All() {
			t.Run(f.String(), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, uint64(f)))
				b := f.Info().Block
				cols := []int{b, 2 * b, 3 * b, 256, 320, 512, 768, 1280, 2048}
				if b == 1 {
					cols = append(cols, 7, 31, 33, 100, 515, 1023)
				}
				for _, c := range cols {
					c = roundUp(c, b)
					for _, pick := range picks {
						checkMatMul(t, rng, s, f, shape{1 + rng.IntN(5), c, int(slices.Max(pick)) + 1, pick})
					}
				}
				checkMatMul(t, rng, s, f, shape{35, roundUp(544, b), 5, picks[3]}) // more than a panel
				checkMatMul(t, rng, s, f, shape{70, 256, 6, picks[5]})
				checkMatMul(t, rng, s, f, shape{9, roundUp(2080, b), 6, upTo(31, 6)}) // blocks of columns, and rows that a panel is worth
				checkMatMul(t, rng, s, f, shape{5, 256, 3, upTo(100, 3)})
			})
		}
	})
}

// upTo returns n rows of an input of that many rows.
func upTo(n, rows int) (pick []int32) {
	for i := range n {
		pick = append(pick, int32(i%rows))
	}
	return pick
}

func FuzzMatMul(f *testing.F) {
	for i := range format.All() {
		f.Add(uint64(3), uint8(i), uint8(2), uint16(700), uint8(5))
	}
	f.Add(uint64(1), uint8(8), uint8(3), uint16(320), uint8(5))
	f.Add(uint64(2), uint8(12), uint8(1), uint16(256), uint8(1))
	f.Add(uint64(2), uint8(12), uint8(1), uint16(256), uint8(0)) // one row, repeated
	f.Fuzz(func(t *testing.T, seed uint64, id, n uint8, cols uint16, rows uint8) {
		all := format.All()
		fm := all[int(id)%len(all)]
		rng := rand.New(rand.NewPCG(seed, 0))
		sh := shape{1 + int(n)%40, roundUp(1+int(cols)%3000, fm.Info().Block), 1 + int(rows)%12, nil}
		for range 1 + rng.IntN(24) {
			sh.pick = append(sh.pick, int32(rng.IntN(sh.rows)))
		}
		for i := generic; i <= detect(); i++ {
			checkMatMul(t, rng, newSet(i), fm, sh)
		}
	})
}

// The integer form is q = x/d to the nearest, ties to even, with d = amax/127, and what derives from it.
func TestQuantize(t *testing.T) {
	eachISA(t, func(t *testing.T, s *set) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, cols := range []int{1, 16, 31, 32, 33, 96, 320, 512, 515, 1023, 2048} {
			x := randomFloats(rng, 3*cols)
			for i := range min(cols, 32) {
				x[cols+i] = 0 // a block of zeros
			}
			x[2*cols] = 1e-44 // and one whose scale underflows
			for i := 1; i < min(cols, 32); i++ {
				x[2*cols+i] = 0
			}
			var in Input
			in.Set(x, 3, cols)
			for r := range in.Rows {
				in.quantize(s.vector, r)
			}
			p := in.Padded()
			for i := range 3 * p {
				r, c, b := i/p, i%p, i/block
				var amax float32
				for j := c / block * block; j < min(cols, (c/block+1)*block); j++ {
					amax = max(amax, float32(math.Abs(float64(x[r*cols+j]))))
				}
				d := amax / 127
				var q float64
				if c < cols && d > 0 {
					q = math.RoundToEven(float64(x[r*cols+c] / d))
				}
				if in.D[b] != d || in.Q[i] != int8(q) || in.tiles[r*p+tileIndex(c)] != int8(q) {
					t.Fatalf("%d columns, row %d column %d: d=%g q=%d, in tiles %d; want d=%g q=%g",
						cols, r, c, in.D[b], in.Q[i], in.tiles[r*p+tileIndex(c)], d, q)
				}
			}
			for b := range 3 * p / block {
				var sum, half int32
				for i, q := range in.Q[b*block:][:block] {
					if sum += int32(q); i < 16 {
						half += int32(q)
					}
				}
				if in.S[b] != sum || in.half[b] != half {
					t.Fatalf("%d columns, block %d: sums %d, %d, want %d, %d", cols, b, in.S[b], in.half[b], sum, half)
				}
			}
		}
	})
}

// A value that is not finite must show in every product with its row.
func TestNonFinite(t *testing.T) {
	eachISA(t, func(t *testing.T, s *set) {
		rng := rand.New(rand.NewPCG(5, 6))
		for _, f := range format.All() {
			cols := roundUp(96, f.Info().Block)
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				x := randomFloats(rng, 5*cols)
				x[cols+rng.IntN(cols)] = float32(bad)
				var in Input
				in.Set(x, 5, cols)
				for r := range in.Rows {
					in.quantize(s.vector, r)
				}
				for _, rows := range [][]int32{{1, 0}, {0, 1, 2, 3, 4}} {
					dst := make([]float32, len(rows))
					w := randomRow(t, rng, f, cols)
					for allZero(f, w, cols) {
						w = randomRow(t, rng, f, cols)
					}
					s.kernels[f].MatMul(dst, 1, w, 1, &in, rows)
					for j, r := range rows {
						finite := !math.IsNaN(float64(dst[j])) && !math.IsInf(float64(dst[j]), 0)
						if finite == (r == 1) {
							t.Fatalf("%s, %g in row 1: row %d gives %g", f, bad, r, dst[j])
						}
					}
				}
			}
		}
	})
}

func allZero(f format.Format, w []byte, cols int) bool {
	v := make([]float32, cols)
	return format.Decode(f, v, w) != nil || !slices.ContainsFunc(v, func(v float32) bool { return v != 0 })
}

func TestSelect(t *testing.T) {
	t.Cleanup(func() { _ = Select("") })
	if err := Select("sse9"); err == nil {
		t.Error("an unknown instruction set was accepted")
	}
	if err := Select(""); err != nil || Selected() != Sets()[len(Sets())-1] {
		t.Errorf("%s was selected of %q, error %v", Selected(), Sets(), err)
	}
	for _, name := range []string{"avx512", "avx2", "generic"} {
		if err := Select(name); slices.Contains(Sets(), name) != (err == nil) {
			t.Errorf("%s of %q: %v", name, Sets(), err)
		} else if err != nil {
			continue
		}
		if Selected() != name {
			t.Errorf("%s is selected, want %s", Selected(), name)
		}
		for _, f := range format.All() {
			if k := For(f); k.Format != f {
				t.Errorf("For(%s) is the kernel of %s", f, k.Format)
			}
		}
	}
	if k := For(format.Q8_0); k.ISA != "generic" || k.Form != FormQ8 {
		t.Errorf("generic was selected, Q8_0 has %s, form %d", k.ISA, k.Form)
	}
	if For(format.Unknown) != nil {
		t.Error("there is a kernel of no format")
	}
}

// Too little memory is a caller's mistake that must not reach the assembly.
func TestMatMulChecks(t *testing.T) {
	var in Input
	in.Set(make([]float32, 2*64), 2, 64)
	k := For(format.Q8_0)
	for name, call := range map[string]func(){
		"weights": func() { k.MatMul(make([]float32, 2), 1, make([]byte, 67), 1, &in, []int32{0, 1}) },
		"results": func() { k.MatMul(make([]float32, 1), 1, make([]byte, 68), 1, &in, []int32{0, 1}) },
		"row":     func() { k.MatMul(make([]float32, 2), 1, make([]byte, 68), 1, &in, []int32{0, 2}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			call()
		}()
	}
}

// measure reports the best time of f, as others disturb the average, in bytes of weights and multiply-adds a second.
func measure(b *testing.B, bytes, macs int, f func()) {
	best := time.Hour
	for b.Loop() {
		start := time.Now()
		f()
		best = min(best, time.Since(start))
	}
	b.ReportMetric(float64(bytes)/best.Seconds()/1e9, "GB/s")
	b.ReportMetric(float64(macs)/best.Seconds()/1e9, "GMAC/s")
}

// BenchmarkMatMul has matrices that stay in the L2 cache: one activation row is decode, 32 are prefill.
func BenchmarkMatMul(b *testing.B) {
	for _, shape := range [][2]int{{256, 2048}, {128, 320}, {320, 128}} {
		n, cols := shape[0], shape[1]
		for _, f := range format.All() {
			if cols%f.Info().Block != 0 {
				continue
			}
			for i := range detect() + 1 {
				s := newSet(i)
				rng := rand.New(rand.NewPCG(1, 2))
				w := slices.Repeat(randomRow(b, rng, f, cols), n)
				for _, rows := range []int{1, 2, 4, 32} {
					var in Input
					in.Set(randomFloats(rng, rows*cols), rows, cols)
					var pick []int32
					for r := range rows {
						in.quantize(s.vector, r)
						pick = append(pick, int32(r))
					}
					dst := make([]float32, rows*n)
					b.Run(fmt.Sprintf("%dx%d/%s/%s/rows=%d", n, cols, f, i, rows), func(b *testing.B) {
						measure(b, len(w), n*cols*rows, func() { s.kernels[f].MatMul(dst, n, w, n, &in, pick) })
					})
				}
			}
		}
	}
}

// BenchmarkStream has one activation row and more weights than any cache holds.
func BenchmarkStream(b *testing.B) {
	const cols = 2048
	buf := make([]byte, 600<<20)
	for _, f := range format.All() {
		rng := rand.New(rand.NewPCG(1, 2))
		row := randomRow(b, rng, f, cols)
		n := len(buf) / len(row)
		for i := range n {
			copy(buf[i*len(row):], row)
		}
		dst := make([]float32, n)
		for i := avx2; i <= detect(); i++ {
			s := newSet(i)
			if !s.kernels[f].Direct {
				continue
			}
			var in Input
			in.Set(randomFloats(rng, cols), 1, cols)
			in.quantize(s.vector, 0)
			b.Run(fmt.Sprintf("%s/%s", f, i), func(b *testing.B) {
				measure(b, n*len(row), n*cols, func() { s.kernels[f].MatMul(dst, n, buf, n, &in, []int32{0}) })
			})
		}
	}
}
