package actors

// SlotBytes is the memory that the slots of experts take together; 0 where all experts are in memory for good.
func (s *System) SlotBytes() int64 {
	if s.memory == nil {
		return 0
	}
	return int64(len(s.memory.Data))
}
