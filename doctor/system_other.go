//go:build !linux

package doctor

// fill adds nothing: what these systems tell is not asked yet.
func (s *System) fill() {}
