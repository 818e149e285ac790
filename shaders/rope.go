package shaders

// RopePush is the push-constant block of rope.comp: rotates the pairs (i, i+Dim/2) of every head of up to two tensors in place, by each
// row's position.
type RopePush struct {
	Q      uint64 // float32 [Rows, QHeads·HeadDim]
	K      uint64 // float32 [Rows, KHeads·HeadDim]; not touched if KHeads is 0
	Table  uint64 // float32 pairs (cos, sin) [positions, Dim/2]: ops.Rope
	Places uint64 // int32 pairs (pos, seq) [Rows]

	Rows           uint32
	QHeads, KHeads uint32
	HeadDim, Dim   uint32
}

// RopeLaunch is the dispatch of rope.comp: a thread a pair.
func RopeLaunch(p RopePush) Launch {
	return Launch{
		Kernel: "rope", Constants: []uint32{threads},
		X: groups(int(p.QHeads+p.KHeads)*int(p.Dim/2), threads), Y: p.Rows, Z: 1,
	}
}

// StoreKVPush is the push-constant block of store_kv.comp: writes each row of k and v to its conversation's mirror at its position, and
// to the staging rows from which the host completes its own copy.
type StoreKVPush struct {
	K, V           uint64 // float32 [Rows, KWidth], [Rows, VWidth]
	Places         uint64 // int32 pairs (pos, seq) [Rows]
	Mirrors        uint64 // addresses of K and V [seqs, 2]: float32 [capacity, KWidth], [capacity, VWidth]
	StageK, StageV uint64 // float32 [Rows, KWidth], [Rows, VWidth]; not written if 0

	Rows           uint32
	KWidth, VWidth uint32
}

// StoreKVLaunch is the dispatch of store_kv.comp.
func StoreKVLaunch(p StoreKVPush) Launch {
	return Launch{
		Kernel:    "store_kv",
		Constants: []uint32{threads, flag(p.KWidth%4 == 0 && p.VWidth%4 == 0, 1)},
		X:         groups(int(max(p.KWidth, p.VWidth)), 4*threads), Y: p.Rows, Z: 2,
	}
}

// KVPiece is a tensor whose rows kv_out.comp copies.
type KVPiece struct {
	From  uint64 // KVPieceK, KVPieceV: the layer's table as StoreKVPush.Mirrors; KVPieceRows: 32-bit values [Rows, Width]
	To    uint64 // 32-bit values [Rows, Width]
	Width uint32
	Which uint32
}

// The values of KVPiece.Which.
const (
	KVPieceK    uint32 = iota // the rows at their places in the mirrors of K
	KVPieceV                  // or of V
	KVPieceRows               // rows as they are
)

// KVOutPush is the push-constant block of kv_out.comp: copies the rows that a frame has added to the mirrors of all layers, and others that
// the host wants, to its memory in one dispatch. A store to the host's memory takes longer than most stages: as the last of a frame it
// delays none of them.
type KVOutPush struct {
	Pieces uint64 // [pieces] of KVPiece
	Places uint64 // int32 pairs (pos, seq) [Rows]

	Rows uint32
}

// KVOutLaunch is the dispatch of kv_out.comp for so many pieces, of which the widest has width values a row. Of many rows it takes small
// groups, which leave room for what runs beside them: the way to the host's memory is full all the same.
func KVOutLaunch(p KVOutPush, pieces, width int) Launch {
	size, perRow := threads, groups(width, 4*threads)
	if p.Rows >= 16 {
		size, perRow = 64, 1
	}
	return Launch{
		Kernel: "kv_out", Constants: []uint32{uint32(size)},
		X: perRow, Y: p.Rows, Z: uint32(pieces),
	}
}

// QKVPush is the push-constant block of qkv_post.comp, everything between the q, k and v projections and attention in one stage: the norm
// of q and k, the clamp of all three, the rotation of q and k, the rows of k and v in the mirror and the staging rows. K and V keep what
// the projection wrote; only Q is written in place.
type QKVPush struct {
	Q, K, V        uint64 // float32 [Rows, Heads·HeadDim], [Rows, KVHeads·HeadDim] twice
	QW, KW         uint64 // float32 norm weights, with QKVNorm: of a head, or of the whole projection with QKVWhole
	Table          uint64 // as RopePush
	Places         uint64 // as RopePush
	Mirrors        uint64 // as StoreKVPush
	StageK, StageV uint64 // as StoreKVPush

	Rows           uint32
	Heads, KVHeads uint32
	HeadDim, Dim   uint32
	Eps            float32
	Clamp          float32 // limit of q, k and v after the norm; 0 for none
	Flags          uint32
}

// The flags of QKVPush.
const (
	QKVNorm    uint32 = 1 << iota // normalise q and k
	QKVWhole                      // over the whole projection instead of head by head
	QKVPlusOne                    // norm weights are 1+w
)

// QKVFits says whether qkv_post.comp takes heads of this size: they are read in pairs of vectors, Dim/2 apart.
func QKVFits(headDim, dim int) bool {
	return headDim%8 == 0 && dim%8 == 0 && dim <= headDim && headDim > 0
}

// QKVLaunch is the dispatch of qkv_post.comp: a workgroup a (row, head), or a (row, q or k or v) with QKVWhole.
func QKVLaunch(p QKVPush) Launch {
	heads, parts := 1, p.Heads+2*p.KVHeads
	if p.Flags&QKVWhole != 0 {
		heads, parts = int(max(p.Heads, p.KVHeads)), 3
	}
	units := heads * int(p.HeadDim) / 8
	size := 64 // whole subgroups, however large
	for size < min(units, threads) {
		size *= 2
	}
	return Launch{
		Kernel: "qkv_post", Constants: []uint32{uint32(size), groups(units, size)},
		X: parts, Y: p.Rows, Z: 1,
	}
}
