package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/prefetcher"
)

// slotBytes is the memory an expert of a checkpoint takes, and how many layers have experts.
func slotBytes(t *testing.T, m *Model) (bytes int64, layers, experts int) {
	t.Helper()
	il, n := m.expertLayers()
	r, err := m.Checkpoint.Records(il, n)
	if err != nil {
		t.Fatal(err)
	}
	return r.SlotBytes(), len(il), n
}

// greedyRun computes a prompt and some tokens after it, and returns all logits on the way.
func greedyRun(t *testing.T, m *Model, prompt []int32, n int) (out []float32) {
	t.Helper()
	s := session(t, m, 0)
	keep := func(_ int, logits []float32) { out = append(out, logits...) }
	if err := s.ForwardAll(t.Context(), prompt, keep); err != nil {
		t.Fatal(err)
	}
	for range n {
		best := 0
		last := out[len(out)-m.Config.VocabSize:]
		for i, v := range last {
			if v > last[best] {
				best = i
			}
		}
		if err := s.ForwardAll(t.Context(), []int32{int32(best)}, keep); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestMetamorphic draws random settings: wherever the experts come from, and whoever computes them when, every logit has the bits of the
// run whose experts are all in memory; with layers on a device, which adds in another order, its tokens.
func TestMetamorphic(t *testing.T) {
	dirs := []string{
		sharedtest.Testdata("oracles", "olmoe"), sharedtest.Testdata("oracles", "olmoe_sharded"), sharedtest.Testdata("oracles", "qwen3_moe"),
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) { metamorphic(t, dir, 12) })
	}
	t.Run("tiny-moe", func(t *testing.T) {
		runs := 4
		if testing.Short() {
			runs = 1
		}
		metamorphic(t, sharedtest.Dir(t, "models", "tiny-moe-Q8_0.gguf"), runs)
		metamorphic(t, sharedtest.Dir(t, "models", "tiny-moe"), runs)
	})
}

func metamorphic(t *testing.T, path string, runs int) {
	ids := prompt(37)
	base := load(t, path, Options{Threads: 1})
	want := greedyRun(t, base, ids, 12)
	slot, layers, experts := slotBytes(t, base)
	rng := rand.New(rand.NewPCG(7, uint64(len(path))))
	// Activations that are quantised for the weights' sake turn the last bit of a sum into a step of 1/127: with such weights a device gives
	// other logits, as another processor's instructions do.
	_, err := device.List(device.Options{})
	vulkan := err == nil && filepath.Ext(path) != ".gguf"
	for i := range runs {
		slots := layers // the fewest allowed
		if i > 0 {
			slots += rng.IntN(layers*experts - layers)
		}
		opt := Options{
			Threads: 1 + rng.IntN(4), Chunk: []int{1, 2, 5, 16, 512}[rng.IntN(5)],
			RAM: int64(slots)*slot + rng.Int64N(slot), Readers: rng.IntN(5),
			Direct:        prefetcher.Mode(rng.IntN(2)) * prefetcher.Off,
			Prefetch:      []Prefetch{PrefetchAuto, PrefetchOn, PrefetchOff}[rng.IntN(3)],
			Depth:         rng.IntN(2) * rng.IntN(2*base.Config.NumExpertsPerTok+2),
			Horizon:       rng.IntN(4),
			Deterministic: rng.IntN(4) == 0,
			Trace:         rng.IntN(4) == 0,
			Note:          func(line string) { t.Log(line) },
		}
		if rng.IntN(2) == 0 {
			opt.History = func(string, int, int) []uint64 { return base.Routed() }
		}
		if vulkan && i%3 == 2 {
			opt = onVulkan(t, opt)
			opt.GPULayers = GPULayers(strconv.Itoa(1 + rng.IntN(base.net.Layers())))
		}
		if i%2 == 1 {
			opt.choose = func() messages.Policy { // another policy for each step, and two decide
				return messages.Policy{Readers: 1 + rng.IntN(9), Depth: rng.IntN(2*base.Config.NumExpertsPerTok + 2), Horizon: 1 + rng.IntN(3)}
			}
		}
		name := fmt.Sprintf("threads %d chunk %d slots %d readers %d direct %v prefetch %s depth %d horizon %d changing %v deterministic %v history %v "+
			"device %q layers %s", opt.Threads, opt.Chunk, slots, opt.Readers, opt.Direct, opt.Prefetch, opt.Depth, opt.Horizon, opt.choose != nil,
			opt.Deterministic, opt.History != nil, opt.Device, opt.GPULayers)
		t.Log(name)
		m := load(t, path, opt)
		got := greedyRun(t, m, ids, 12)
		if n, _ := m.LayersOnDevice(); n > 0 {
			agree(t, name, got, want, m.Config.VocabSize)
			if m.Stats().Device.MatMuls == 0 {
				t.Errorf("%s: nothing ran on the device", name)
			}
		} else if !slices.Equal(got, want) || opt.GPULayers != "" {
			t.Errorf("%s: logits differ from the run in memory", name)
		}
		st, streams, err := m.Experts()
		if err != nil {
			t.Fatal(err)
		}
		if !streams {
			if x := m.room.experts; x != nil && opt.RAM < x.Bytes() {
				t.Errorf("%s: the experts did not stream: %s", name, m.PlaceWhy)
			}
			continue
		}
		pairs := st.PairsInMemory + st.PairsInFlight + st.PairsOnDisk
		if n := m.Stats().CPU.Pairs; pairs != n {
			t.Errorf("%s: the tier counted %d pairs, %d were computed", name, pairs, n)
		}
		if m.failures > 0 {
			t.Errorf("%s: %d steps were computed without the pipeline", name, m.failures)
		}
		if st.PairsOnDisk == 0 && opt.History == nil || st.Read == 0 {
			t.Errorf("%s: nothing was read: %+v", name, st)
		}
	}
}

// TestWhatIsBalanced: what is asked for stands, within what the model has; --deterministic leaves nothing to be decided.
func TestWhatIsBalanced(t *testing.T) {
	path := sharedtest.Testdata("oracles", "olmoe")
	m := load(t, path, Options{Threads: 1})
	layers, experts := m.expertLayers()
	topK := m.Config.NumExpertsPerTok
	fixed := func(n int) balancer.Range { return balancer.Range{Min: n, Max: n} }
	all, far := balancer.Range{Min: 1, Max: prefetcher.MaxReaders}, balancer.Range{Min: 1, Max: min(3, len(layers)-1)}
	most := min(2*topK, experts)
	for _, tt := range []struct {
		name                    string
		opt                     Options
		readers, depth, horizon balancer.Range
	}{
		{"nothing", Options{}, all, balancer.Range{Max: most}, far},
		{"readers", Options{Readers: 5}, fixed(5), balancer.Range{Max: most}, far},
		{"prefetch on", Options{Prefetch: PrefetchOn}, all, balancer.Range{Min: 1, Max: most}, far},
		{"prefetch off", Options{Prefetch: PrefetchOff, Depth: 3}, all, fixed(0), far},
		{"depth", Options{Depth: 3}, all, fixed(3), far},
		{"more than there are", Options{Depth: 1000, Horizon: math.MaxInt}, all, fixed(experts), fixed(len(layers) - 1)},
		{"deterministic", Options{Deterministic: true}, fixed(1), fixed(0), fixed(1)},
		{"deterministic, prefetch on", Options{Deterministic: true, Prefetch: PrefetchOn}, fixed(1), fixed(topK), fixed(1)},
		{"deterministic, depth", Options{Deterministic: true, Depth: 3}, fixed(1), fixed(3), fixed(1)},
		{"deterministic, horizon", Options{Deterministic: true, Horizon: 2}, fixed(1), fixed(topK), fixed(2)},
	} {
		p := place{readers: max(tt.opt.Readers, 1)}
		c := m.balance(tt.opt, p)
		if c.Readers != tt.readers || c.Depth != tt.depth || c.Horizon != tt.horizon || c.Fixed() != tt.opt.Deterministic {
			t.Errorf("%s: %+v", tt.name, c)
		}
	}
}
