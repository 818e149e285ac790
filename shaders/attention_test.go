package shaders_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/shaders"
)

// attentionCase is an attention over conversations of random keys and values.
type attentionCase struct {
	heads, kvHeads, headDim int
	window                  int
	flags                   uint32
	places                  []ops.Place
}

func (c attentionCase) String() string {
	return fmt.Sprintf("%d of %d/%d heads of %d, window %d, flags %d, first %v",
		len(c.places), c.heads, c.kvHeads, c.headDim, c.window, c.flags, c.places[0])
}

// attentionInput is a case's data on host and device.
type attentionInput struct {
	attentionCase
	q, sinks, gate []float32
	k, v           [][]float32 // of each conversation
	scale          float32
	push           shaders.AttentionPush
	o, xq, xd      buffer
}

const attentionSplits = 8

func (c attentionCase) input(g *gpu) *attentionInput {
	rows, width, kw := len(c.places), c.heads*c.headDim, c.kvHeads*c.headDim
	in := &attentionInput{
		attentionCase: c, q: normal(rows*width, 1), sinks: normal(c.heads, 2), gate: normal(rows*width, 3),
		scale: float32(1 / math.Sqrt(float64(c.headDim))),
	}
	var length []int
	for _, p := range c.places {
		for len(length) <= p.Seq {
			length = append(length, 0)
		}
		length[p.Seq] = max(length[p.Seq], p.Pos+1)
	}
	for s, n := range length {
		in.k, in.v = append(in.k, normal(n*kw, uint64(10+s))), append(in.v, normal(n*kw, uint64(20+s)))
		// One key stands out, so that the highest score changes late.
		for i := range in.k[s][(n-1)*kw:] {
			in.k[s][(n-1)*kw+i] *= 4
		}
	}
	in.o, in.xq, in.xd = g.alloc(4*rows*width), g.alloc(rows*width), g.alloc(rows*width/32*8)
	count := upload(g, make([]byte, shaders.AttentionCounters(rows, c.heads)))
	in.push = shaders.AttentionPush{
		Q: upload(g, in.q).Addr, O: in.o.Addr, Places: upload(g, flat(c.places)).Addr,
		Sinks: upload(g, in.sinks).Addr, Gate: upload(g, in.gate).Addr, XQ: in.xq.Addr, XD: in.xd.Addr,
		Partial: g.alloc(int(shaders.AttentionScratch(rows, c.heads, c.headDim, attentionSplits))).Addr, Count: count.Addr,
		Rows: uint32(rows), Heads: uint32(c.heads), KVHeads: uint32(c.kvHeads), KWidth: uint32(kw), VWidth: uint32(kw),
		Window: uint32(c.window), Flags: c.flags, Scale: in.scale,
	}
	in.upload(g)
	return in
}

// upload gives the device the keys and values.
func (in *attentionInput) upload(g *gpu) {
	var kv []buffer
	for s := range in.k {
		kv = append(kv, upload(g, in.k[s]), upload(g, in.v[s]))
	}
	in.push.Mirrors = addresses(g, kv...).Addr
}

// want is the reference in float64.
func (in *attentionInput) want() []float32 {
	out := make([]float32, len(in.q))
	kw := in.kvHeads * in.headDim
	for r, p := range in.places {
		begin := 0
		if in.window > 0 {
			begin = max(0, p.Pos+1-in.window)
		}
		for h := range in.heads {
			at, kv := (r*in.heads+h)*in.headDim, h/(in.heads/in.kvHeads)*in.headDim
			var scores []float64
			top := math.Inf(-1)
			for pos := begin; pos <= p.Pos; pos++ {
				s := 0.0
				for c := range in.headDim {
					s += float64(in.q[at+c]) * float64(in.k[p.Seq][pos*kw+kv+c])
				}
				s *= float64(in.scale)
				scores, top = append(scores, s), max(top, s)
			}
			sum := 0.0
			if in.flags&shaders.AttentionSink != 0 {
				top = max(top, float64(in.sinks[h]))
				sum = math.Exp(float64(in.sinks[h]) - top)
			}
			acc := make([]float64, in.headDim)
			for i, s := range scores {
				w := math.Exp(s - top)
				sum += w
				for c := range acc {
					acc[c] += w * float64(in.v[p.Seq][(begin+i)*kw+kv+c])
				}
			}
			for c, x := range acc {
				x /= sum
				if in.flags&shaders.AttentionGate != 0 {
					x /= 1 + math.Exp(-float64(in.gate[at+c]))
				}
				out[at+c] = float32(x)
			}
		}
	}
	return out
}

// run places rows at the positions from first on.
func run(seq, first, n int) (out []ops.Place) {
	for i := range n {
		out = append(out, ops.Place{Pos: first + i, Seq: seq})
	}
	return out
}

const everything = shaders.AttentionOut | shaders.AttentionSink | shaders.AttentionGate

func TestAttention(t *testing.T) {
	g := openGPU(t)
	for _, c := range []attentionCase{
		{2, 2, 128, 0, shaders.AttentionOut, run(0, 0, 1)},
		{2, 2, 128, 0, shaders.AttentionOut, run(0, 40, 1)},
		{4, 2, 64, 0, shaders.AttentionOut, run(0, 300, 3)},
		{8, 1, 64, 0, everything, run(0, 150, 2)},
		{7, 1, 32, 0, everything, run(0, 70, 2)},
		{3, 3, 20, 0, everything, run(0, 130, 1)},
		{2, 1, 256, 0, everything, run(0, 100, 1)},
		{2, 1, 128, 33, everything, run(0, 20, 15)},
		{2, 1, 128, 100, everything, run(0, 500, 1)},
		{2, 2, 64, 0, everything, []ops.Place{{Pos: 3, Seq: 1}, {Pos: 200, Seq: 0}, {Pos: 77, Seq: 2}, {Pos: 201, Seq: 0}, {Pos: 0, Seq: 3}}},
	} {
		t.Run(c.String(), func(t *testing.T) {
			g.tb = t
			in := c.input(g)
			if c.headDim%32 == 0 {
				in.push.Flags |= shaders.AttentionQ8
			}
			l := shaders.AttentionLaunch(in.push, c.headDim, attentionSplits)
			dispatch(g, in.push, l)
			got := fetch[float32](in.o)
			near(t, "o", got, in.want(), 3e-6)
			rows, width := len(c.places), c.heads*c.headDim
			if c.headDim%32 == 0 {
				q, d := q8(got, rows, width)
				equal(t, "q", fetch[int8](in.xq), q)
				equal(t, "d", fetch[float32](in.xd), d)
			}

			// Once more with the counters that the first left, and each row for itself: the same bits.
			dispatch(g, in.push, l)
			equal(t, "again", fetch[float32](in.o), got)
			for r := range c.places {
				one := in.push
				one.Rows = 1
				one.Q, one.O, one.Gate = one.Q+uint64(4*r*width), one.O+uint64(4*r*width), one.Gate+uint64(4*r*width)
				one.Places += uint64(8 * r)
				one.Flags &^= shaders.AttentionQ8
				dispatch(g, one, shaders.AttentionLaunch(one, c.headDim, attentionSplits))
			}
			equal(t, "alone", fetch[float32](in.o), got)
		})
	}
}

// The kernel that makes queries, keys and values ready for itself gives rows the bits of the two kernels that do it in two stages, and
// leaves the same in the mirrors.
func TestAttentionQKV(t *testing.T) {
	g := openGPU(t)
	for _, c := range []struct {
		attentionCase
		dim   int
		clamp float32
		flags uint32 // of QKVPush
	}{
		{attentionCase{16, 16, 128, 0, 0, run(0, 130, 1)}, 128, 0.8, shaders.QKVNorm | shaders.QKVWhole}, // OLMoE
		{attentionCase{32, 4, 128, 0, 0, run(0, 64, 1)}, 128, 0, shaders.QKVNorm},                        // Qwen3-MoE
		{attentionCase{4, 2, 64, 0, 0, run(0, 0, 1)}, 64, 0.5, 0},                                        // no norm, the first position
		{attentionCase{7, 1, 64, 40, 0, run(0, 700, 1)}, 32, 0, shaders.QKVNorm | shaders.QKVPlusOne},    // a window, a part rotated
		{attentionCase{4, 2, 32, 0, 0, run(0, 63, 1)}, 32, 0, shaders.QKVNorm | shaders.QKVWhole},
		{attentionCase{2, 1, 256, 0, 0, run(0, 511, 1)}, 64, 0, shaders.QKVNorm | shaders.QKVPlusOne | shaders.QKVWhole}, // wide heads
		{attentionCase{40, 8, 64, 0, 0, []ops.Place{{Pos: 3, Seq: 1}, {Pos: 200, Seq: 0}, {Pos: 128, Seq: 2}}}, 64, 0, shaders.QKVNorm | shaders.QKVWhole},
	} {
		t.Run(fmt.Sprintf("%v, QKV flags %d", c.attentionCase, c.flags), func(t *testing.T) {
			g.tb = t
			in := c.input(g)
			rows, width, kw := len(c.places), c.heads*c.headDim, c.kvHeads*c.headDim
			in.push.Flags = shaders.AttentionOut | shaders.AttentionQ8
			q := shaders.QKVPush{
				K: upload(g, normal(rows*kw, 31)).Addr, V: upload(g, normal(rows*kw, 32)).Addr,
				QW: upload(g, normal(width, 33)).Addr, KW: upload(g, normal(kw, 34)).Addr, Places: in.push.Places,
				Table: upload(g, tableOf(ops.NewRope(c.headDim, c.dim, 10000), 1024)).Addr,
				Rows:  uint32(rows), Heads: uint32(c.heads), KVHeads: uint32(c.kvHeads), HeadDim: uint32(c.headDim), Dim: uint32(c.dim),
				Eps: 1e-5, Clamp: c.clamp, Flags: c.flags,
			}
			// What no kernel may read before it is written is no number.
			for s := range in.k {
				for _, p := range c.places {
					if p.Seq == s {
						for i := range kw {
							in.k[s][p.Pos*kw+i], in.v[s][p.Pos*kw+i] = float32(math.NaN()), float32(math.NaN())
						}
					}
				}
			}
			mirrors := func() (all []buffer) {
				for s := range in.k {
					all = append(all, upload(g, in.k[s]), upload(g, in.v[s]))
				}
				q.Mirrors = addresses(g, all...).Addr
				in.push.Mirrors = q.Mirrors
				return all
			}
			want := mirrors()
			q.Q = upload(g, in.q).Addr
			in.push.Q = q.Q
			dispatch(g, q, shaders.QKVLaunch(q))
			dispatch(g, in.push, shaders.AttentionLaunch(in.push, c.headDim, attentionSplits))
			o, xq, xd := fetch[float32](in.o), fetch[int8](in.xq), fetch[float32](in.xd)

			got := mirrors()
			q.Q = upload(g, in.q).Addr
			oneO, oneXQ, oneXD := g.alloc(4*rows*width), g.alloc(rows*width), g.alloc(rows*width/32*8)
			in.push.O, in.push.XQ, in.push.XD = oneO.Addr, oneXQ.Addr, oneXD.Addr
			if !shaders.AttentionQKVFits(q, in.push) {
				t.Fatal("the kernel does not take it")
			}
			push, l := shaders.AttentionQKVLaunch(q, in.push, attentionSplits)
			for range 2 { // again with the counters that the first left, and the rows in the mirrors
				dispatch(g, push, l)
				equal(t, "o", fetch[float32](oneO), o)
				equal(t, "q", fetch[int8](oneXQ), xq)
				equal(t, "d", fetch[float32](oneXD), xd)
				for i := range want {
					equal(t, fmt.Sprint("mirror ", i), fetch[float32](got[i]), fetch[float32](want[i]))
				}
			}
		})
	}
}

func TestAttentionBlock(t *testing.T) {
	g := openGPU(t)
	t.Run("block", func(t *testing.T) { testAttentionBlock(t, g, shaders.AttentionFits, shaders.AttentionBlockLaunch) })
	t.Run("coop", func(t *testing.T) {
		i := g.d.Info()
		if !i.Features.CoopF16 || i.MinSubgroup > 32 || i.MaxSubgroup < 32 || i.SharedMemory < shaders.AttentionCoopShared {
			t.Skipf("%s has no cooperative matrices of float16, or too little shared memory", i.Name)
		}
		testAttentionBlock(t, &gpu{t, g.d, 32}, shaders.AttentionCoopFits, shaders.AttentionCoopLaunch)
	})
}

func testAttentionBlock(t *testing.T, g *gpu, fits func(int) bool, launch func(shaders.AttentionPush, int, int) shaders.Launch) {
	for _, c := range []attentionCase{
		{1, 1, 128, 0, 0, run(0, 0, 16)},
		{2, 2, 128, 0, 0, run(0, 0, 70)},
		{4, 2, 64, 0, everything, run(0, 60, 64)},
		{2, 1, 96, 0, everything, run(0, 5, 33)},
		{3, 1, 20, 0, everything, run(0, 100, 20)},
		{1, 1, 256, 0, everything, run(0, 30, 65)},
		{2, 1, 64, 10, everything, run(0, 100, 70)},
		{1, 1, 64, 0, 0, run(0, 3000, 16)},
		{2, 1, 128, 200, everything, run(0, 190, 66)},
		{2, 1, 64, 0, everything, slices.Concat(run(0, 90, 30), run(1, 0, 70), run(2, 7, 1), run(0, 120, 5))},
	} {
		if !fits(c.headDim) {
			continue
		}
		// Sizes of keys and values that float16 does not have, and which differ from position to position.
		for _, size := range []func(pos int) float64{
			func(int) float64 { return 1 },
			func(pos int) float64 { return math.Ldexp(1, pos%41-20) },
			func(int) float64 { return 1e-9 },
		} {
			t.Run(fmt.Sprintf("%v, values of %g", c, size(0)), func(t *testing.T) {
				g.tb = t
				in := c.input(g)
				kw := c.kvHeads * c.headDim
				for s := range in.v {
					for i := range in.v[s] {
						in.v[s][i] *= float32(size(i / kw))
						in.k[s][i] *= float32(min(1, size(i/kw)))
					}
				}
				in.upload(g)
				var places [][2]int32
				for _, p := range c.places {
					places = append(places, [2]int32{int32(p.Pos), int32(p.Seq)})
				}
				tiles := shaders.AttentionTiles(nil, places, c.window)
				tiles = append(tiles, shaders.AttentionTile{}) // one more than there is work
				in.push.Tiles = upload(g, tiles).Addr
				dispatch(g, in.push, launch(in.push, c.headDim, len(tiles)))
				near(t, "o", fetch[float32](in.o), in.want(), 3e-6)
			})
		}
	}
}

func TestAttentionTiles(t *testing.T) {
	row := func(pos, seq int32) [2]int32 { return [2]int32{pos, seq} }
	long := make([][2]int32, 130)
	for i := range long {
		long[i] = row(int32(i), 4)
	}
	for _, c := range []struct {
		places [][2]int32
		window int
		want   []shaders.AttentionTile
	}{
		{nil, 0, nil},
		{[][2]int32{row(5, 0), row(6, 0), row(2, 1), row(7, 0)}, 0, []shaders.AttentionTile{{0, 2, 0, 7}, {2, 1, 0, 3}, {3, 1, 0, 8}}},
		{[][2]int32{row(9, 0), row(8, 0)}, 4, []shaders.AttentionTile{{0, 2, 5, 10}}},
		{long, 10, []shaders.AttentionTile{{0, 64, 0, 64}, {64, 64, 55, 128}, {128, 2, 119, 130}}},
	} {
		if got := shaders.AttentionTiles(nil, c.places, c.window); !slices.Equal(got, c.want) {
			t.Errorf("%d places, window %d: tiles %v, want %v", len(c.places), c.window, got, c.want)
		}
	}
}

func TestAttentionSplits(t *testing.T) {
	for _, c := range [][5]int{{16, 16, 128, 528, 16}, {32, 4, 128, 528, 33}, {16, 16, 128, 8, 1}, {8, 1, 64, 528, 64}} {
		if got := shaders.AttentionSplits(c[0], c[1], c[2], c[3]); got != c[4] {
			t.Errorf("%d/%d heads of %d on %d workgroups: %d splits, want %d", c[0], c[1], c[2], c[3], got, c[4])
		}
	}
}
