package device

import "slices"

// mapped says whether weights are written through a mapping.
func (m *memoryLayout) mapped() bool {
	return slices.ContainsFunc(m.kinds(Weights), func(kind uint32) bool { return m.flags(kind)&mappable == mappable && m.roomy(kind) })
}

// Mapped says whether the device's weights are.
func (d *Device) Mapped() bool { return d.memory.layout.mapped() }

// WideBarrier is Frame.Barrier for dispatches and copies, whatever the frame has of them. Benchmarks compare the two.
func (f *Frame) WideBarrier() {
	if f.begin() {
		f.barrier(allStages, allStages)
	}
}

// Look reads how far the device has come, as a wait that spins does over and over.
func (f *Frame) Look() error { return f.waiter.read.Do() }
