package device

import (
	"slices"
	"testing"

	"github.com/coli-moe/coli/device/internal/vk"
)

const (
	own     = vk.MemoryPropertyDeviceLocalBit
	visible = vk.MemoryPropertyHostVisibleBit | vk.MemoryPropertyHostCoherentBit
	hot     = vk.MemoryPropertyHostCachedBit
)

type testType struct{ flags, heap uint32 }

// layoutOf makes a layout of heaps in MiB, those of the device's own memory first, and types.
func layoutOf(ownHeaps []uint64, hostHeaps []uint64, types ...testType) memoryLayout {
	var m memoryLayout
	for i, size := range slices.Concat(ownHeaps, hostHeaps) {
		m.MemoryHeaps[i].Size = size << 20
		if i < len(ownHeaps) {
			m.MemoryHeaps[i].Flags = vk.MemoryHeapDeviceLocalBit
		}
		m.MemoryHeapCount++
	}
	for i, x := range types {
		m.MemoryTypes[i] = vk.MemoryType{PropertyFlags: x.flags, HeapIndex: x.heap}
		m.MemoryTypeCount++
	}
	return m
}

// TestTheLargestPiece: blocks, whose sizes are multiples of the alignment, have room for the largest buffer.
func TestTheLargestPiece(t *testing.T) {
	for most, want := range map[int64]int64{1<<32 - 4: 1<<32 - 256, 1 << 30: 1 << 30} {
		var m memory
		if err := m.init(&candidate{layout: layoutOf([]uint64{8192}, nil, testType{own | visible, 0}), maxAlloc: most}); err != nil {
			t.Fatal(err)
		}
		if m.most != want {
			t.Errorf("where the driver allows %d bytes in one piece, buffers have at most %d, want %d", most, m.most, want)
		}
	}
}

func TestKindsOfMemory(t *testing.T) {
	type order = [uses][]uint32
	h200 := layoutOf([]uint64{143_771}, []uint64{96_000},
		testType{0, 1}, testType{own, 0}, testType{visible, 1}, testType{visible | hot, 1}, testType{own | visible, 0})
	windowed := h200
	windowed.window = 246 << 20
	apu := layoutOf([]uint64{512}, []uint64{14_000},
		testType{own, 0}, testType{visible, 1}, testType{own | visible, 0}, testType{visible | hot, 1})
	apu.integrated = true
	const amdUncached = 0x40 | 0x80
	for _, tt := range []struct {
		name   string
		layout memoryLayout
		want   order
		mapped bool
	}{
		{
			"a card whose memory is all mapped", h200,
			order{DeviceOnly: {1, 4}, HostWrites: {4, 2, 3}, HostReads: {3, 2, 4}, Weights: {4, 1}},
			true,
		},
		{
			"the same with a window given by the user", windowed,
			order{DeviceOnly: {1, 4}, HostWrites: {4, 2, 3}, HostReads: {3, 2, 4}, Weights: {1, 4}},
			false,
		},
		{
			"a card with a window of its own", layoutOf([]uint64{8192, 246}, []uint64{24_000},
				testType{own, 0}, testType{visible, 2}, testType{visible | hot, 2}, testType{own | visible, 1}),
			order{DeviceOnly: {0, 3}, HostWrites: {3, 1, 2}, HostReads: {2, 1, 3}, Weights: {0, 3}},
			false,
		},
		{
			"a card with kinds of memory that have rules of their own", layoutOf([]uint64{16_000}, []uint64{16_000},
				testType{own, 0}, testType{own | visible, 0}, testType{visible | hot, 1},
				testType{own | amdUncached, 0}, testType{own | visible | amdUncached, 0}),
			order{DeviceOnly: {0, 1}, HostWrites: {1, 2}, HostReads: {2, 1}, Weights: {1, 0}},
			true,
		},
		{
			"a processor's graphics with memory set aside", apu,
			order{DeviceOnly: {1, 3, 0, 2}, HostWrites: {1, 3, 2}, HostReads: {3, 1, 2}, Weights: {1, 3, 2, 0}},
			true,
		},
		{
			"one kind for everything", layoutOf([]uint64{2048}, nil, testType{own | visible | hot, 0}),
			order{DeviceOnly: {0}, HostWrites: {0}, HostReads: {0}, Weights: {0}},
			true,
		},
	} {
		for use := range uses {
			if got := tt.layout.kinds(use); !slices.Equal(got, tt.want[use]) {
				t.Errorf("%s: %s is of types %v, want %v", tt.name, use, got, tt.want[use])
			}
		}
		if got := tt.layout.mapped(); got != tt.mapped {
			t.Errorf("%s: weights are mapped: %v", tt.name, got)
		}
	}
}
