package gpu

import (
	"slices"

	"github.com/coli-moe/coli/shaders"
)

// choices are the experts that the routes of a list choose, on their way to the host through memory of their own. They are counted while
// the device is at the next list: it need not wait for the host to look at what it has just written there.
type choices struct {
	memory  bump
	list    []choice
	earlier bool // of a step before the last Reset
}

// choice is what one layer's routes choose.
type choice struct {
	layer, experts int
	from, n        int  // which of the ids
	asked          bool // Options.Routed hears of them
	worked         int  // how often experts are computed for them
}

// choose has the ids that c is about brought to the host with the list.
func (e *Executor) choose(c *chosen, asked bool) *choice {
	l := &e.choices[e.choosing]
	pairs := int(c.rows) * int(c.topK)
	host := e.from(&l.memory, 4*int64(pairs))
	l.list = append(l.list, choice{layer: c.layer, experts: c.experts, from: int(l.memory.position(host) / 4), n: pairs, asked: asked})
	e.out(0, int(c.rows), shaders.KVPiece{From: c.ids, To: host.at(), Width: uint32(c.topK), Which: shaders.KVPieceRows})
	c.list, c.index = e.lists, len(l.list)-1
	return &l.list[c.index]
}

// turn leaves the list's choices to be counted and begins the next list's.
func (e *Executor) turn() {
	e.Account()
	e.owed = &e.choices[e.choosing]
	e.owed.earlier = false
	e.choosing = 1 - e.choosing
	e.choices[e.choosing].forget()
	e.lists++
}

func (c *choices) forget() {
	c.list = c.list[:0]
	c.memory.reset()
}

// Account counts what the lists that have run chose, for Stats and Options.Routed, and sends the rows of caches on their way to the host.
// The next list does that too, as soon as it is with the device.
func (e *Executor) Account() {
	e.mirror.Pass()
	l := e.owed
	if l == nil {
		return
	}
	e.owed = nil
	e.ids = l.memory.appendTo(e.ids[:0])
	all := values[int32](e.ids)
	for _, c := range l.list {
		ids := all[c.from : c.from+c.n]
		if c.worked > 0 {
			e.worked(c, ids)
		}
		if c.asked && e.opt.Routed != nil {
			e.opt.Routed(c.layer, ids, l.earlier)
		}
	}
}

// worked counts experts that were computed.
func (e *Executor) worked(c choice, ids []int32) {
	e.seen = slices.Grow(e.seen[:0], c.experts)[:c.experts]
	clear(e.seen)
	distinct := 0
	for _, id := range ids {
		if !e.seen[id] {
			e.seen[id] = true
			distinct++
		}
	}
	e.stats.Pairs += int64(c.worked * len(ids))
	e.stats.Reads += int64(c.worked * distinct)
	e.stats.MatMuls += int64(3 * c.worked * distinct)
}
