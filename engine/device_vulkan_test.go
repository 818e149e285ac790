package engine

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
	"github.com/coli-moe/coli/engine/sampler"
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

// TestVulkanFaults: whatever fails, and when, from the opening of the device to the last token, the tokens are the CPU's, one line says what
// became of the layers, and nothing is left on the device.
func TestVulkanFaults(t *testing.T) {
	sharedtest.Leaks(t)
	dir := sharedtest.Testdata("oracles", "olmoe")
	base := load(t, dir, Options{Threads: 1})
	ids := prompt(9)
	want := greedyRun(t, base, ids, 3)
	// run says whether the n-th event's failure was felt while loading, or in a step.
	run := func(t *testing.T, layers GPULayers, faults device.Faults, what string) (loading, step bool) {
		said := &notes{}
		opt := onVulkan(t, Options{Threads: 1, Chunk: 6, GPULayers: layers, Note: said.add})
		opt.DeviceOptions.Faults = &faults
		m := load(t, dir, opt)
		before, _ := m.LayersOnDevice()
		loading = strings.Contains(m.LayersWhy, "did not reach the device") || strings.Contains(m.LayersWhy, "all layers on the CPU")
		agree(t, what, greedyRun(t, m, ids, 3), want, m.Config.VocabSize)
		after, _ := m.LayersOnDevice()
		lines := said.take()
		step = after < before
		if step && (after > 0 || len(lines) != 1 || !strings.Contains(lines[0], "from here on everything runs on the CPU")) || !step && len(lines) > 0 {
			t.Errorf("%s: %d layers of %d are on the device, lines %q", what, after, before, lines)
		}
		return loading, step
	}
	for _, kind := range []struct {
		name string
		at   func(f *device.Faults) *int
	}{
		{"alloc", func(f *device.Faults) *int { return &f.Alloc }},
		{"submit", func(f *device.Faults) *int { return &f.Submit }},
		{"wait", func(f *device.Faults) *int { return &f.Wait }},
		{"frame", func(f *device.Faults) *int { return &f.Frame }},
		{"lost", func(f *device.Faults) *int { return &f.Lost }},
	} {
		for _, layers := range []GPULayers{GPUAll, "2"} {
			t.Run(kind.name+"/"+string(layers), func(t *testing.T) {
				if testing.Short() && layers == "2" {
					t.Skip("the head on the CPU, too")
				}
				at := func(n int) (loading, step bool) {
					var faults device.Faults
					*kind.at(&faults) = n
					return run(t, layers, faults, kind.name+" "+strconv.Itoa(n))
				}
				// Loading has many events, of which some are tried, and the steps few.
				inLoading, inSteps, missed, first := 0, 0, 0, 3 // those of opening a device are package device's to test
				for n := first; ; n += 1 + n/5 {
					if loading, _ := at(n); !loading {
						break
					}
					inLoading, first = inLoading+1, n+1
				}
				for n := first; missed < 2 && inSteps < 8; n++ {
					switch loading, step := at(n); {
					case loading:
						inLoading++
					case step:
						inSteps++
					default:
						missed++
					}
				}
				if inLoading == 0 || inSteps == 0 {
					t.Errorf("failures were felt %d times in loading, %d times in steps", inLoading, inSteps)
				}
			})
		}
	}
}

// TestVulkanOwed: a submission that fails while what the step before chose and wrote has not been looked at costs nothing of it: the tokens
// are the CPU's, every pair counts once, and the host has all rows.
func TestVulkanOwed(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	ids := prompt(12)
	run := func(m *Model, fail func()) (logits []float32, s *Session) {
		t.Helper()
		s = session(t, m, 0)
		for i, part := range [][]int32{ids[:9], ids[9:10], ids[10:11], ids[11:]} {
			if i == 2 {
				fail()
			}
			err := s.ForwardAll(t.Context(), part, func(_ int, l []float32) { logits = append(logits, l...) })
			if err != nil {
				t.Fatal(err)
			}
		}
		return logits, s
	}
	base := load(t, dir, Options{Threads: 1})
	want, ws := run(base, func() {})
	for _, layers := range []GPULayers{GPUAll, "2"} {
		m := load(t, dir, onVulkan(t, Options{Threads: 1, GPULayers: layers, Note: func(string) {}}))
		got, s := run(m, func() { m.binding.card.accelerator.(*vulkan).device.Inject(device.Faults{Submit: 1}) })
		if n, _ := m.LayersOnDevice(); n > 0 {
			t.Errorf("layers %s: nothing failed", layers)
		}
		agree(t, "layers "+string(layers), got, want, m.Config.VocabSize)
		if !slices.Equal(m.Routed(), base.Routed()) {
			t.Errorf("layers %s: routed %v, want %v", layers, m.Routed(), base.Routed())
		}
		for il, layer := range s.step.State {
			for c, kv := range layer {
				agree(t, "keys", kv.K, ws.step.State[il][c].K, len(kv.K))
				agree(t, "values", kv.V, ws.step.State[il][c].V, len(kv.V))
			}
		}
	}
}

// TestVulkanCap: a device with room for k layers gets k, runs them, and takes no more than it has; one that has less room than the plan
// believes gives up what does not fit.
func TestVulkanCap(t *testing.T) {
	dir := sharedtest.Testdata("oracles", "olmoe")
	base := load(t, dir, Options{Threads: 1})
	ids := prompt(9)
	want := greedyRun(t, base, ids, 3)
	whole := load(t, dir, onVulkan(t, Options{GPULayers: GPUAll, Chunk: 8}))
	c := whole.binding.card
	needs := c.fixed
	for k := range whole.net.Layers() {
		w, err := whole.weigh(c, k)
		if err != nil {
			t.Fatal(err)
		}
		needs += w + whole.stateBytes(k, Options{})
		said := &notes{}
		opt := onVulkan(t, Options{GPULayers: GPUAuto, Chunk: 8, Note: said.add})
		opt.DeviceOptions.MemoryCap = 2 * needs // half of a small device is left to others
		m := load(t, dir, opt)
		if n, _ := m.LayersOnDevice(); n != k+1 {
			t.Errorf("room for %d layers: %s", k+1, m.LayersWhy)
		}
		agree(t, m.LayersWhy, greedyRun(t, m, ids, 3), want, m.Config.VocabSize)
		if n, _ := m.LayersOnDevice(); n != k+1 || len(said.take()) > 0 || m.Stats().Device.MatMuls == 0 {
			t.Errorf("room for %d layers: %s", k+1, m.LayersWhy)
		}
	}
}

// TestVulkanNotTaken: a device that was opened for a model that cannot be loaded is closed.
func TestVulkanNotTaken(t *testing.T) {
	sharedtest.Leaks(t)
	dir := sharedtest.Testdata("oracles", "olmoe")
	for _, tt := range []struct {
		path string
		opt  Options
	}{
		{filepath.Join(t.TempDir(), "none.gguf"), Options{}},
		{dir, Options{Threads: MaxThreads + 1}},
	} {
		found := look(onVulkan(t, tt.opt))
		if <-found.done; found.err != nil || found.device == nil {
			t.Fatalf("no device was found: %v", found.err)
		}
		d := found.device
		if err := found.end(); err != nil {
			t.Errorf("closing it: %v", err)
		}
		if _, err := d.Alloc(device.DeviceOnly, 256, "nothing"); err == nil {
			t.Error("it is still open")
		}
		if _, err := Load(t.Context(), tt.path, onVulkan(t, tt.opt)); err == nil {
			t.Error("a model was loaded")
		}
	}
}

// TestVulkanGreedy: the text that follows from the device's own choice of tokens is the CPU's.
func TestVulkanGreedy(t *testing.T) {
	dir := sharedtest.Dir(t, "models", "tiny-moe")
	answer := func(m *Model) string {
		t.Helper()
		tok, err := m.Tokenizer()
		if err != nil {
			t.Fatal(err)
		}
		s := session(t, m, 0)
		defer s.Close()
		var text strings.Builder
		_, err = s.Generate(t.Context(), Request{
			Prompt: tok.Encode("Once upon a time"), Sampler: sample(t, sampler.Params{RepeatPenalty: 1, TopP: 1}), MaxTokens: 30,
			Emit: func(s string) error { text.WriteString(s); return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	want := answer(load(t, dir, Options{}))
	m := load(t, dir, onVulkan(t, Options{GPULayers: GPUAll}))
	if got := answer(m); got != want || m.Stats().CPU.MatMuls > 0 || m.Stats().Device.MatMuls == 0 {
		t.Errorf("%q\nwant %q\n%+v", got, want, m.Stats())
	}
}

// TestVulkanCancelled: a step that is cancelled between two layers, with the device's part of it done, leaves nothing behind that would
// disturb what follows; the timeline shows the device's actors.
func TestVulkanCancelled(t *testing.T) {
	sharedtest.Leaks(t)
	dir := sharedtest.Testdata("oracles", "olmoe")
	base := load(t, dir, Options{Threads: 1})
	want := logitsOf(t, session(t, base, 0), prompt(40))
	m := load(t, dir, onVulkan(t, Options{Threads: 1, GPULayers: "2", Trace: true}))
	s := session(t, m, 0)
	logitsOf(t, s, prompt(40)[:20])
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		s.Observe = func(_ string, layer, _, _ int, _ []float32) {
			if layer == 2 {
				cancel()
			}
		}
		if _, err := s.Forward(ctx, prompt(40)[20:]); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		s.Observe = nil
		s.Truncate(13)
		logitsOf(t, s, prompt(40)[13:20])
	}
	agree(t, "after cancelled steps", logitsOf(t, s, prompt(40)[20:]), want, m.Config.VocabSize)
	var trace strings.Builder
	if err := m.WriteTrace(&trace); err != nil {
		t.Fatal(err)
	}
	for _, actor := range []string{"device queue", "kv mirror"} {
		if !strings.Contains(trace.String(), actor) {
			t.Errorf("the timeline does not show %q", actor)
		}
	}
}
