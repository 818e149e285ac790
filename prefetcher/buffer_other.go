//go:build !linux

package prefetcher

func reserve(size, slotBytes int64) (*Memory, error) {
	mapped := make([]byte, size+blockSize)
	skip := int(-sliceAddress(mapped) & (blockSize - 1))
	return &Memory{data: mapped[skip:][:size:size], mapped: mapped, slotBytes: slotBytes}, nil
}

// populate leaves the pages to the first write.
func populate([]byte) bool { return false }

// Close gives the memory back; slots must not be used any more.
func (m *Memory) Close() error {
	m.data, m.mapped = nil, nil
	return nil
}
