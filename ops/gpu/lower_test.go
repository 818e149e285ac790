package gpu

import (
	"testing"

	"github.com/coli-moe/coli/device"
)

// TestAttentionKernel: which kernel computes attention depends on the device, the heads and whether the rows come in tiles.
func TestAttentionKernel(t *testing.T) {
	matrices := device.Info{Subgroup: 32, MinSubgroup: 32, MaxSubgroup: 32, SharedMemory: 48 << 10, Features: device.Features{CoopF16: true}}
	with := func(change func(i *device.Info)) device.Info {
		i := matrices
		change(&i)
		return i
	}
	for _, c := range []struct {
		name    string
		info    device.Info
		headDim uint32
		tiles   uint32
		want    string
	}{
		{"few rows", matrices, 128, 0, "attention"},
		{"many rows", matrices, 128, 2, "attention_coop"},
		{"heads of 64", matrices, 64, 2, "attention_coop"},
		{"heads that do not fit", matrices, 96, 2, "attention_block"},
		{"no matrices", with(func(i *device.Info) { i.Features.CoopF16 = false }), 128, 2, "attention_block"},
		{"other subgroups", with(func(i *device.Info) { i.Subgroup, i.MinSubgroup, i.MaxSubgroup = 64, 64, 64 }), 128, 2, "attention_block"},
		{"little shared memory", with(func(i *device.Info) { i.SharedMemory = 32 << 10 }), 128, 2, "attention_block"},
	} {
		l := lowering{cores: coresOf(c.info)}
		x := operand{at: 256, rows: 64, cols: 2 * int32(c.headDim)}
		n := node{op: opAttend, dst: x, x: x, tiles: c.tiles, n: [7]uint32{2, 2, c.headDim}}
		l.attend(unit{node: &n})
		if len(l.out) != 1 || l.out[0].Kernel != c.want {
			t.Errorf("%s: %+v, want %s", c.name, l.out, c.want)
			continue
		}
		if c.want == "attention_coop" && l.out[0].subgroup != coopSubgroup {
			t.Errorf("%s: subgroups of %d", c.name, l.out[0].subgroup)
		}
	}
}
