package engine

import (
	"testing"
	"time"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/limits"
	"github.com/coli-moe/coli/ops"
)

// TestParts: what the parts took is what the steps took, and each kind of work is found in its part.
func TestParts(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	base := load(t, dir, Options{})
	if base.Parts() != nil {
		t.Error("a model loaded without Profile has parts")
	}
	slot, layers, _ := slotBytes(t, base)
	for _, tt := range []struct {
		name string
		opt  Options
		some []ops.Part // that took time
		none []ops.Part
	}{
		{
			"in memory",
			Options{Device: DeviceNone},
			[]ops.Part{ops.PartOther, ops.PartAttention, ops.PartDense, ops.PartRouter, ops.PartMemory, ops.PartHandOver},
			[]ops.Part{ops.PartLanded, ops.PartWaiting, ops.PartDevice},
		},
		{
			"from disk",
			Options{Device: DeviceNone, RAM: int64(layers) * slot},
			[]ops.Part{ops.PartOther, ops.PartAttention, ops.PartDense, ops.PartRouter, ops.PartLanded, ops.PartWaiting, ops.PartHandOver},
			[]ops.Part{ops.PartDevice},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.opt.Profile = true
			m := load(t, dir, tt.opt)
			s := session(t, m, 0)
			begin := time.Now()
			for _, id := range prompt(24) {
				if _, err := s.Forward(t.Context(), []int32{id}); err != nil {
					t.Fatal(err)
				}
			}
			took := time.Since(begin)
			parts := m.Parts()
			var sum time.Duration
			for p, part := range parts {
				sum += part.Time
				if part.Name != ops.Part(p).String() || part.Time < 0 {
					t.Errorf("part %d is %+v", p, part)
				}
			}
			if sum > took || sum < took/2 {
				t.Errorf("the parts sum up to %v, and the steps took %v: %v", sum, took, parts)
			}
			for _, p := range tt.some {
				if parts[p].Time == 0 {
					t.Errorf("no time of %v: %v", p, parts)
				}
			}
			for _, p := range tt.none {
				if parts[p].Time != 0 {
					t.Errorf("%v of %v", parts[p].Time, p)
				}
			}
		})
	}
}

// TestPartsOnDevice: layers on a device are a part of their own.
func TestPartsOnDevice(t *testing.T) {
	opt := onVulkan(t, Options{Profile: true, GPULayers: "1"})
	m := load(t, sharedtest.Testdata("oracles", "olmoe"), opt)
	if n, _ := m.LayersOnDevice(); n != 1 {
		t.Fatalf("%d layers are on the device: %s", n, m.LayersWhy)
	}
	if _, err := session(t, m, 0).Forward(t.Context(), prompt(3)); err != nil {
		t.Fatal(err)
	}
	parts := m.Parts()
	for _, p := range []ops.Part{ops.PartDevice, ops.PartDense, ops.PartMemory} {
		if parts[p].Time == 0 {
			t.Errorf("no time of %v: %v", p, parts)
		}
	}
	if w := m.Work(0); w.Dense[limits.VRAM] == 0 || w.Dense[limits.RAM] == 0 || w.Experts[limits.VRAM] == 0 {
		t.Errorf("work %+v of a model on both sides", w)
	}
}

// TestWork: the bytes of a token are the files' but for the embedding, of which it reads a row, and the experts that it does not route to.
func TestWork(t *testing.T) {
	m := load(t, sharedtest.Testdata("oracles", "olmoe"), Options{Device: DeviceNone})
	w := m.Work(10)
	cfg := m.Config
	experts := float64(m.Checkpoint.ExpertBytes()) * float64(cfg.NumExpertsPerTok) / float64(cfg.NumExperts)
	if w.Experts[limits.RAM] != experts {
		t.Errorf("%v bytes of experts, want %v", w.Experts[limits.RAM], experts)
	}
	dense := float64(m.Checkpoint.DenseBytes()) - 4*float64(cfg.VocabSize*cfg.HiddenSize)
	if w.Dense[limits.RAM] != dense {
		t.Errorf("%v bytes of dense weights, want %v", w.Dense[limits.RAM], dense)
	}
	kv := float64(10 * 4 * 2 * cfg.NumHiddenLayers * cfg.NumKeyValueHeads * cfg.HeadDim)
	if w.KV[limits.RAM] != kv || w.KV[limits.VRAM]+w.Dense[limits.VRAM]+w.Experts[limits.VRAM] != 0 {
		t.Errorf("work %+v, want %v bytes of keys and values, and nothing on a device", w, kv)
	}
}
