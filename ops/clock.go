package ops

import (
	"fmt"
	"time"
)

// Part is what a share of a step's time is spent on.
type Part uint8

// The parts.
const (
	PartOther     Part = iota // norms, sums, the embedding, and whatever lies between ops
	PartAttention             // rotation, the cache's new rows, attention itself
	PartDense                 // products with weights that every token uses, the head among them
	PartRouter                // the router's product and the choice of experts, predictions for later layers among them
	PartMemory                // experts that were in memory when their layer began
	PartLanded                // experts that came from disk meanwhile
	PartWaiting               // for the disk, with nothing to compute
	PartHandOver              // to the actors and back
	PartDevice                // layers on a device, as the host sees it: recording them and waiting for them
	Parts                     // how many there are
)

func (p Part) String() string {
	names := [Parts]string{
		"other", "attention", "dense weights", "router", "experts in memory", "experts that landed", "waiting for the disk", "hand-over", "device",
	}
	if p >= Parts {
		return fmt.Sprintf("part %d", uint8(p))
	}
	return names[p]
}

// Clock tells where the time of steps goes. Of a nil Clock every method does nothing, so that nobody who does not ask pays for it; otherwise
// Enter reads the machine's clock once. One goroutine uses it, the one that runs the layers.
type Clock struct {
	base  time.Time
	at    time.Duration // since base: when part was entered
	part  Part
	left  time.Duration // how long the part before was
	spent [Parts]time.Duration
}

// Start begins a step, in PartOther.
func (c *Clock) Start() {
	if c == nil {
		return
	}
	if c.base.IsZero() {
		c.base = time.Now()
	}
	c.part, c.at, c.left = PartOther, time.Since(c.base), 0
}

// Stop ends a step: what passes until the next Start is nobody's.
func (c *Clock) Stop() { c.Enter(PartOther) }

// Enter books the time since the last call, and says what is done from now on. It returns what was done until now, to return to:
//
//	defer c.Enter(c.Enter(ops.PartDense))
func (c *Clock) Enter(p Part) (was Part) {
	if c == nil {
		return p
	}
	return c.enter(p)
}

func (c *Clock) enter(p Part) (was Part) {
	now := time.Since(c.base)
	was = c.part
	c.left = now - c.at
	c.spent[was] += c.left
	c.part, c.at = p, now
	return was
}

// Rebook moves time that is booked under one part to another: a product turns out to be the router's when a choice is made by it.
func (c *Clock) Rebook(d time.Duration, from, to Part) {
	if c != nil {
		c.spent[from] -= d
		c.spent[to] += d
	}
}

// Last is how long the part took that was left last.
func (c *Clock) Last() time.Duration {
	if c == nil {
		return 0
	}
	return c.left
}

// Spent is what all steps so far took, by part.
func (c *Clock) Spent() (spent [Parts]time.Duration) {
	if c != nil {
		spent = c.spent
	}
	return spent
}
