package ops

import "slices"

// StateKind says what a layer keeps between steps.
type StateKind uint8

// The kinds of layer state.
const (
	// KVRows is one key row and one value row per position.
	KVRows StateKind = iota
)

// StateSpec declares what a layer keeps between steps; the runtime allocates, truncates and copies it.
type StateSpec struct {
	Kind   StateKind
	KWidth int // float32 values of a key row
	VWidth int // float32 values of a value row
}

// KV is the state of one layer in one conversation: a growing list of key and value rows in host memory, which is where it belongs; a
// device has a copy at most. One goroutine at a time writes it.
type KV struct {
	Spec StateSpec
	K, V []float32 // [Len, KWidth], [Len, VWidth]

	// Mark is how many rows, from the first on, are on a device with the values they have here. Put and Truncate lower it; only the
	// executor that keeps the copy raises it.
	Mark   int
	Mirror any // the copy, private to that executor; nil for none

	n int
}

// NewKV returns an empty state.
func NewKV(spec StateSpec) *KV { return &KV{Spec: spec} }

// Len is the number of positions held.
func (s *KV) Len() int { return s.n }

// Grow makes room for positions below n, keeping what is there. New rows are undefined until written.
func (s *KV) Grow(n int) {
	if n <= s.n {
		return
	}
	s.K = extend(s.K, n*s.Spec.KWidth)
	s.V = extend(s.V, n*s.Spec.VWidth)
	s.n = n
}

// Holds says whether there is memory for n positions: growing to them moves nothing then.
func (s *KV) Holds(n int) bool { return n*s.Spec.KWidth <= cap(s.K) && n*s.Spec.VWidth <= cap(s.V) }

// Reserve takes memory for n positions, at least, and moves what is there. It takes twice as much as there was, as far as that is below
// most positions, so that a caller who comes for a little more each time does not move all rows each time. The system gives pages when
// they are written.
func (s *KV) Reserve(n, most int) {
	if s.Holds(n) {
		return
	}
	n = max(n, min(2*(cap(s.K)/max(s.Spec.KWidth, 1)), most))
	s.K = append(make([]float32, 0, n*s.Spec.KWidth), s.K...)
	s.V = append(make([]float32, 0, n*s.Spec.VWidth), s.V...)
}

// Put writes the rows of a position, which Len grows to hold.
func (s *KV) Put(pos int, k, v []float32) {
	s.Grow(pos + 1)
	copy(s.K[pos*s.Spec.KWidth:], k)
	copy(s.V[pos*s.Spec.VWidth:], v)
	s.Mark = min(s.Mark, pos)
}

// Truncate forgets the positions from n on.
func (s *KV) Truncate(n int) {
	if n >= s.n {
		return
	}
	s.K, s.V, s.n = s.K[:n*s.Spec.KWidth], s.V[:n*s.Spec.VWidth], n
	s.Mark = min(s.Mark, n)
}

func extend(x []float32, n int) []float32 {
	if n > cap(x) {
		x = slices.Grow(x, max(n, 2*cap(x))-len(x))
	}
	return x[:n]
}
