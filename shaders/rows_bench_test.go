package shaders_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/shaders"
	"github.com/coli-moe/coli/shaders/layout"
	"github.com/coli-moe/coli/weights/format"
)

// The benchmarks below take the steps of OLMoE-1B-7B between its products: hidden size 2048, 16 heads of 128, 64 experts of which a row
// takes 8, 50304 tokens. As in BenchmarkGEMV each is a stage of its own; GB/s counts the rows read. Mirrors are those of 16 layers in turn,
// so that those of many positions are in no cache.

const (
	olmoeHidden, olmoeHeads, olmoeHeadDim = 2048, 16, 128
	olmoeExperts, olmoeTopK, olmoeTokens  = 64, 8, 50304
	olmoeLayers                           = 16
)

func rowsOf(b *testing.B, fn func(b *testing.B, rows int)) {
	for _, rows := range []int{1, 512} {
		b.Run(fmt.Sprint("rows=", rows), func(b *testing.B) { fn(b, rows) })
	}
}

func BenchmarkNorm(b *testing.B) {
	g := openBench(b)
	rowsOf(b, func(b *testing.B, rows int) {
		n := int64(rows * olmoeHidden)
		p := shaders.NormPush{
			X: g.space(4 * n), W: g.space(4 * olmoeHidden), Y: g.space(4 * n), XQ: g.space(n), XD: g.space(n / 4), Add: g.space(32 * n),
			AddW: g.space(int64(4 * rows * olmoeTopK)), Rows: uint32(rows), Cols: olmoeHidden, Segment: olmoeHidden, Eps: 1e-5,
		}
		for _, flags := range []uint32{0, shaders.NormQ8, shaders.NormQ8 | shaders.NormAdd} {
			for _, topk := range []uint32{0, olmoeTopK} {
				if topk > 0 && flags&shaders.NormAdd == 0 {
					continue
				}
				p.TopK, p.Flags = topk, flags|shaders.NormOut
				b.Run(fmt.Sprintf("flags=%d/topk=%d", p.Flags, topk), func(b *testing.B) {
					stages(b, g, 4*n, shaders.NormLaunch(p, g.subgroup), func(int) shaders.NormPush { return p })
				})
			}
		}
	})
}

func BenchmarkQuantize(b *testing.B) {
	g := openBench(b)
	rowsOf(b, func(b *testing.B, rows int) {
		n := int64(rows * olmoeHidden)
		p := shaders.QuantizePush{X: g.space(4 * n), XQ: g.space(n), XD: g.space(n / 4), Rows: uint32(rows), Cols: olmoeHidden}
		stages(b, g, 4*n, shaders.QuantizeLaunch(p, shaders.ActNone), func(int) shaders.QuantizePush { return p })
	})
}

func BenchmarkRoute(b *testing.B) {
	g := openBench(b)
	rowsOf(b, func(b *testing.B, rows int) {
		n := int64(rows * olmoeTopK)
		p := shaders.RoutePush{
			Logits: g.space(int64(4 * rows * olmoeExperts)), IDs: g.space(4 * n), Weights: g.space(4 * n), Rows: uint32(rows), Experts: olmoeExperts,
		}
		p.TopK, p.Scale = olmoeTopK, 1
		stages(b, g, int64(4*rows*olmoeExperts), shaders.RouteLaunch(p, router.SoftmaxTopK), func(int) shaders.RoutePush { return p })
	})
}

// BenchmarkRouter takes the product of the router and the choice in one stage; BenchmarkGEMV's router and BenchmarkRoute take two.
func BenchmarkRouter(b *testing.B) {
	g := openBench(b)
	const copies = 16
	for _, f := range []format.Format{format.F32, format.BF16} {
		b.Run(f.String(), func(b *testing.B) {
			g := &gpu{b, g.d, g.subgroup}
			l, _ := layout.For(f, olmoeExperts, olmoeHidden)
			w := g.space(copies * l.Bytes)
			p := shaders.RouterPush{
				X: g.space(4 * olmoeHidden), Logits: g.space(4 * olmoeExperts), Count: upload(g, make([]int32, 1)).Addr,
				IDs: g.space(4 * olmoeTopK), Weights: g.space(4 * olmoeTopK), Rows: 1,
			}
			p.SetMatrix(w, l)
			p.TopK, p.Scale = olmoeTopK, 1
			push := func(stage int) shaders.RouterPush {
				p := p
				p.SetMatrix(w+uint64(stage%copies)*uint64(l.Bytes), l)
				return p
			}
			base := shaders.RouterLaunch(p, f, router.SoftmaxTopK)
			stages(b, g, l.Bytes, base, push)
			for _, c := range [][2]uint32{{64, 8}, {256, 2}} { // threads, pieces at once
				base.Constants = append([]uint32{c[0]}, base.Constants[1:]...)
				base.Constants[4] = c[1]
				stages(b, g, l.Bytes, base, push)
			}
		})
	}
}

func BenchmarkArgMax(b *testing.B) {
	g := openBench(b)
	p := shaders.ArgMaxPush{
		X: g.space(4 * olmoeTokens), Out: g.space(4), Partial: g.space(shaders.ArgMaxScratch(1, olmoeTokens)), Count: g.space(4),
		Rows: 1, Cols: olmoeTokens,
	}
	stages(b, g, 4*olmoeTokens, shaders.ArgMaxLaunch(p), func(int) shaders.ArgMaxPush { return p })
}

// layerMirrors are tables of the mirrors of each layer's only conversation, of so many positions.
func layerMirrors(g *gpu, positions int) (tables []uint64) {
	for range olmoeLayers {
		var raw []byte
		for range 2 {
			raw = binary.LittleEndian.AppendUint64(raw, g.space(int64(4*positions*olmoeHidden)))
		}
		tables = append(tables, upload(g, raw).Addr)
	}
	return tables
}

// placesOf are the rows that end at the last of so many positions.
func placesOf(g *gpu, rows, positions int) (uint64, [][2]int32) {
	var places [][2]int32
	for _, p := range run(0, positions-rows, rows) {
		places = append(places, [2]int32{int32(p.Pos), 0})
	}
	return upload(g, places).Addr, places
}

func BenchmarkQKVPost(b *testing.B) {
	g := openBench(b)
	rowsOf(b, func(b *testing.B, rows int) {
		g := &gpu{b, g.d, g.subgroup}
		n := int64(4 * rows * olmoeHidden)
		tables := layerMirrors(g, rows)
		places, _ := placesOf(g, rows, rows)
		p := shaders.QKVPush{
			Q: g.space(n), K: g.space(n), V: g.space(n), QW: g.space(4 * olmoeHidden), KW: g.space(4 * olmoeHidden), Places: places,
			Table: upload(g, tableOf(ops.NewRope(olmoeHeadDim, olmoeHeadDim, 10000), rows)).Addr,
			Rows:  uint32(rows), Heads: olmoeHeads, KVHeads: olmoeHeads, HeadDim: olmoeHeadDim, Dim: olmoeHeadDim, Eps: 1e-5,
			Flags: shaders.QKVNorm | shaders.QKVWhole,
		}
		push := func(stage int) shaders.QKVPush {
			p.Mirrors = tables[stage%olmoeLayers]
			return p
		}
		b.Run("mirrors", func(b *testing.B) { stages(b, g, 3*n, shaders.QKVLaunch(p), push) })
		host := g.host(2 * n)
		p.StageK, p.StageV = host, host+uint64(n)
		b.Run("mirrors+host", func(b *testing.B) { stages(b, g, 3*n, shaders.QKVLaunch(p), push) })
	})
}

// host is memory of the host that the device writes.
func (g *gpu) host(n int64) uint64 {
	g.tb.Helper()
	m, err := g.d.Alloc(device.HostReads, n, "benchmark")
	if err != nil {
		g.tb.Fatal(err)
	}
	g.tb.Cleanup(m.Free)
	return m.Addr
}

// BenchmarkKVOut copies the new rows of all layers to the host's memory.
func BenchmarkKVOut(b *testing.B) {
	g := openBench(b)
	rowsOf(b, func(b *testing.B, rows int) {
		g := &gpu{b, g.d, g.subgroup}
		places, _ := placesOf(g, rows, rows)
		n := int64(4 * rows * olmoeHidden)
		host := g.host(2 * olmoeLayers * n)
		var pieces []shaders.KVPiece
		for _, table := range layerMirrors(g, rows) {
			for which := range shaders.KVPieceRows {
				pieces = append(pieces, shaders.KVPiece{From: table, To: host + uint64(len(pieces))*uint64(n), Width: olmoeHidden, Which: which})
			}
		}
		p := shaders.KVOutPush{Pieces: upload(g, pieces).Addr, Places: places, Rows: uint32(rows)}
		stages(b, g, int64(len(pieces))*n, shaders.KVOutLaunch(p, len(pieces), olmoeHidden), func(int) shaders.KVOutPush { return p })
	})
}

func BenchmarkAttention(b *testing.B) {
	g := openBench(b)
	for _, shape := range [][2]int{{1, 64}, {1, 512}, {1, 4000}, {512, 512}, {512, 4000}} {
		rows, positions := shape[0], shape[1]
		b.Run(fmt.Sprintf("rows=%d/positions=%d", rows, positions), func(b *testing.B) {
			g := &gpu{b, g.d, g.subgroup}
			n := int64(rows * olmoeHidden)
			tables := layerMirrors(g, positions)
			places, list := placesOf(g, rows, positions)
			p := shaders.AttentionPush{
				Q: g.space(4 * n), O: g.space(4 * n), XQ: g.space(n), XD: g.space(n / 4), Places: places,
				Rows: uint32(rows), Heads: olmoeHeads, KVHeads: olmoeHeads, KWidth: olmoeHidden, VWidth: olmoeHidden,
				Scale: 0.088, Flags: shaders.AttentionOut,
			}
			push := func(stage int) shaders.AttentionPush {
				p.Mirrors = tables[stage%olmoeLayers]
				return p
			}
			bytes := int64(2 * 4 * positions * olmoeHidden)
			if rows > 1 {
				tiles := shaders.AttentionTiles(nil, list, 0)
				p.Tiles = upload(g, tiles).Addr
				b.Run("block", func(b *testing.B) {
					stages(b, g, bytes, shaders.AttentionBlockLaunch(p, olmoeHeadDim, len(tiles)), push)
				})
				if i := g.d.Info(); i.Features.CoopF16 && i.MinSubgroup <= 32 && i.MaxSubgroup >= 32 && i.SharedMemory >= shaders.AttentionCoopShared {
					b.Run("coop", func(b *testing.B) {
						stages(b, &gpu{b, g.d, 32}, bytes, shaders.AttentionCoopLaunch(p, olmoeHeadDim, len(tiles)), push)
					})
				}
				return
			}
			p.Flags |= shaders.AttentionQ8
			p.Count = upload(g, make([]byte, shaders.AttentionCounters(rows, olmoeHeads))).Addr
			p.Partial = g.space(shaders.AttentionScratch(rows, olmoeHeads, olmoeHeadDim, 64))
			for _, splits := range []int{8, 16, 32} {
				b.Run(fmt.Sprint("splits=", splits), func(b *testing.B) {
					stages(b, g, bytes, shaders.AttentionLaunch(p, olmoeHeadDim, splits), push)
				})
				b.Run(fmt.Sprint("qkv/splits=", splits), func(b *testing.B) {
					q := shaders.QKVPush{
						Q: p.Q, K: g.space(4 * n), V: g.space(4 * n), QW: g.space(4 * olmoeHidden), KW: g.space(4 * olmoeHidden),
						Table: upload(g, tableOf(ops.NewRope(olmoeHeadDim, olmoeHeadDim, 10000), positions)).Addr,
						Heads: olmoeHeads, KVHeads: olmoeHeads, HeadDim: olmoeHeadDim, Dim: olmoeHeadDim, Eps: 1e-5,
						Flags: shaders.QKVNorm | shaders.QKVWhole,
					}
					_, l := shaders.AttentionQKVLaunch(q, p, splits)
					stages(b, g, bytes, l, func(stage int) shaders.AttentionQKVPush {
						p, _ := shaders.AttentionQKVLaunch(q, push(stage), splits)
						return p
					})
				})
			}
		})
	}
}
