package device

// WideBarrier is Frame.Barrier for dispatches and copies, whatever the frame has of them. Benchmarks compare the two.
func (f *Frame) WideBarrier() {
	if f.begin() {
		f.barrier(allStages, allStages)
	}
}

// Look reads how far the device has come, as a wait that spins does over and over.
func (f *Frame) Look() error { return f.waiter.read.Do() }
