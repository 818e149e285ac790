package gpu

import (
	"github.com/coli-moe/coli/shaders"
)

// Sizes are those of a model that decide how much device memory a run takes beside weights and caches. The largest of all layers count.
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

// kept is the arena outside the layers: the residual, routes, the head.
func (s Sizes) kept() int64 {
	rows, logits := int64(s.Rows), int64(max(s.Logits, 1))
	n := s.tensor(s.Rows, s.Hidden)
	n += int64(s.Layers) * 2 * aligned(4*rows*int64(s.TopK))
	n += 2*s.tensor(s.Logits, s.Hidden) + aligned(quantBytes(int(logits), s.Hidden)) + s.tensor(s.Logits, s.Vocab)
	return n + aligned(shaders.ArgMaxScratch(int(logits), s.Vocab))
}

func (s Sizes) tensor(rows, cols int) int64 { return aligned(4 * int64(max(rows, 1)) * int64(cols)) }

// layer is the arena of one layer.
func (s Sizes) layer() int64 {
	if s.Rows == 0 {
		return 0
	}
	t := func(cols int) int64 { return s.tensor(s.Rows, cols) }
	q := func(cols int) int64 { return aligned(quantBytes(s.Rows, cols)) }
	n := 3*t(s.Hidden) + q(s.Hidden) + 2*t(s.Q) + 2*t(s.KV) + q(s.Q)
	few := min(s.Rows, gemvRows-1)
	n += aligned(shaders.AttentionScratch(few, s.Heads, s.HeadDim, 64))
	n += 2*t(s.Inter) + q(s.Inter)
	if s.Experts > 0 {
		x := experts{n: s.Experts, hidden: s.Hidden, inter: s.ExInter}
		n += t(s.Experts) + x.workspace(s.Rows, s.TopK).size
	}
	return n
}

// params is what a step's places, caches' tables and host rows take.
func (s Sizes) params() int64 {
	return s.tensor(s.Rows, s.Hidden) + 4*align*int64(s.Layers+4) + 32*int64(s.Rows)
}

// results is what a step's logits and choices take.
func (s Sizes) results() int64 {
	return s.tensor(s.Logits, s.Vocab) + int64(s.Layers)*s.tensor(s.Rows, s.TopK) + align
}

// kvRows is what a step's rows of the caches take on their way to the host.
func (s Sizes) kvRows() int64 { return int64(s.Layers) * 2 * s.tensor(s.Rows, s.KV) }

// Fixed is how much memory the device needs beside weights and caches for a model of these sizes: device memory for activations and
// tables, and host memory that the device sees. A run takes no more.
func Fixed(s Sizes, positions int) (onDevice, onHost int64) {
	rope := int64(leastRope)
	for rope < int64(positions) {
		rope *= 2
	}
	onDevice = s.kept() + 2*s.layer() + s.params() + aligned(8*rope*int64(s.HeadDim/2))
	onHost = s.results() + 2*s.kvRows()
	return onDevice, onHost
}
