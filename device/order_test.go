package device

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/coli-moe/coli/device/internal/vk"
)

func TestOrder(t *testing.T) {
	type barrier struct {
		at         int // before this command
		wait, held uint32
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var o order
		o.begin()
		var commands []kind
		var part []int // between which calls of Barrier a command lies
		var barriers []barrier
		n := 0
		for range 3 + random.IntN(12) {
			if random.IntN(3) == 0 {
				o.barrier()
				n++
				continue
			}
			k := dispatches
			if random.IntN(4) == 0 {
				k = copies
			}
			if wait := o.command(k); wait != 0 {
				barriers = append(barriers, barrier{len(commands), wait, k.stage()})
			}
			commands, part = append(commands, k), append(part, n)
		}
		// ordered says whether one barrier, which makes writes visible too, lies between the commands.
		ordered := func(from int, stage uint32, to int) bool {
			for _, b := range barriers {
				if from < b.at && b.at <= to && b.wait&stage != 0 && b.held == commands[to].stage() {
					return true
				}
			}
			return false
		}
		for to := range commands {
			if !ordered(-1, vk.PipelineStageComputeShaderBit, to) || !ordered(-1, vk.PipelineStageTransferBit, to) {
				t.Fatalf("%v in parts %v: command %d may overtake the frame before; barriers %v", commands, part, to, barriers)
			}
			for from := range to {
				if part[from] < part[to] && !ordered(from, commands[from].stage(), to) {
					t.Fatalf("%v in parts %v: command %d may overtake %d; barriers %v", commands, part, to, from, barriers)
				}
			}
		}
	}
}

func TestBarriersOfDispatchesAreNarrow(t *testing.T) {
	var o order
	o.begin()
	if wait := o.command(dispatches); wait != allStages {
		t.Errorf("the first dispatch waits for stages %#x, want all", wait)
	}
	if wait := o.command(dispatches); wait != 0 {
		t.Errorf("the second dispatch waits for stages %#x, want none", wait)
	}
	o.barrier()
	o.barrier()
	if wait := o.command(dispatches); wait != vk.PipelineStageComputeShaderBit {
		t.Errorf("a dispatch behind dispatches waits for stages %#x", wait)
	}
	o.command(copies)
	o.barrier()
	if wait := o.command(dispatches); bits.OnesCount32(wait) != 2 {
		t.Errorf("a dispatch behind a copy waits for stages %#x", wait)
	}
	if o.used != allStages {
		t.Errorf("stages %#x are used", o.used)
	}
}
