package engine

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
	"github.com/coli-moe/coli/internal/sharedtest"
)

// onVulkan are opt on the device of the tests, with the validation layer, whose messages fail the test. It skips where there is none.
func onVulkan(t *testing.T, opt Options) Options {
	t.Helper()
	opt.DeviceOptions = devicetest.Options(t, opt.DeviceOptions)
	opt.Device = opt.DeviceOptions.Select
	if _, err := device.List(opt.DeviceOptions); err != nil {
		devicetest.Skip(t, err)
	}
	return opt
}

// agree fails where logits differ by more than 1e-4 of a row's largest, or have their largest at another token.
func agree(t *testing.T, what string, got, want []float32, vocab int) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d logits, want %d", what, len(got), len(want))
	}
	for at := 0; at < len(want); at += vocab {
		g, w := got[at:at+vocab], want[at:at+vocab]
		largest, apart := 0.0, 0.0
		for i := range w {
			largest = max(largest, math.Abs(float64(w[i])))
			if d := math.Abs(float64(g[i]) - float64(w[i])); !(d <= apart) {
				apart = d
			}
		}
		if !(apart <= 1e-4*largest) {
			t.Errorf("%s: logits of row %d are %.3g apart, of %.3g", what, at/vocab, apart, largest)
			return
		}
		if slices.Index(g, slices.Max(g)) != slices.Index(w, slices.Max(w)) {
			t.Errorf("%s: row %d has another token", what, at/vocab)
			return
		}
	}
}

// TestVulkan: wherever the boundary between device and CPU is, and however the prompt is cut, the device gives the CPU's tokens.
func TestVulkan(t *testing.T) {
	for _, name := range []string{"olmoe", "qwen3_moe"} {
		dir := sharedtest.Testdata("oracles", name)
		base := load(t, dir, Options{Threads: 1})
		want := moves(t, base)
		layers := base.net.Layers()
		for n := 1; n <= layers; n++ {
			chunks := []int{512}
			if n == layers {
				chunks = []int{1, 3, 5, 512}
			}
			for _, chunk := range chunks {
				what := name + ", layers " + strconv.Itoa(n) + ", chunk " + strconv.Itoa(chunk)
				said := &notes{}
				m := load(t, dir, onVulkan(t, Options{Threads: 1, Chunk: chunk, GPULayers: GPULayers(strconv.Itoa(n)), Note: said.add}))
				agree(t, what, moves(t, m), want, m.Config.VocabSize)
				if on, head := m.LayersOnDevice(); on != n || head != (n == layers) || m.Stats().Device.MatMuls == 0 || len(said.take()) > 0 {
					t.Errorf("%s: %d layers on the device, head %v, %+v: %s", what, on, head, m.Stats().Device, m.LayersWhy)
				}
				if m.Stats().Pairs() != base.Stats().Pairs() || !slices.Equal(m.Routed(), base.Routed()) {
					t.Errorf("%s: other pairs were counted", what)
				}
			}
		}
	}
}
