package ops

import (
	"fmt"
	"testing"
)

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

// TestReserve: what was reserved is grown into without moving; a little more each time doubles it, up to what is the most.
func TestReserve(t *testing.T) {
	s := NewKV(StateSpec{KWidth: 2, VWidth: 1})
	moves := func(from, to int) (n int) {
		for pos := from; pos < to; pos++ {
			s.Reserve(pos+1, 1000)
			if !s.Holds(pos + 1) {
				t.Fatalf("no room for %d positions", pos+1)
			}
			at := &s.K[:1][0]
			s.Put(pos, []float32{float32(pos), 0}, []float32{float32(pos)})
			if at != &s.K[0] {
				n++
			}
		}
		return n
	}
	if n := moves(0, 900); n > 0 || s.Len() != 900 {
		t.Errorf("rows moved %d times after room was reserved", n)
	}
	if s.Holds(1100) {
		t.Error("there is room for more than the most")
	}
	for pos := range s.Len() {
		if s.K[2*pos] != float32(pos) || s.V[pos] != float32(pos) {
			t.Fatalf("position %d has other rows", pos)
		}
	}
	s.Mark = 900
	s.Reserve(2000, 1000)
	if s.Mark != 900 || !s.Holds(2000) {
		t.Errorf("mark %d, room for 2000: %v", s.Mark, s.Holds(2000))
	}
}

// BenchmarkGrow is what room for the rows of a prompt of 4000 tokens costs in chunks of 512, of one layer of 16 heads of 128: taken chunk by
// chunk, or all before the first.
func BenchmarkGrow(b *testing.B) {
	const tokens, chunk, width = 4000, 512, 2048
	for _, reserve := range []int{0, tokens} {
		b.Run(fmt.Sprintf("reserved=%d", reserve), func(b *testing.B) {
			row := make([]float32, width)
			for b.Loop() {
				s := NewKV(StateSpec{KWidth: width, VWidth: width})
				s.Reserve(reserve, tokens)
				for pos := 0; pos < tokens; pos += chunk {
					n := min(tokens, pos+chunk)
					s.Grow(n)
					for r := pos; r < n; r++ {
						s.Put(r, row, row)
					}
				}
			}
		})
	}
}
