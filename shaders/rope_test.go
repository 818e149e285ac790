package shaders_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/ref"
	"github.com/coli-moe/coli/shaders"
)

// tableOf is a rotation's table as the kernels read it.
func tableOf(r *ops.Rope, positions int) []float32 {
	r.Grow(positions)
	var out []float32
	for pos := range positions {
		cos, sin := r.At(pos)
		for i := range cos {
			out = append(out, cos[i], sin[i])
		}
	}
	return out
}

// flat is rows' places as the kernels read them.
func flat(places []ops.Place) (out []int32) {
	for _, p := range places {
		out = append(out, int32(p.Pos), int32(p.Seq))
	}
	return out
}

// rotated is the reference's rotation of a copy of x.
func rotated(x []float32, cols int, places []ops.Place, r *ops.Rope) []float32 {
	y := append([]float32(nil), x...)
	new(ref.Executor).RoPE(&ops.Tensor{Rows: len(places), Cols: cols, Data: y}, places, r)
	return y
}

var somePlaces = []ops.Place{{Pos: 0, Seq: 1}, {Pos: 17, Seq: 0}, {Pos: 40, Seq: 1}, {Pos: 41, Seq: 1}, {Pos: 5, Seq: 2}}

func TestRoPE(t *testing.T) {
	g := openGPU(t)
	for _, c := range [][4]int{{4, 2, 128, 128}, {3, 0, 64, 16}, {5, 5, 10, 6}} {
		heads, kvHeads, headDim, dim := c[0], c[1], c[2], c[3]
		r := ops.NewRope(headDim, dim, 10000)
		rows := len(somePlaces)
		q, k := normal(rows*heads*headDim, 1), normal(rows*kvHeads*headDim+1, 2)
		bq, bk := upload(g, q), upload(g, k)
		p := shaders.RopePush{
			Q: bq.Addr, K: bk.Addr, Table: upload(g, tableOf(r, 64)).Addr, Places: upload(g, flat(somePlaces)).Addr,
			Rows: uint32(rows), QHeads: uint32(heads), KHeads: uint32(kvHeads), HeadDim: uint32(headDim), Dim: uint32(dim),
		}
		dispatch(g, p, shaders.RopeLaunch(p))
		near(t, fmt.Sprint(c, " q"), fetch[float32](bq), rotated(q, heads*headDim, somePlaces, r), 1e-6)
		near(t, fmt.Sprint(c, " k"), fetch[float32](bk), rotated(k[:len(k)-1], kvHeads*headDim, somePlaces, r), 1e-6)
	}
}

const mirrorRows = 48

// mirrors are the K and V mirrors of three conversations, with nothing in them.
func mirrors(g *gpu, kWidth, vWidth int) (table buffer, kv [3][2]buffer) {
	var all []buffer
	for s := range kv {
		kv[s] = [2]buffer{g.alloc(4 * mirrorRows * kWidth), g.alloc(4 * mirrorRows * vWidth)}
		all = append(all, kv[s][:]...)
	}
	return addresses(g, all...), kv
}

// stored checks that the mirrors have x at the places and nothing elsewhere.
func stored(tb testing.TB, what string, kv [3][2]buffer, which, width int, x []float32, tolerance float64) {
	tb.Helper()
	for s := range kv {
		m := fetch[float32](kv[s][which])
		for r, p := range somePlaces {
			if p.Seq == s {
				row := m[p.Pos*width : (p.Pos+1)*width]
				near(tb, fmt.Sprint(what, " at ", p), row, x[r*width:(r+1)*width], tolerance)
				for i := range row {
					row[i] = float32(math.NaN())
				}
			}
		}
		for i, v := range m {
			if v == v {
				tb.Fatalf("%s: conversation %d has something at row %d", what, s, i/width)
			}
		}
	}
}

func TestStoreKV(t *testing.T) {
	g := openGPU(t)
	rows := len(somePlaces)
	for _, c := range [][2]int{{256, 256}, {192, 128}, {10, 6}, {4100, 4100}} {
		kw, vw := c[0], c[1]
		k, v := normal(rows*kw, 1), normal(rows*vw, 2)
		table, kv := mirrors(g, kw, vw)
		sk, sv := g.alloc(4*rows*kw), g.alloc(4*rows*vw)
		p := shaders.StoreKVPush{
			K: upload(g, k).Addr, V: upload(g, v).Addr, Places: upload(g, flat(somePlaces)).Addr, Mirrors: table.Addr,
			StageK: sk.Addr, StageV: sv.Addr, Rows: uint32(rows), KWidth: uint32(kw), VWidth: uint32(vw),
		}
		dispatch(g, p, shaders.StoreKVLaunch(p))
		stored(t, "k", kv, 0, kw, k, 0)
		stored(t, "v", kv, 1, vw, v, 0)
		equal(t, "staged k", fetch[float32](sk), k)
		equal(t, "staged v", fetch[float32](sv), v)
	}
}

// The rows that store_kv.comp leaves in the mirrors, without staging, are those that kv_out.comp copies.
func TestKVOut(t *testing.T) {
	g := openGPU(t)
	rows := len(somePlaces)
	places := upload(g, flat(somePlaces)).Addr
	var pieces []shaders.KVPiece
	var want [][]float32
	var got []buffer
	piece := func(from uint64, which uint32, width int, x []float32) {
		to := g.alloc(4 * rows * width)
		pieces = append(pieces, shaders.KVPiece{From: from, To: to.Addr, Width: uint32(width), Which: which})
		want, got = append(want, x), append(got, to)
	}
	for i, c := range [][2]int{{256, 256}, {192, 128}, {10, 6}, {4100, 4100}} {
		kw, vw := c[0], c[1]
		k, v := normal(rows*kw, uint64(i)), normal(rows*vw, uint64(10+i))
		table, _ := mirrors(g, kw, vw)
		p := shaders.StoreKVPush{
			K: upload(g, k).Addr, V: upload(g, v).Addr, Places: places, Mirrors: table.Addr,
			Rows: uint32(rows), KWidth: uint32(kw), VWidth: uint32(vw),
		}
		dispatch(g, p, shaders.StoreKVLaunch(p))
		piece(table.Addr, shaders.KVPieceK, kw, k)
		piece(table.Addr, shaders.KVPieceV, vw, v)
	}
	for _, width := range []int{1, 8, 6} {
		x := normal(rows*width, uint64(20+width))
		piece(upload(g, x).Addr, shaders.KVPieceRows, width, x)
	}
	p := shaders.KVOutPush{Pieces: upload(g, pieces).Addr, Places: places, Rows: uint32(rows)}
	dispatch(g, p, shaders.KVOutLaunch(p, len(pieces), 4100))
	for i := range pieces {
		equal(t, fmt.Sprint("piece ", i), fetch[float32](got[i]), want[i])
	}
}

func TestQKVPost(t *testing.T) {
	g := openGPU(t)
	rows := len(somePlaces)
	for _, c := range []struct {
		heads, kvHeads, headDim, dim int
		clamp                        float32
		flags                        uint32
	}{
		{16, 16, 128, 128, 0.8, shaders.QKVNorm | shaders.QKVWhole},                    // OLMoE
		{32, 4, 128, 128, 0, shaders.QKVNorm},                                          // Qwen3-MoE
		{4, 2, 64, 64, 0, 0},                                                           // no norm
		{6, 3, 96, 32, 1, shaders.QKVNorm | shaders.QKVPlusOne},                        // a part of the head is rotated
		{40, 8, 128, 64, 0, shaders.QKVNorm | shaders.QKVWhole | shaders.QKVPlusOne},   // more than an invocation holds
		{3, 1, 8, 8, 0, shaders.QKVNorm},                                               // a unit a head
		{2, 2, 256, 64, 1.5, shaders.QKVNorm | shaders.QKVPlusOne | shaders.QKVWhole},  // wide heads
		{2, 1, 512, 512, 0, shaders.QKVNorm},                                           // wider than the kernel's usual workgroup
		{5, 5, 24, 16, 0.5, shaders.QKVNorm | shaders.QKVWhole | shaders.QKVPlusOne},   // no power of two
		{128, 8, 128, 128, 0, shaders.QKVNorm | shaders.QKVWhole | shaders.QKVPlusOne}, // 16384 columns
	} {
		t.Run(fmt.Sprintf("%d/%d heads of %d flags %d", c.heads, c.kvHeads, c.headDim, c.flags), func(t *testing.T) {
			g.tb = t
			if !shaders.QKVFits(c.headDim, c.dim) {
				t.Fatal("the kernel does not take it")
			}
			qw, kw := c.heads*c.headDim, c.kvHeads*c.headDim
			q, k, v := normal(rows*qw, 1), normal(rows*kw, 2), normal(rows*kw, 3)
			r := ops.NewRope(c.headDim, c.dim, 10000)
			qseg, kseg := c.headDim, c.headDim
			if c.flags&shaders.QKVWhole != 0 {
				qseg, kseg = qw, kw
			}
			qn, kn := normal(qseg, 4), normal(kseg, 5)
			wantQ, wantK, wantV := q, k, v
			if c.flags&shaders.QKVNorm != 0 {
				var flags uint32
				if c.flags&shaders.QKVPlusOne != 0 {
					flags = shaders.NormPlusOne
				}
				wantQ, wantK = normOf(q, qn, qseg, 1e-5, flags), normOf(k, kn, kseg, 1e-5, flags)
			}
			clamp := func(x []float32) []float32 {
				y := append([]float32(nil), x...)
				for i, v := range y {
					if c.clamp > 0 {
						y[i] = max(-c.clamp, min(c.clamp, v))
					}
				}
				return y
			}
			wantQ, wantK, wantV = rotated(clamp(wantQ), qw, somePlaces, r), rotated(clamp(wantK), kw, somePlaces, r), clamp(wantV)

			table, kv := mirrors(g, kw, kw)
			bq, bk := upload(g, q), upload(g, k)
			sk, sv := g.alloc(4*rows*kw), g.alloc(4*rows*kw)
			p := shaders.QKVPush{
				Q: bq.Addr, K: bk.Addr, V: upload(g, v).Addr, QW: upload(g, qn).Addr, KW: upload(g, kn).Addr,
				Table: upload(g, tableOf(r, 64)).Addr, Places: upload(g, flat(somePlaces)).Addr, Mirrors: table.Addr,
				StageK: sk.Addr, StageV: sv.Addr, Rows: uint32(rows), Heads: uint32(c.heads), KVHeads: uint32(c.kvHeads),
				HeadDim: uint32(c.headDim), Dim: uint32(c.dim), Eps: 1e-5, Clamp: c.clamp, Flags: c.flags,
			}
			dispatch(g, p, shaders.QKVLaunch(p))
			near(t, "q", fetch[float32](bq), wantQ, 3e-6)
			equal(t, "k", fetch[float32](bk), k)
			near(t, "staged k", fetch[float32](sk), wantK, 3e-6)
			near(t, "staged v", fetch[float32](sv), wantV, 0)
			stored(t, "k", kv, 0, kw, wantK, 3e-6)
			stored(t, "v", kv, 1, kw, wantV, 0)

			// Without staging rows the mirrors get the same.
			table, kv = mirrors(g, kw, kw)
			p.Q, p.Mirrors, p.StageK, p.StageV = upload(g, q).Addr, table.Addr, 0, 0
			dispatch(g, p, shaders.QKVLaunch(p))
			stored(t, "k", kv, 0, kw, wantK, 3e-6)
			stored(t, "v", kv, 1, kw, wantV, 0)
		})
	}
}
