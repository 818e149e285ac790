package engine

import (
	"context"
	"errors"
	"time"

	"github.com/coli-moe/coli/limits"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/prefetcher"
)

// Part is what a share of the steps' time was spent on.
type Part struct {
	Name string
	Time time.Duration
}

// Parts returns what the time of all steps since the model was loaded with Options.Profile went into; they add up to it. The list is the same
// at each call, with parts that took no time too. It is called between steps.
func (m *Model) Parts() []Part {
	if m.clock == nil {
		return nil
	}
	spent := m.clock.Spent()
	parts := make([]Part, len(spent))
	for p, d := range spent {
		parts[p] = Part{ops.Part(p).String(), d}
	}
	return parts
}

// enter books what follows as the work of an executor: a device's layers are one part, the CPU's ops tell their own.
func (m *Model) enter(exec ops.Executor) {
	part := ops.PartOther
	if exec != ops.Executor(m.exec) {
		part = ops.PartDevice
	}
	m.clock.Enter(part)
}

// Work is what a token at position pos has to read, in bytes, by where it lies: every weight of the layers and of the head once, of the routed
// experts those of a token, keys and values of the tokens before it. Experts of the CPU's layers are all counted as RAM's; how many of
// them come from disk is what a run shows.
func (m *Model) Work(pos int) limits.Work {
	var w limits.Work
	for il := range m.net.Layers() + 1 {
		tier := limits.RAM
		if m.at(il) != ops.Executor(m.exec) {
			tier = limits.VRAM
		}
		matrices, vectors := m.net.Weights(il)
		for _, x := range matrices {
			w.Dense[tier] += float64(x.Rows) * float64(x.RowBytes)
		}
		for _, v := range vectors {
			w.Dense[tier] += 4 * float64(len(v.Data))
		}
		if il == m.net.Layers() {
			break
		}
		state := m.net.State(il)
		w.KV[tier] += 4 * float64(state.KWidth+state.VWidth) * float64(pos)
		if set := m.net.Experts(il); set != nil {
			gate, up, down := set.Expert(0) // the others are alike
			for _, x := range []*ops.Matrix{gate, up, down} {
				w.Experts[tier] += float64(m.Config.NumExpertsPerTok) * float64(x.Rows) * float64(x.RowBytes)
			}
		}
	}
	return w
}

// CPUExperts is how many routed experts the CPU's layers have.
func (m *Model) CPUExperts() int {
	_, experts := m.expertLayers()
	return len(m.cpuLayers()) * experts
}

// Chunk is the most rows of a step.
func (m *Model) Chunk() int { return m.chunk }

// Drive measures for at most d what the drive delivers when it is read at random as the experts are, with nothing else to do, in bytes a
// second. It is an error if the experts do not stream, or if the file system refuses direct reads.
func (m *Model) Drive(ctx context.Context, d time.Duration) (float64, error) {
	if m.request == 0 {
		return 0, errors.New("experts are not read from disk")
	}
	return prefetcher.RawRate(ctx, m.Checkpoint.Files(), m.request, prefetcher.ReadersFor(m.request), d)
}
