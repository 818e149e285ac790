// Package limits is what a machine's memory and drive allow a model at best: tokens a second, from the bytes that a token reads and the
// rates at which they can be read. It is arithmetic: package engine says what is read (engine.Plan), packages kernels and prefetcher
// measure rates, and `coli bench stream` compares what was reached with these bounds.
//
// What does not live here: compute. A step of few rows waits for memory, not for arithmetic; one of many rows may not reach the bound.
package limits

import "math"

// Tier is a kind of memory.
type Tier int

// The tiers, the fastest first.
const (
	VRAM Tier = iota
	RAM
	Disk
	Tiers int = iota
)

func (t Tier) String() string { return [...]string{"VRAM", "RAM", "disk"}[t] }

// PerTier is a figure for each tier: bytes, bytes a second, shares or seconds.
type PerTier [Tiers]float64

// Sum adds the tiers' figures.
func (p PerTier) Sum() (sum float64) {
	for _, x := range p {
		sum += x
	}
	return sum
}

// Times multiplies the tiers' figures by x.
func (p PerTier) Times(x float64) PerTier {
	for t := range p {
		p[t] *= x
	}
	return p
}

// Work is what a token needs, in bytes, by the tier where it is found. What is found on disk passes through RAM, where the CPU reads it.
type Work struct {
	Dense   PerTier // weights that every token reads: attention, norms, routers, shared experts, the head
	Experts PerTier // weights of the routed experts
	KV      PerTier // state of the layers: keys and values of the tokens before it
}

// Found is what is found in each tier.
func (w Work) Found() (out PerTier) {
	for t := range out {
		out[t] = w.Dense[t] + w.Experts[t] + w.KV[t]
	}
	return out
}

// Read is what is read from each tier: from RAM what the disk delivers to it, too.
func (w Work) Read() PerTier {
	out := w.Found()
	out[RAM] += out[Disk]
	return out
}

// Bound is the most tokens a second.
type Bound struct {
	Serial     float64 // one read after another, each tier's at its full rate; +Inf for no bytes, 0 where a rate that is needed is unknown
	Overlapped float64 // all tiers at the same time: 1 / the longest; as Serial
	Limit      Tier    // the tier that takes longest
	Seconds    PerTier // a token's, in each tier, all tiers at the same time
}

// Decode is the bound of one token at a time, with rates in bytes a second; a rate of 0 is unknown.
//
//	overlapped: t ≥ max over the tiers of read/rate
//	serial:     t ≥ Σ found/rate, and no less than overlapped: where RAM is slower than the disk, passing through it takes longest
func Decode(w Work, rates PerTier) Bound {
	var b Bound
	found, read := w.Found(), w.Read()
	serial, known := 0.0, true
	for t := range read {
		switch {
		case read[t] <= 0:
			continue
		case rates[t] <= 0:
			known = false
			continue
		}
		serial += found[t] / rates[t]
		b.Seconds[t] = read[t] / rates[t]
		if b.Seconds[t] > b.Seconds[b.Limit] {
			b.Limit = Tier(t)
		}
	}
	if known {
		b.Serial, b.Overlapped = 1/max(serial, b.Seconds[b.Limit]), 1/b.Seconds[b.Limit]
	}
	return b
}

// Efficiency is the share of each bound that tokens a second have reached; 0 where the bound is unknown.
func (b Bound) Efficiency(rate float64) (serial, overlapped float64) {
	share := func(bound float64) float64 {
		if bound <= 0 {
			return 0
		}
		return rate / bound
	}
	return share(b.Serial), share(b.Overlapped)
}

// Union is how many different experts of n rows route to, top k each, where every expert is as likely: n·(1-(1-k/n)^rows).
func Union(n, k, rows int) float64 {
	if n <= 0 {
		return 0
	}
	return float64(n) * (1 - math.Pow(1-float64(k)/float64(n), float64(rows)))
}
