package shaders

// GroupPush is the push-constant block of group_plan.comp, which sorts the pairs of a step by expert and cuts each expert's into tiles,
// without the host. Pair p is rank p%top_k of row p/top_k. An expert's pairs are in rising order whatever the device does first.
//
// Expert e has the tiles from start/TileRows+e on, if start pairs have lower experts: such ranges never overlap, so that no workgroup
// waits for another. Tiles that nobody needs have no pairs. An id that is no expert's leaves its pair out.
type GroupPush struct {
	IDs   uint64 // int32 [Count], the routes' ids
	Tiles uint64 // uint32 [GroupTiles][4] = expert, first place in Pairs, pairs, 0: written
	Pairs uint64 // uint32 [Count], pairs sorted by expert: written

	Count    uint32 // pairs: rows·top_k
	Experts  uint32
	TileRows uint32 // GEMMSpec.TileRows of the products that use the plan
	_        uint32
}

// GroupTiles is the number of tiles of a plan: an upper bound of those that have pairs.
func GroupTiles(pairs, experts, tileRows int) int { return pairs/tileRows + experts }

// GroupLaunch is the dispatch of group_plan.comp: a workgroup an expert, each of which reads all ids.
func GroupLaunch(p GroupPush) Launch {
	return Launch{Kernel: "group_plan", Constants: []uint32{threads}, X: p.Experts, Y: 1, Z: 1}
}

// MoESumPush is the push-constant block of moe_sum.comp: y[r,c] = Σ_rank weights[r,rank]·slots[r·TopK+rank,c], summed in order of rank
// before it joins y with MoESumAdd.
type MoESumPush struct {
	Slots   uint64 // float32 [Rows·TopK, Cols]
	Weights uint64 // float32 [Rows, TopK]
	Y       uint64 // float32 [Rows, Cols]

	Rows, Cols uint32
	TopK       uint32
	Flags      uint32
}

// MoESumAdd is a flag of MoESumPush: y += instead of y =.
const MoESumAdd uint32 = 1

// MoESumLaunch is the dispatch of moe_sum.comp: a thread a value.
func MoESumLaunch(p MoESumPush) Launch {
	return Launch{Kernel: "moe_sum", Constants: []uint32{threads}, X: groups(int(p.Cols), threads), Y: p.Rows, Z: 1}
}
