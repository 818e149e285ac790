//go:build !linux

package weights

// populate leaves the reading to the first touch.
func (f *file) populate(int64, int64) {}
