package shaders

import (
	"math"
	"slices"
)

// AttentionPush is the push-constant block of attention.comp, attention_block.comp and attention_coop.comp: causal grouped-query attention of
// each row over its conversation's mirror, softmax(Scale·q·k)·v over the positions up to the row's own.
type AttentionPush struct {
	Q       uint64 // float32 [Rows, Heads·HeadDim]
	O       uint64 // float32 [Rows, Heads·HeadDim], with AttentionOut
	Mirrors uint64 // addresses of K and V [seqs, 2]: float32 [capacity, KWidth], [capacity, VWidth]
	Places  uint64 // int32 pairs (pos, seq) [Rows]
	Sinks   uint64 // float32 [Heads], with AttentionSink: a logit that takes part in the softmax and has no value
	Gate    uint64 // float32 [Rows, Heads·HeadDim], with AttentionGate: the output is multiplied by sigmoid(gate)
	XQ, XD  uint64 // with AttentionQ8: the integer form of the output's rows, as QuantizePush; HeadDim is a multiple of 32
	Partial uint64 // attention.comp: scratch of AttentionScratch bytes
	Count   uint64 // attention.comp: AttentionCounters bytes, zero before the first dispatch; zero again after each
	Tiles   uint64 // the other two: int32 [tiles, 4] = AttentionTile

	Rows           uint32
	Heads, KVHeads uint32
	KWidth, VWidth uint32 // row strides of the mirrors
	Window         uint32 // positions seen, the row's own included; 0 for all
	Flags          uint32
	Scale          float32
}

// The flags of AttentionPush.
const (
	AttentionOut     uint32 = 1 << iota // write O
	AttentionQ8                         // write XQ and XD
	AttentionSink                       // Sinks takes part
	AttentionGate                       // Gate applies
	AttentionPlusOne                    // of AttentionQKVPush: norm weights are 1+w
)

const (
	// attentionPart is the fewest positions a split takes: less is not worth joining.
	attentionPart = 64
	// attentionWide bounds the head values a workgroup of attention.comp holds: the heads that share a KV head times their size.
	attentionWide = 512
	// maxSplits bounds the splits of a row, which one workgroup joins.
	maxSplits = 64
)

// AttentionFits says whether the attention kernels take heads of this size.
func AttentionFits(headDim int) bool { return headDim > 0 && headDim%4 == 0 && headDim <= 256 }

// AttentionSplits is into how many parts attention.comp cuts a row's positions at most. It depends on the shape alone, and not on the rows,
// so that a row's bits do not either. units is how many workgroups fill the device, 4 for each of its processors: half of that is enough here,
// as each has much on its way from memory, and more take longer to join.
func AttentionSplits(heads, kvHeads, headDim, units int) int {
	_, chunks := attentionHeads(heads, kvHeads, headDim)
	return max(1, min(maxSplits, units/max(1, 2*kvHeads*chunks)))
}

// attentionHeads is how many query heads of a KV head a workgroup takes, and how many workgroups the KV head has then.
func attentionHeads(heads, kvHeads, headDim int) (per, chunks int) {
	group := heads / kvHeads
	per = min(group, max(1, attentionWide/headDim), 4)
	chunks = (group + per - 1) / per
	return (group + chunks - 1) / chunks, chunks
}

// AttentionScratch is the size in bytes of AttentionPush.Partial for so many rows: of each (row, head, split) the values, the maximum and
// the sum, padded to whole vectors.
func AttentionScratch(rows, heads, headDim, splits int) int64 {
	return 4 * int64(rows) * int64(heads) * int64(splits) * int64(headDim+4)
}

// AttentionCounters is the size in bytes of AttentionPush.Count.
func AttentionCounters(rows, heads int) int64 { return 4 * int64(rows) * int64(heads) }

// AttentionLaunch is the dispatch of attention.comp, the form for few rows: a workgroup takes a part of a row's positions, and the one of a
// (row, KV head) that ends last joins the parts in their order.
func AttentionLaunch(p AttentionPush, headDim, splits int) Launch {
	per, chunks := attentionHeads(int(p.Heads), int(p.KVHeads), headDim)
	ahead := uint32(2)
	if headDim > 128 || per > 2 { // registers
		ahead = 1
	}
	return Launch{
		Kernel:    "attention",
		Constants: []uint32{threads, uint32(headDim), uint32(per), uint32(chunks), attentionPart, ahead},
		X:         p.KVHeads * uint32(chunks), Y: p.Rows, Z: uint32(splits),
	}
}

// AttentionQKVPush is the push-constant block of attention_qkv.comp: what qkv_post.comp and attention.comp do, in one stage. The fields are
// theirs. Q, K and V keep what the projections wrote.
type AttentionQKVPush struct {
	Q, K, V, QW, KW, Table uint64
	Mirrors, Places        uint64
	O, XQ, XD              uint64
	Partial, Count         uint64
	Heads, KVHeads         uint32
	Window                 uint32
	Flags                  uint32 // AttentionOut, AttentionQ8, AttentionPlusOne
	Scale, Eps             float32
}

// AttentionQKVFits says whether attention_qkv.comp does what q and a say. Whether the rows belong to different conversations, which they
// must, the caller knows: a row does not see the others' keys and values.
func AttentionQKVFits(q QKVPush, a AttentionPush) bool {
	width := q.KVHeads * q.HeadDim
	return slices.Contains([]uint32{32, 64, 128, 256}, q.HeadDim) && q.Dim >= 8 && QKVFits(int(q.HeadDim), int(q.Dim)) &&
		q.StageK == 0 && q.StageV == 0 && a.KWidth == width && a.VWidth == width && a.Flags&(AttentionSink|AttentionGate) == 0
}

// AttentionQKVLaunch is the dispatch of attention_qkv.comp for what q and a say, and its push constants. A row has the bits that
// qkv_post.comp and attention.comp give it.
func AttentionQKVLaunch(q QKVPush, a AttentionPush, splits int) (AttentionQKVPush, Launch) {
	p := AttentionQKVPush{
		Q: q.Q, K: q.K, V: q.V, QW: q.QW, KW: q.KW, Table: q.Table, Mirrors: a.Mirrors, Places: a.Places,
		O: a.O, XQ: a.XQ, XD: a.XD, Partial: a.Partial, Count: a.Count,
		Heads: a.Heads, KVHeads: a.KVHeads, Window: a.Window, Scale: a.Scale, Eps: q.Eps,
		Flags: a.Flags | flag(q.Flags&QKVPlusOne != 0, AttentionPlusOne),
	}
	l := AttentionLaunch(a, int(q.HeadDim), splits)
	l.Kernel = "attention_qkv"
	units := int(max(q.Heads, q.KVHeads) * q.HeadDim / 8)
	l.Constants = append(l.Constants,
		flag(q.Flags&QKVNorm != 0, 1), flag(q.Flags&QKVWhole != 0, 1), groups(units, threads), q.Dim/8, math.Float32bits(q.Clamp))
	return p, l
}

// AttentionTile is a run of rows of one conversation that a workgroup of attention_block.comp or attention_coop.comp takes together.
type AttentionTile struct {
	First, Count int32 // rows; Count 0 is no work
	Begin, End   int32 // positions that any of the rows sees: from the lowest row's window to the highest position + 1
}

// TileRows is the most rows of an AttentionTile.
const TileRows = 64

// AttentionTiles cuts rows into tiles: rows that follow each other in one conversation share a tile. places are (pos, seq) pairs as the
// kernels read them. A fixed number of tiles, for a frame that is recorded once, is at most rows/TileRows + runs of conversations.
func AttentionTiles(dst []AttentionTile, places [][2]int32, window int) []AttentionTile {
	for first := 0; first < len(places); {
		n := 1
		low, high := places[first][0], places[first][0]
		for n < TileRows && first+n < len(places) && places[first+n][1] == places[first][1] {
			low, high = min(low, places[first+n][0]), max(high, places[first+n][0])
			n++
		}
		t := AttentionTile{First: int32(first), Count: int32(n), End: high + 1}
		if window > 0 {
			t.Begin = max(0, low+1-int32(window))
		}
		dst = append(dst, t)
		first += n
	}
	return dst
}

// AttentionBlockLaunch is the dispatch of attention_block.comp, the form for many rows: a workgroup takes a tile of rows and one head, and
// walks the positions in blocks that it stages in shared memory. It writes O, whatever the flags, and no integer form.
func AttentionBlockLaunch(p AttentionPush, headDim, tiles int) Launch {
	return Launch{
		Kernel: "attention_block", Constants: []uint32{uint32(headDim)},
		X: uint32(tiles), Y: p.Heads, Z: 1,
	}
}

// AttentionCoopFits says whether attention_coop.comp takes heads of this size.
func AttentionCoopFits(headDim int) bool { return headDim == 64 || headDim == 128 }

// AttentionCoopShared is how many bytes of shared memory a workgroup of attention_coop.comp has at most.
const AttentionCoopShared = 46 << 10

// AttentionCoopLaunch is the dispatch of attention_coop.comp: as AttentionBlockLaunch, on cooperative matrices of float16 (16×16×16 with
// float32 sums), for heads that AttentionCoopFits, and as accurate. The pipeline must have subgroups of 32.
func AttentionCoopLaunch(p AttentionPush, headDim, tiles int) Launch {
	return Launch{
		Kernel: "attention_coop", Constants: []uint32{uint32(headDim)},
		X: uint32(tiles), Y: p.Heads, Z: 1,
	}
}
