package engine

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/internal/sharedtest"
)

// TestLive looks at a streaming model from another goroutine while it decodes: counters never fall, and in the end they are those that
// the engine's goroutine gets.
func TestLive(t *testing.T) {
	path := sharedtest.Testdata("oracles", "qwen3_moe")
	slot, layers, _ := slotBytes(t, load(t, path, Options{Threads: 1}))
	m := load(t, path, Options{Threads: 2, RAM: int64(layers+1) * slot, Chunk: 8, Measure: true})
	var looking sync.WaitGroup
	var over atomic.Bool
	var looks int
	looking.Go(func() {
		for last := m.Live(); !over.Load(); looks++ {
			now := m.Live()
			if now.Prefilled < last.Prefilled || now.Decoded < last.Decoded || now.Stats.Pairs() < last.Stats.Pairs() || now.Reads.Bytes < last.Reads.Bytes ||
				now.Experts.PairsOnDisk < last.Experts.PairsOnDisk {
				t.Errorf("a counter fell: %+v\nthen %+v", last, now)
			}
			last = now
		}
	})
	const asked, answered = 37, 12
	greedyRun(t, m, prompt(asked), answered)
	over.Store(true)
	looking.Wait()

	live, stats := m.Live(), m.Stats()
	if live.Prefilled != asked || live.Decoded != answered {
		t.Errorf("%d tokens prefilled and %d decoded, want %d and %d", live.Prefilled, live.Decoded, asked, answered)
	}
	if live.Stats.Pairs() != stats.Pairs() || stats.Pairs() == 0 {
		t.Errorf("%d pairs, the engine counts %d", live.Stats.Pairs(), stats.Pairs())
	}
	want, _, err := m.Experts()
	if got := live.Experts; err != nil || got == nil || got.PairsOnDisk != want.PairsOnDisk || got.PairsOnDisk == 0 || live.Reads.Reads == 0 {
		t.Errorf("experts %+v, want %+v (%v); reads %+v", got, want, err, live.Reads)
	}
	if live.Block == nil || live.Block.Own.Reads != uint64(live.Reads.Reads) || live.Policy.Readers == 0 || len(live.Decisions) == 0 {
		t.Errorf("block I/O %+v, policy %+v, decisions %+v", live.Block, live.Policy, live.Decisions)
	}
	if len(live.Ledger) != 1 || len(live.Ledger[0].Entries) == 0 || live.Resident == 0 && runtime.GOOS == "linux" {
		t.Errorf("ledger %+v, %d bytes resident", live.Ledger, live.Resident)
	}
	i := slices.IndexFunc(live.Actors, func(s actors.ActorStats) bool { return s.Name == "tier" })
	if i < 0 || live.Actors[i].Handled == 0 || live.Actors[i].Wait.Count == 0 || live.Actors[i].Handle.Sum == 0 {
		t.Errorf("actors %+v", live.Actors)
	}
	if looks == 0 {
		t.Error("nobody looked while it decoded")
	}
}

// TestLiveInMemory: what a model does not have is not reported.
func TestLiveInMemory(t *testing.T) {
	m := story(t, Options{})
	greedyRun(t, m, prompt(5), 2)
	live := m.Live()
	if live.Experts != nil || live.Reads.Reads != 0 || live.DeviceName != "" || live.Block != nil || live.Policy.Readers != 0 {
		t.Errorf("%+v", live)
	}
	if live.Prefilled != 5 || live.Decoded != 2 || live.Stats.CPU.Pairs == 0 || len(live.Actors) == 0 || live.Actors[0].Wait.Count != 0 {
		t.Errorf("%+v", live)
	}
}

// TestLiveWaitsForNobody: where the tier does not answer in time its last figures stand, and say how old they are.
func TestLiveWaitsForNobody(t *testing.T) {
	path := sharedtest.Testdata("oracles", "qwen3_moe")
	slot, layers, _ := slotBytes(t, load(t, path, Options{Threads: 1}))
	m := load(t, path, Options{Threads: 1, RAM: int64(layers+1) * slot})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if x, age := m.liveExperts(over); x != nil || age != 0 {
		t.Errorf("before the first answer: %+v, %v old", x, age)
	}
	greedyRun(t, m, prompt(5), 2)
	before := m.Live()
	if before.ExpertsAge != 0 || before.Experts.PairsOnDisk == 0 {
		t.Fatalf("%+v, %v old", before.Experts, before.ExpertsAge)
	}
	if x, age := m.liveExperts(over); age <= 0 || *x != *before.Experts {
		t.Errorf("%v old: %+v\nwant %+v", age, x, before.Experts)
	}
}

// TestLiveOnADevice: the counters of a device are shown after each step, and stay when it has failed.
func TestLiveOnADevice(t *testing.T) {
	opt := Options{Threads: 1, GPULayers: "1"}
	f := fake(t, &opt)
	m := load(t, sharedtest.Testdata("oracles", "olmoe"), opt)
	s := session(t, m, 0)
	step := func() int64 {
		t.Helper()
		if _, err := s.Forward(t.Context(), prompt(3)); err != nil {
			t.Fatal(err)
		}
		live := m.Live()
		if live.DeviceName != "fake" || live.Stats.CPU.Pairs == 0 {
			t.Errorf("%+v", live)
		}
		return live.Stats.Device.Pairs
	}
	first := step()
	second := step()
	if first == 0 || second <= first {
		t.Errorf("%d pairs on the device, then %d", first, second)
	}
	f.failFlush = f.flushes + 1
	if lost := step(); lost < second {
		t.Errorf("%d pairs on the device, of %d, when it has failed", lost, second)
	}
	if n, _ := m.LayersOnDevice(); n != 0 {
		t.Error("the device did not fail")
	}
}
