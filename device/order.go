package device

import "github.com/coli-moe/coli/device/internal/vk"

// kind tells dispatches and copies apart, so that barriers name only the stages that have something to wait for.
type kind uint8

const (
	dispatches kind = iota
	copies
	kinds
)

const allStages = vk.PipelineStageComputeShaderBit | vk.PipelineStageTransferBit

// stage is the stage that runs commands of a kind.
func (k kind) stage() uint32 {
	return [...]uint32{vk.PipelineStageComputeShaderBit, vk.PipelineStageTransferBit}[k]
}

// access is how commands of a set of stages touch memory.
func access(stages uint32) (reads, writes uint32) {
	if stages&vk.PipelineStageComputeShaderBit != 0 {
		reads, writes = vk.AccessShaderReadBit, vk.AccessShaderWriteBit
	}
	if stages&vk.PipelineStageTransferBit != 0 {
		reads, writes = reads|vk.AccessTransferReadBit, writes|vk.AccessTransferWriteBit
	}
	return reads, writes
}

// order works out the barriers of Vulkan's that Frame.Barrier means. One is recorded before the first command of a kind that follows, and
// between the stages of commands that there are: a copy that nothing touches for a while holds up nothing.
type order struct {
	since [kinds]uint32 // stages of commands that those of a kind are not ordered behind
	wait  [kinds]uint32 // stages of those of them before the last Barrier
	used  uint32        // stages of all commands
}

// begin is the beginning of a frame: whatever was submitted before lies behind a Barrier.
func (o *order) begin() { *o = order{wait: [kinds]uint32{allStages, allStages}} }

func (o *order) barrier() {
	for k := range o.wait {
		o.wait[k] |= o.since[k]
		o.since[k] = 0
	}
}

// command notes a command and returns the stages that a barrier before it has to wait for; 0 for no barrier.
func (o *order) command(k kind) (wait uint32) {
	wait, o.wait[k] = o.wait[k], 0
	o.used |= k.stage()
	for i := range o.since {
		o.since[i] |= k.stage()
	}
	return wait
}
