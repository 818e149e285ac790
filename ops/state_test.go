package ops

import "testing"

// TestMark: rows that the host writes, or forgets, are no longer what a device has; rows behind the others leave the others alone.
func TestMark(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(s *KV)
		mark int
	}{
		{"append", func(s *KV) { s.Put(4, []float32{1, 2}, []float32{3}) }, 4},
		{"overwrite", func(s *KV) { s.Put(1, []float32{1, 2}, []float32{3}) }, 1},
		{"grow", func(s *KV) { s.Grow(40) }, 4},
		{"truncate", func(s *KV) { s.Truncate(2) }, 2},
		{"truncate to what there is", func(s *KV) { s.Truncate(4) }, 4},
		{"truncate, then append", func(s *KV) { s.Truncate(0); s.Put(0, []float32{1, 2}, []float32{3}) }, 0},
	} {
		s := NewKV(StateSpec{Kind: KVRows, KWidth: 2, VWidth: 1})
		for pos := range 4 {
			s.Put(pos, []float32{float32(pos), 9}, []float32{-float32(pos)})
		}
		s.Mark = 4
		tt.do(s)
		if s.Mark != tt.mark {
			t.Errorf("%s: %d rows are marked, want %d", tt.name, s.Mark, tt.mark)
		}
		if len(s.K) != 2*s.Len() || len(s.V) != s.Len() {
			t.Errorf("%s: %d positions, %d values of keys, %d of values", tt.name, s.Len(), len(s.K), len(s.V))
		}
	}
}
