package shaders_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/shaders"
	"github.com/coli-moe/coli/shaders/layout"
	"github.com/coli-moe/coli/weights/format"
)

// gemmFormats are the formats with a device form.
var gemmFormats = []format.Format{
	format.F32, format.F16, format.BF16, format.Q8_0, format.I8Row, format.Q4_0, format.I4G64, format.MXFP4, format.Q4_K, format.Q5_K,
	format.Q6_K,
}

// gemmForms are the forms in which the device multiplies a format.
func gemmForms(g *gpu, f format.Format) []shaders.GEMMForm {
	features := g.d.Info().Features
	var forms []shaders.GEMMForm
	add := func(form shaders.GEMMForm, has bool) {
		if has {
			forms = append(forms, form)
		}
	}
	integer := kernels.For(f).Form == kernels.FormQ8
	add(shaders.GEMMBytes, integer)
	add(shaders.GEMMDot, integer && features.IntegerDot)
	add(shaders.GEMMCoop, integer && features.CoopS8)
	add(shaders.GEMMFloat, !integer)
	add(shaders.GEMMHalf, !integer && features.CoopF16)
	return forms
}

// gemmWeights is a matrix as numbers and as the device has it.
type gemmWeights struct {
	layout.Layout
	values []float32 // [Rows, Cols]
	packed []byte
}

// newGEMMWeights makes a random matrix; its rows repeat after 11.
func newGEMMWeights(g *gpu, f format.Format, rows, cols int, seed uint64) gemmWeights {
	g.tb.Helper()
	l, ok := layout.For(f, rows, cols)
	size, err := f.RowBytes(cols)
	if !ok || err != nil {
		g.tb.Fatalf("no layout of %s %d×%d: %v", f, rows, cols, err)
	}
	m := gemmWeights{l, make([]float32, rows*cols), make([]byte, l.Bytes)}
	file := make([]byte, rows*size)
	for r := range rows {
		row, values := file[r*size:][:size], m.values[r*cols:][:cols]
		switch {
		case r >= 11:
			copy(row, file[(r-11)*size:])
		case f == format.Q5_K:
			randomQ5_K(row, seed+uint64(r))
		default:
			err = format.Encode(f, row, normal(cols, seed+uint64(r)))
		}
		if err == nil {
			err = format.Decode(f, values, row)
		}
		if err != nil {
			g.tb.Fatal(err)
		}
	}
	m.Pack(m.packed, file)
	return m
}

// randomQ5_K makes blocks of random codes under small scales, as package format does not write them.
func randomQ5_K(row []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	for i := range row {
		row[i] = byte(rng.Uint32())
	}
	for i := 0; i < len(row); i += 176 {
		binary.LittleEndian.PutUint16(row[i:], format.F32ToF16(rng.Float32()/512))
		binary.LittleEndian.PutUint16(row[i+2:], format.F32ToF16(rng.Float32()/64))
	}
}

// gemmInput is rows of activations in the form that a format multiplies: addresses, and the values that are there.
type gemmInput struct {
	x, xd  uint64
	values []float32 // [rows, cols]
}

func newGEMMInput(g *gpu, x []float32, rows, cols int, f format.Format) gemmInput {
	if kernels.For(f).Form == kernels.FormF32 {
		return gemmInput{upload(g, x).Addr, 0, x}
	}
	q, d := q8(x, rows, cols)
	blocks := (cols + 31) / 32
	values := make([]float32, rows*cols)
	for i := range values {
		r, c := i/cols, i%cols
		values[i] = d[2*(r*blocks+c/32)] * float32(q[r*blocks*32+c])
	}
	return gemmInput{upload(g, q).Addr, upload(g, d).Addr, values}
}

// dot64 is w·x and a bound of the error of float32 sums.
func dot64(w, x []float32) (sum, tolerance float64) {
	for i, v := range w {
		p := float64(v) * float64(x[i])
		sum += p
		tolerance += math.Abs(p)
	}
	return sum, 2e-6*tolerance + 1e-6
}

// gemmCompare fails if a value of got is further from what it should be than is allowed.
func gemmCompare(g *gpu, what string, got []float32, cols int, want func(r, c int) (value, tolerance float64)) {
	g.tb.Helper()
	for i, v := range got {
		value, tolerance := want(i/cols, i%cols)
		if !(math.Abs(float64(v)-value) <= tolerance) {
			g.tb.Errorf("%s: row %d column %d is %g, not %g (allowed %.2g)", what, i/cols, i%cols, v, value, tolerance)
			return
		}
	}
}

// gemmWidths are columns to try a format with.
func gemmWidths(f format.Format) []int {
	n := f.Info().Block
	w := []int{n, 3 * n, 5 * n, 1024}
	if n == 1 {
		w = append(w, 31, 33, 63, 100, 257)
	}
	return slices.Compact(w)
}

// gemmTiles are the heights of tiles to try. Pipelines take a CPU device long to compile, so most formats get one.
func gemmTiles(f format.Format, form shaders.GEMMForm) []int {
	switch {
	case form == shaders.GEMMHalf, f == format.F32:
		return []int{16, 32, 64}
	case form == shaders.GEMMCoop, f == format.Q8_0 && form == shaders.GEMMDot:
		return []int{16, 32, 64, 128}
	}
	return []int{32}
}

func TestGEMM(t *testing.T) {
	shapes := []struct{ rows, out int }{{16, 5}, {19, 64}, {33, 130}, {64, 65}, {70, 17}, {130, 33}, {1, 3}}
	for _, f := range gemmFormats {
		t.Run(f.String(), func(t *testing.T) {
			g := openGPU(t)
			for _, form := range gemmForms(g, f) {
				tiles := gemmTiles(f, form)
				for i, cols := range gemmWidths(f) {
					s := shapes[(i+int(f))%len(shapes)]
					testGEMM(g, shaders.GEMMSpec{Format: f, Form: form, TileRows: tiles[i%len(tiles)]}, s.rows, s.out, cols)
				}
				for _, tile := range tiles {
					for _, s := range shapes {
						testGEMM(g, shaders.GEMMSpec{Format: f, Form: form, TileRows: tile}, s.rows, s.out, 2*max(64, f.Info().Block))
					}
				}
			}
		})
	}
}

// testGEMM checks a product with a bias that is added to what is there.
func testGEMM(g *gpu, s shaders.GEMMSpec, rows, out, cols int) {
	g.tb.Helper()
	w := newGEMMWeights(g, s.Format, out, cols, 1)
	in := newGEMMInput(g, normal(rows*cols, 2), rows, cols, s.Format)
	bias, before := normal(out, 3), normal(rows*out, 4)
	y := upload(g, before)
	p := shaders.GEMMPush{
		W: upload(g, w.packed).Addr, X: in.x, XD: in.xd, Y: y.Addr, Bias: upload(g, bias).Addr, Rows: uint32(rows), Flags: shaders.GEMMAdd,
	}
	p.SetMatrix(w.Layout)
	dispatch(g, p, shaders.GEMMLaunch(p, s))
	what := fmt.Sprintf("form %d, tile of %d rows, %d rows, %d×%d", s.Form, s.TileRows, rows, out, cols)
	gemmCompare(g, what, fetch[float32](y), out, func(r, c int) (float64, float64) {
		sum, tolerance := dot64(w.values[c*cols:][:cols], in.values[r*cols:][:cols])
		return sum + float64(bias[c]) + float64(before[r*out+c]), tolerance
	})
}

// What is not finite shows in its row, and only there.
func TestGEMMNonFinite(t *testing.T) {
	g := openGPU(t)
	const rows, out, cols = 20, 7, 256
	for _, f := range []format.Format{format.F32, format.Q8_0, format.Q4_K, format.Q5_K, format.Q6_K} {
		for _, form := range gemmForms(g, f) {
			x := normal(rows*cols, 1)
			x[3*cols+77] = float32(math.NaN())
			in, w, y := newGEMMInput(g, x, rows, cols, f), newGEMMWeights(g, f, out, cols, 2), g.alloc(4*rows*out)
			p := shaders.GEMMPush{W: upload(g, w.packed).Addr, X: in.x, XD: in.xd, Y: y.Addr, Rows: rows}
			p.SetMatrix(w.Layout)
			dispatch(g, p, shaders.GEMMLaunch(p, shaders.GEMMSpec{Format: f, Form: form, TileRows: 32}))
			for i, v := range fetch[float32](y) {
				if finite := !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0); finite == (i/out == 3) {
					t.Errorf("%s, form %d: row %d column %d is %g", f, form, i/out, i%out, v)
				}
			}
		}
	}
}

// Ways to route.
const (
	anyExpert  = "random"
	oneExpert  = "one expert takes all"
	someEmpty  = "half of the experts are empty"
	someAbsent = "some ids are no expert's"
)

var routings = []string{anyExpert, oneExpert, someEmpty, someAbsent}

// routedIDs draws the experts of each row.
func routedIDs(kind string, rows, topK, experts int) []int32 {
	rng := rand.New(rand.NewPCG(uint64(rows), uint64(experts)))
	var ids []int32
	for range rows {
		for _, e := range rng.Perm(experts)[:topK] {
			switch {
			case kind == oneExpert:
				e = experts - 2
			case kind == someEmpty:
				e &^= 1
			case kind == someAbsent && e == 1:
				e = -1
			case kind == someAbsent && e == 2:
				e = experts
			}
			ids = append(ids, int32(e))
		}
	}
	return ids
}

// groupPlan sorts pairs by expert on the device.
func groupPlan(g *gpu, ids []int32, experts, tileRows int) (p shaders.GroupPush, tiles, pairs buffer) {
	tiles, pairs = g.alloc(16*shaders.GroupTiles(len(ids), experts, tileRows)), g.alloc(4*len(ids))
	p = shaders.GroupPush{
		IDs: upload(g, ids).Addr, Tiles: tiles.Addr, Pairs: pairs.Addr,
		Count: uint32(len(ids)), Experts: uint32(experts), TileRows: uint32(tileRows),
	}
	dispatch(g, p, shaders.GroupLaunch(p))
	return p, tiles, pairs
}

// Every pair of an expert is in one of its tiles, in rising order; no tile is too large; the rest of them have no pairs.
func TestGroupPlan(t *testing.T) {
	g := openGPU(t)
	for _, s := range []struct{ rows, topK, experts, tile int }{{1, 1, 1, 16}, {1, 8, 64, 16}, {40, 3, 6, 16}, {130, 8, 64, 32}, {300, 4, 20, 64}} {
		for _, kind := range routings {
			if kind != anyExpert && s.experts < 6 {
				continue
			}
			ids := routedIDs(kind, s.rows, s.topK, s.experts)
			_, tiles, pairs := groupPlan(g, ids, s.experts, s.tile)
			var got, want []int32
			for e := range int32(s.experts) {
				for tile := range slices.Chunk(fetch[uint32](tiles), 4) {
					if tile[2] > uint32(s.tile) {
						t.Fatalf("%v, %s: a tile of %d pairs", s, kind, tile[2])
					}
					if int32(tile[0]) == e && tile[2] > 0 {
						got = append(got, fetch[int32](pairs)[tile[1]:][:tile[2]]...)
					}
				}
				for i, id := range ids {
					if id == e {
						want = append(want, int32(i))
					}
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, %s: the tiles have pairs\n%v, not\n%v", s, kind, got, want)
			}
		}
	}
}

func TestGEMMGrouped(t *testing.T) {
	for i, f := range gemmFormats {
		t.Run(f.String(), func(t *testing.T) {
			g := openGPU(t)
			for _, form := range gemmForms(g, f) {
				for _, tile := range gemmTiles(f, form) {
					spec := shaders.GEMMSpec{Format: f, Form: form, TileRows: tile, Experts: 6}
					testGrouped(g, spec, anyExpert, 37)
					testGrouped(g, spec, routings[1+i%3], 37)
					testGrouped(g, spec, anyExpert, 2)
				}
			}
		})
	}
}

// testGrouped checks the gated product of gate and up, the product of down, and that pairs of an expert that is missing are left alone.
func testGrouped(g *gpu, s shaders.GEMMSpec, kind string, rows int) {
	g.tb.Helper()
	const topK, missing = 3, 4
	block := s.Format.Info().Block
	hidden, width := max(96, 2*block), max(block, 40/block*block)
	if s.Format == format.I8Row {
		width = 41
	}
	experts := make([][3]gemmWeights, s.Experts)
	table := make([]uint64, 3*s.Experts)
	for e := range experts {
		seed := uint64(1000 * e)
		experts[e] = [3]gemmWeights{
			newGEMMWeights(g, s.Format, width, hidden, seed), newGEMMWeights(g, s.Format, width, hidden, seed+100),
			newGEMMWeights(g, s.Format, hidden, width, seed+200),
		}
		for i, w := range experts[e] {
			if e != missing {
				table[3*e+i] = upload(g, w.packed).Addr
			}
		}
	}
	ids := routedIDs(kind, rows, topK, s.Experts)
	pairs := len(ids)
	group, _, _ := groupPlan(g, ids, s.Experts, s.TileRows)
	what := fmt.Sprintf("form %d, %s, %d rows", s.Form, kind, rows)
	// check calls value for what a dispatch should have written, and wants the rest as it was.
	check := func(what string, y buffer, cols int, value func(r, c int) (float64, float64)) {
		g.tb.Helper()
		before := float64(math.Pi)
		gemmCompare(g, what, fetch[float32](y), cols, func(r, c int) (float64, float64) {
			if e := ids[r]; e < 0 || int(e) >= s.Experts || e == missing {
				return before, 1e-6
			}
			return value(r, c)
		})
	}
	empty := func(n int) buffer { return upload(g, slices.Repeat([]float32{math.Pi}, n)) }

	in, h := newGEMMInput(g, normal(rows*hidden, 5), rows, hidden, s.Format), empty(pairs*width)
	p := shaders.GEMMPush{
		W: upload(g, table).Addr, X: in.x, XD: in.xd, Y: h.Addr, Tiles: group.Tiles, Pairs: group.Pairs,
		Rows: uint32(pairs), Divide: topK,
	}
	p.SetMatrix(experts[0][0].Layout)
	s.Act = shaders.ActSiLU
	dispatch(g, p, shaders.GEMMLaunch(p, s))
	check(what+", gate and up", h, width, func(r, c int) (float64, float64) {
		x, w := in.values[r/topK*hidden:][:hidden], experts[ids[r]]
		gate, tg := dot64(w[0].values[c*hidden:][:hidden], x)
		up, tu := dot64(w[1].values[c*hidden:][:hidden], x)
		act := gate / (1 + math.Exp(-gate))
		return act * up, 1.2*tg*math.Abs(up) + math.Abs(act)*tu + 2e-6*math.Abs(act*up)
	})

	in, y := newGEMMInput(g, normal(pairs*width, 6), pairs, width, s.Format), empty(pairs*hidden)
	p.X, p.XD, p.Y, p.Matrix, p.Divide = in.x, in.xd, y.Addr, 2, 1
	p.SetMatrix(experts[0][2].Layout)
	s.Act = shaders.ActNone
	dispatch(g, p, shaders.GEMMLaunch(p, s))
	check(what+", down", y, hidden, func(r, c int) (float64, float64) {
		return dot64(experts[ids[r]][2].values[c*width:][:width], in.values[r*width:][:width])
	})
}

func TestMoESum(t *testing.T) {
	g := openGPU(t)
	const rows, cols, topK = 19, 301, 4
	slots, weights, before := normal(rows*topK*cols, 1), normal(rows*topK, 2), normal(rows*cols, 3)
	for _, flags := range []uint32{0, shaders.MoESumAdd} {
		y := upload(g, before)
		p := shaders.MoESumPush{
			Slots: upload(g, slots).Addr, Weights: upload(g, weights).Addr, Y: y.Addr, Rows: rows, Cols: cols, TopK: topK, Flags: flags,
		}
		dispatch(g, p, shaders.MoESumLaunch(p))
		gemmCompare(g, "sum", fetch[float32](y), cols, func(r, c int) (float64, float64) {
			sum := float64(before[r*cols+c]) * float64(flags)
			for rank := range topK {
				sum += float64(weights[r*topK+rank]) * float64(slots[(r*topK+rank)*cols+c])
			}
			return sum, 1e-5
		})
	}
}
