package engine

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coli-moe/coli/convert"
	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/limits"
)

// planned returns the plan of what load loads.
func planned(t *testing.T, path string, opt Options) *Plan {
	t.Helper()
	if opt.Device == "" && opt.fake == nil {
		opt.Device = DeviceNone
	}
	p, err := MakePlan(t.Context(), path, opt)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// container returns a model of the oracles as a container.
func container(t *testing.T, name string) string {
	dir := t.TempDir()
	if _, err := convert.Run(t.Context(), sharedtest.Testdata("oracles", name), dir, convert.Options{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPlanAgrees: what a plan grants is what a run has taken of each kind of memory, on the device too, once a conversation has filled its
// context: pages that were paged in, slots, caches, buffers.
func TestPlanAgrees(t *testing.T) {
	const size = 200 // tokens: three chunks and a bit
	models := map[string]string{
		"gguf": storyFile, "safetensors": sharedtest.Testdata("oracles", "olmoe"), "container": container(t, "qwen3_moe"),
	}
	for _, tt := range []struct {
		name   string
		share  int // of the experts in RAM, in tenths; 0: all, without --ram
		vulkan GPULayers
	}{
		{"in memory", 0, ""},
		{"streaming", 5, ""},
		{"all layers on a device", 0, GPUAll},
		{"layers on a device, the rest streaming", 5, "1"},
	} {
		for format, path := range models {
			t.Run(tt.name+"/"+format, func(t *testing.T) {
				opt := Options{Threads: 1, Context: size, Chunk: 64}
				if tt.share > 0 {
					opt.RAM = planned(t, path, opt).ExpertBytes * int64(tt.share) / 10
				}
				if tt.vulkan != "" {
					opt.GPULayers = tt.vulkan
					opt = onVulkan(t, opt)
				}
				p := planned(t, path, opt)
				m := load(t, path, opt)
				s := session(t, m, size)
				if _, err := s.Forward(t.Context(), prompt(size-3)); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					if _, err := s.Forward(t.Context(), []int32{5}); err != nil {
						t.Fatal(err)
					}
				}
				if _, streams, _ := m.Experts(); streams != p.Streams || p.Streams != (tt.share > 0) {
					t.Errorf("the plan streams: %v, the run: %v", p.Streams, streams)
				}
				if n, head := m.LayersOnDevice(); n != p.DeviceLayers || head != p.Head || (n > 0) != (tt.vulkan != "") || n > 0 && m.Stats().Device.MatMuls == 0 {
					t.Errorf("the plan has %d layers on the device, the run %d", p.DeviceLayers, n)
				}
				if strings.Contains(p.PlaceWhy, "stream") && p.PlaceWhy != m.PlaceWhy || p.Threads != m.Threads() {
					t.Errorf("the plan: %s\nthe run: %s", p.PlaceWhy, m.PlaceWhy)
				}
				accounts := m.Ledger()
				if len(accounts) != len(p.Accounts) || (len(accounts) == 2) != (tt.vulkan != "") {
					t.Fatalf("the plan has %d accounts, the run %d", len(p.Accounts), len(accounts))
				}
				for i, a := range accounts {
					compare(t, p.Accounts[i], a)
				}
				s.Close()
				for _, e := range m.Ledger()[0].Entries {
					if e.Name == EntryState && e.Held != 0 {
						t.Errorf("a session that was closed holds %d bytes", e.Held)
					}
				}
			})
		}
	}
}

// compare fails where an account of a run differs by more than 2 % from the plan's.
func compare(t *testing.T, plan, run ledger.Account) {
	t.Helper()
	if plan.Of != run.Of || len(plan.Entries) != len(run.Entries) {
		t.Errorf("the plan has %+v, the run %+v", plan, run)
		return
	}
	for i, e := range run.Entries {
		want := plan.Entries[i]
		t.Logf("%s, %s: planned %d, taken %d", run.Of, e.Name, want.Bytes, e.Held)
		if want.Name != e.Name || want.Bytes != e.Bytes || want.Held != 0 || e.Held <= 0 || math.Abs(float64(e.Held-want.Bytes)) > 0.02*float64(want.Bytes) {
			t.Errorf("%s: planned %s %d bytes, the run was granted %s %d and has taken %d", run.Of, want.Name, want.Bytes, e.Name, e.Bytes, e.Held)
		}
	}
}

// TestPlanRefuses: what a load refuses is refused in the same words.
func TestPlanRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		path string
		opt  Options
	}{
		{"no file", filepath.Join("testdata", "nowhere.gguf"), Options{}},
		{"no room for an expert of each layer", storyFile, Options{RAM: 4096}},
		{"a longer context than the model's", storyFile, Options{Context: 1 << 30}},
		{"a negative context", storyFile, Options{Context: -1}},
		{"a device that there is not", storyFile, Options{Device: "no such device"}},
		{"threads", storyFile, Options{Threads: 1 << 20}},
		{"no number of layers", storyFile, Options{GPULayers: "many"}},
	} {
		_, err := MakePlan(t.Context(), tt.path, tt.opt)
		m, want := Load(t.Context(), tt.path, tt.opt)
		if want == nil {
			t.Errorf("%s: loaded", tt.name)
			m.Close()
		}
		if err == nil || want == nil || err.Error() != want.Error() {
			t.Errorf("%s: the plan says  %v\nthe load says %v", tt.name, err, want)
		}
	}
}

// changed returns a copy of a model of the oracles whose configuration has been changed.
func changed(t *testing.T, change func(config map[string]any)) string {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(sharedtest.Testdata("oracles", "olmoe"))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(path)
	config := map[string]any{}
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err == nil {
		change(config)
		data, err = json.Marshal(config)
	}
	if err == nil {
		err = os.WriteFile(path, data, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPlanOfUnsupported: of an architecture that coli does not have there are sizes, and the reason.
func TestPlanOfUnsupported(t *testing.T) {
	p := planned(t, changed(t, func(config map[string]any) { config["model_type"] = "no_such_moe" }), Options{})
	if p.Unsupported == nil || p.DenseBytes == 0 || p.Layers == 0 || len(p.Accounts) != 0 || !strings.Contains(p.Unsupported.Error(), "no_such_moe") {
		t.Errorf("%+v", p)
	}
}

// TestPlanOfUnknownContext: a checkpoint that does not say how long contexts are needs the size, and room for all of it. What no machine
// has is refused by its bytes, or where these cannot be counted.
func TestPlanOfUnknownContext(t *testing.T) {
	path := changed(t, func(config map[string]any) { delete(config, "max_position_embeddings") })
	opt := Options{Device: DeviceNone, Context: 10000}
	p := planned(t, path, opt)
	m := load(t, path, opt)
	want := m.hostState() * 10000
	for _, a := range []ledger.Account{p.Accounts[0], m.Ledger()[0]} {
		if i := slices.IndexFunc(a.Entries, func(e ledger.Entry) bool { return e.Name == EntryState }); i < 0 || a.Entries[i].Bytes != want {
			t.Errorf("layer state of 10000 tokens: %+v, want %d bytes", a.Entries, want)
		}
	}
	for context, want := range map[int]string{0: "give --ctx-size", maxContext: "give a smaller --ctx-size than", maxContext + 1: "at most", math.MaxInt: "at most"} {
		opt.Context = context
		if _, err := MakePlan(t.Context(), path, opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d tokens: %v", context, err)
		}
	}
}

func TestExpected(t *testing.T) {
	counts := []uint64{
		9, 1, 0, 0, // on a device
		5, 3, 2, 0,
		6, 1, 1, 2,
	}
	for _, tt := range []struct {
		counts []uint64
		layers []int
		slots  int
		hit    float64
		pairs  uint64
	}{
		{counts, []int{1, 2}, 2, 11.0 / 20, 20},
		{counts, []int{1, 2}, 3, 14.0 / 20, 20},
		{counts, []int{1, 2}, 8, 1, 20},
		{counts, []int{0, 1, 2}, 1, 9.0 / 30, 30},
		{nil, []int{1, 2}, 2, 0.25, 0},
		{make([]uint64, 12), []int{1, 2}, 6, 0.75, 0},
		{slices.Repeat([]uint64{math.MaxUint64}, 12), []int{0, 1, 2}, 6, 0.5, 0},
		{counts, nil, 0, 1, 0},
	} {
		hit, pairs := expected(tt.counts, 4, tt.layers, tt.slots)
		if math.Abs(hit-tt.hit) > 1e-9 || pairs != tt.pairs && tt.hit != 0.5 {
			t.Errorf("%d slots in layers %v of %v: %.3f of %d pairs, want %.3f of %d", tt.slots, tt.layers, tt.counts, hit, pairs, tt.hit, tt.pairs)
		}
	}
}

// TestExpectedIsBest: the share that is expected is that of the best choice of experts that fit, found by trying all choices.
func TestExpectedIsBest(t *testing.T) {
	const layers, experts = 4, 4
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		counts := make([]uint64, layers*experts)
		for i := range counts {
			counts[i] = rng.Uint64N(1 << rng.UintN(12)) // skewed
		}
		here := []int{0, 2, 3}
		slots := rng.IntN(len(here)*experts + 1)
		best, all := uint64(0), uint64(0)
		for choice := range uint(1) << (layers * experts) {
			sum, chosen := uint64(0), 0
			for i, n := range counts {
				if choice>>i&1 == 1 {
					if !slices.Contains(here, i/experts) { // on a device: takes no slot, and counts for none
						chosen = slots + 1
						break
					}
					sum += n
					chosen++
				}
			}
			if chosen <= slots {
				best = max(best, sum)
			}
		}
		for _, il := range here {
			for e := range experts {
				all += counts[il*experts+e]
			}
		}
		if hit, pairs := expected(counts, experts, here, slots); pairs != all || all > 0 && math.Abs(hit-float64(best)/float64(all)) > 1e-12 {
			t.Errorf("%v, %d slots: %.4f of %d pairs, want %d of %d", counts, slots, hit, pairs, best, all)
		}
	}
}

// TestMemoryRate: a rate, unless there is too little memory for it, and none when nobody waits for it.
func TestMemoryRate(t *testing.T) {
	if rate, err := MemoryRate(t.Context(), 1, time.Millisecond); err == nil && (rate < 1e6 || rate > 1e13) || err != nil && !errors.Is(err, ledger.ErrNoRoom) {
		t.Errorf("%g bytes per second, %v", rate, err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if rate, err := MemoryRate(stopped, 1, time.Hour); rate != 0 || !errors.Is(err, context.Canceled) && !errors.Is(err, ledger.ErrNoRoom) {
		t.Errorf("when it was stopped: %g bytes per second, %v", rate, err)
	}
}

// TestPlanReads: a token reads the same bytes wherever they are, an expert that is not in RAM from disk, and keys and values once there are some.
func TestPlanReads(t *testing.T) {
	all := planned(t, storyFile, Options{Context: 512})
	opt := Options{Context: 512, RAM: all.ExpertBytes / 4}
	some := planned(t, storyFile, opt)
	if some.Earlier != 0 || some.Hit < 0.15 || some.Hit > 0.25 || all.Hit != 1 {
		t.Errorf("without a history a quarter of the experts has %.2f of the pairs, all have %.2f", some.Hit, all.Hit)
	}
	if a, b := all.Full.Found().Sum(), some.Full.Found().Sum(); math.Abs(a-b) > 1e-6*a || some.Full.Experts[limits.Disk] <= some.Full.Experts[limits.RAM] {
		t.Errorf("in memory %v, streaming %v", all.Full, some.Full)
	}
	if all.Empty.KV.Sum() != 0 || all.Full.KV.Sum() == 0 {
		t.Errorf("layer state: %v at the beginning, %v at the end", all.Empty.KV, all.Full.KV)
	}
	hot := 0
	opt.History = func(_ string, layers, experts int) []uint64 {
		counts := make([]uint64, layers*experts)
		for i := range min(some.Slots, len(counts)) {
			counts[i] = 10
			hot++
		}
		return counts
	}
	if used := planned(t, storyFile, opt); used.Hit != 1 || used.Earlier != 10*uint64(hot) {
		t.Errorf("all pairs of earlier runs fit, and %.2f of %d are expected", used.Hit, used.Earlier)
	}
}
