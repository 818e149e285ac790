package gpu

import (
	"fmt"

	"github.com/coli-moe/coli/shaders"
)

// Sizes are those of a model that decide how much memory a run takes beside weights and caches. The largest of all layers count.
type Sizes struct {
	Rows    int // most rows of a step: the chunk of a prompt
	Logits  int // most rows of a step whose logits are asked for
	Hidden  int // values of the residual
	Q, KV   int // values of a row of queries, and of keys (values have as many)
	Heads   int
	HeadDim int
	Inter   int // of a dense unit, 0 for none
	Experts int // of a layer, 0 for none
	TopK    int
	ExInter int // of an expert
	Vocab   int
	Layers  int
}

// Check says what of a model of these sizes the kernels do not compute; nil for nothing.
func (s Sizes) Check() error {
	switch {
	case !shaders.AttentionFits(s.HeadDim):
		return fmt.Errorf("attention heads of %d values have no form on the device", s.HeadDim)
	case s.Experts > shaders.MaxExperts:
		return fmt.Errorf("%d experts in a layer; the device chooses among %d at most", s.Experts, shaders.MaxExperts)
	}
	return nil
}

// Fixed is how much memory the device needs beside weights and caches for a model of these sizes and conversations of so many positions:
// its own for activations and tables, and the host's for what comes back. Without an Observer a run takes no more.
func Fixed(s Sizes, positions int) (onDevice, onHost int64) {
	onDevice, onHost = Held(s, positions, s.Layers)
	// A table that grows stands beside its successor, half as large, for the length of a frame.
	return onDevice + s.rotary(positions)/2 + 3*int64(s.Layers)*aligned(24*int64(s.Experts)), onHost
}

// Held is what of Fixed a run with so many of the layers on the device has taken once it has computed steps of all sizes. The tables of the
// layers' experts, which are part of Fixed, go by the layers' names.
func Held(s Sizes, positions, layers int) (onDevice, onHost int64) {
	counters := aligned(max(4096, shaders.AttentionCounters(gemvRows-1, s.Heads), 4*int64(s.Logits)))
	numbers := aligned(4 * max(1024, int64(s.Rows)))
	onDevice = s.kept() + int64(min(layers, 2))*s.layer() + s.inputs() + s.params() + s.rotary(positions) + counters + numbers
	return onDevice, s.results() + 2*(s.kvRows()+s.choices())
}

// rotary is the table of rotary embeddings.
func (s Sizes) rotary(positions int) int64 {
	return aligned(8 * int64(rotaryRows(positions)) * int64(s.HeadDim/2))
}

// tensor is the memory of [rows, cols], quant that of its integer form.
func (s Sizes) tensor(rows, cols int) int64 { return aligned(4 * int64(rows) * int64(cols)) }
func (s Sizes) quant(rows, cols int) int64  { return aligned(quantBytes(rows, cols)) }

// kept is the arena outside the layers: the residual, routes, the head.
func (s Sizes) kept() int64 {
	if s.Rows == 0 {
		return 0
	}
	n := s.tensor(s.Rows, s.Hidden) + 2*int64(s.Layers)*s.tensor(s.Rows, s.TopK)
	n += 2*s.tensor(s.Logits, s.Hidden) + s.quant(s.Logits, s.Hidden) + s.tensor(s.Logits, s.Vocab)
	return n + aligned(shaders.ArgMaxScratch(s.Logits, s.Vocab))
}

// layer is the arena of one layer.
func (s Sizes) layer() int64 {
	if s.Rows == 0 {
		return 0
	}
	t := func(cols int) int64 { return s.tensor(s.Rows, cols) }
	n := 3*t(s.Hidden) + s.quant(s.Rows, s.Hidden) + 2*t(s.Q) + 2*t(s.KV) + s.quant(s.Rows, s.Q)
	splits := shaders.AttentionSplits(s.Heads, max(1, s.KV/s.HeadDim), s.HeadDim, 1<<20)
	n += aligned(shaders.AttentionScratch(min(s.Rows, gemvRows-1), s.Heads, s.HeadDim, splits))
	if s.Inter > 0 {
		n += 2*t(s.Inter) + s.quant(s.Rows, s.Inter)
	}
	if s.Experts > 0 {
		x := experts{n: s.Experts, hidden: s.Hidden, inter: s.ExInter}
		n += t(s.Experts) + x.workspace(s.Rows, s.TopK).size
	}
	return n
}

// inputs is the rows that the host writes in a step.
func (s Sizes) inputs() int64 { return s.tensor(s.Rows, s.Hidden) }

// params is what else it writes: places with their tiles, the head's rows, the caches' tables, what comes back.
func (s Sizes) params() int64 {
	if s.Rows == 0 {
		return 0
	}
	rows := int64(s.Rows)
	return 2*aligned(8*rows) + aligned(16*rows) + aligned(4*rows) + align*int64(2*s.Layers+1)
}

// results is what a step's logits take, or the residual on its way to another executor.
func (s Sizes) results() int64 { return max(s.tensor(s.Logits, s.Vocab), s.tensor(s.Rows, s.Hidden)) }

// choices is what the experts that a step chooses take on their way to the host.
func (s Sizes) choices() int64 { return int64(s.Layers) * s.tensor(s.Rows, s.TopK) }

// kvRows is what a step's rows of the caches take on their way to the host.
func (s Sizes) kvRows() int64 { return int64(s.Layers) * 2 * s.tensor(s.Rows, s.KV) }
