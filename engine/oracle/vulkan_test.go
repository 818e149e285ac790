package oracle

import (
	"fmt"
	"testing"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/sharedtest"
)

// onVulkan are opt on the device of the tests, whose validation messages fail the test. It skips where there is none.
func onVulkan(t *testing.T, opt engine.Options) engine.Options {
	t.Helper()
	opt.DeviceOptions = devicetest.Options(t, opt.DeviceOptions)
	opt.Device = opt.DeviceOptions.Select
	opt.Note = func(line string) { t.Error(line) }
	if _, err := device.List(opt.DeviceOptions); err != nil {
		devicetest.Skip(t, err)
	}
	return opt
}

// TestFixturesOnVulkan: the device gives the reference's tokens, logits, hidden states and routing, with as many of the layers as it may
// have.
func TestFixturesOnVulkan(t *testing.T) {
	for _, name := range []string{"olmoe", "qwen3_moe"} {
		layers := 4
		if name == "qwen3_moe" {
			layers = 5
		}
		for n := layers; n > 0; n-- {
			t.Run(fmt.Sprintf("%s/layers=%d", name, n), func(t *testing.T) {
				if testing.Short() && n < layers {
					t.Skip("boundaries in between")
				}
				m := load(t, fixtureDir(name), onVulkan(t, engine.Options{Chunk: 64, GPULayers: engine.GPULayers(fmt.Sprint(n))}))
				r, err := open(t, fixtureDir(name)).Check(t.Context(), m)
				if err != nil {
					t.Fatal(err)
				}
				if r.First != nil {
					t.Error(r.First)
				}
				for _, p := range r.Prompts {
					if p.Matched != 32 || !(p.Difference <= p.Allowed) {
						t.Errorf("%+v", p)
					}
				}
				if on, _ := m.LayersOnDevice(); on != n || m.Stats().Device.MatMuls == 0 {
					t.Errorf("%d layers on the device, %+v", on, m.Stats().Device)
				}
			})
		}
	}
}

// TestTrainedModelOnVulkan: likewise with trained weights, in their own format and quantised.
func TestTrainedModelOnVulkan(t *testing.T) {
	if testing.Short() {
		t.Skip("a hundred thousand dispatches")
	}
	m := load(t, sharedtest.Dir(t, "models", "tiny-moe"), onVulkan(t, engine.Options{GPULayers: engine.GPUAll}))
	r, err := open(t, sharedtest.Dir(t, "models", "tiny-moe")).Check(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if r.First != nil || m.Stats().Device.MatMuls == 0 || m.Stats().CPU.MatMuls > 0 {
		t.Errorf("%v; %+v", r.First, m.Stats())
	}
	for _, p := range r.Prompts {
		if p.Matched != p.Greedy {
			t.Errorf("%+v", p)
		}
	}
}
