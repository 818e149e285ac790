package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/coli-moe/coli/ops"
)

// scene is a step's attention: conversations with random keys and values, and queries at the end of each.
type scene struct {
	p      ops.Attention
	kv     []*ops.KV
	places []ops.Place
	q      []float32
}

// newScene makes conversations of the given lengths, of whose last positions so many are asked for, scores of about the given size.
func newScene(rng *rand.Rand, kvHeads, group, cols int, lengths, asked []int, size float64) *scene {
	s := &scene{p: ops.Attention{Heads: kvHeads * group, KVHeads: kvHeads, HeadDim: cols, Scale: float32(1 / math.Sqrt(float64(cols)))}}
	normal := func(x []float32, f float64) {
		for i := range x {
			x[i] = float32(rng.NormFloat64() * f)
		}
	}
	w := kvHeads * cols
	for seq, n := range lengths {
		kv := ops.NewKV(ops.StateSpec{Kind: ops.KVRows, KWidth: w, VWidth: w})
		k, v := make([]float32, w), make([]float32, w)
		for pos := range n {
			normal(k, size)
			normal(v, 1)
			kv.Put(pos, k, v)
		}
		s.kv = append(s.kv, kv)
		for pos := n - asked[seq]; pos < n; pos++ {
			s.places = append(s.places, ops.Place{Seq: seq, Pos: pos})
		}
	}
	s.q = make([]float32, len(s.places)*s.p.Heads*cols)
	normal(s.q, 1)
	return s
}

// run computes rows [from, to) of the scene.
func (s *scene) run(e *Executor, from, to int) []float32 {
	e.Reset()
	width := s.p.Heads * s.p.HeadDim
	q := e.Upload("q", 0, to-from, width, s.q[from*width:to*width])
	y := e.New("y", 0, to-from, width)
	e.Attention(y, q, s.kv, s.places[from:to], s.p)
	return slices.Clone(y.Data)
}

// near compares y with attention in float64.
func (s *scene) near(t *testing.T, y []float32) {
	t.Helper()
	width, group := s.p.Heads*s.p.HeadDim, s.p.Heads/s.p.KVHeads
	scores, want := []float64(nil), make([]float64, s.p.HeadDim)
	for r, place := range s.places {
		kv := s.kv[place.Seq]
		for h := range s.p.Heads {
			at := h / group * s.p.HeadDim
			scores = scores[:0]
			most := math.Inf(-1)
			for pos := range place.Pos + 1 {
				sum := 0.0
				for c := range s.p.HeadDim {
					sum += float64(s.q[r*width+h*s.p.HeadDim+c]) * float64(kv.K[pos*kv.Spec.KWidth+at+c])
				}
				scores = append(scores, sum*float64(s.p.Scale))
				most = max(most, sum*float64(s.p.Scale))
			}
			total := 0.0
			clear(want)
			for pos, x := range scores {
				e := math.Exp(x - most)
				total += e
				for c := range want {
					want[c] += e * float64(kv.V[pos*kv.Spec.VWidth+at+c])
				}
			}
			// A score's rounding error, which grows with it, is a relative error of its weight.
			allowed := 4e-6 * (1 + math.Abs(most))
			for c := range want {
				if got := float64(y[r*width+h*s.p.HeadDim+c]); !(math.Abs(got-want[c]/total) < allowed) {
					t.Fatalf("row %d at %v, head %d, column %d: %g, want %g", r, place, h, c, got, want[c]/total)
				}
			}
		}
	}
}

// executors have teams of different sizes.
func executors(t testing.TB) (list []*Executor) {
	for _, threads := range []int{1, 2, 3, 16} {
		e := New(threads)
		t.Cleanup(e.Close)
		list = append(list, e)
	}
	return list
}

// check compares the scene with float64, and all ways to split it with each other, to the bit.
func (s *scene) check(t *testing.T, rng *rand.Rand, teams []*Executor) {
	t.Helper()
	rows := len(s.places)
	y := s.run(teams[0], 0, rows)
	s.near(t, y)
	for _, e := range teams[1:] {
		if !slices.Equal(s.run(e, 0, rows), y) {
			t.Fatalf("%d threads give other bits than one", e.Threads())
		}
	}
	for _, most := range []int{1, 2, 7, 15, 70} {
		var parts []float32
		e := teams[rng.IntN(len(teams))]
		for from := 0; from < rows; {
			to := min(rows, from+1+rng.IntN(most))
			parts = append(parts, s.run(e, from, to)...)
			from = to
		}
		if !slices.Equal(parts, y) {
			t.Fatalf("calls of at most %d rows give other bits than one call", most)
		}
	}
}

// Attention agrees with float64, and a row's bits depend neither on the rows beside it nor on the number of threads: for any geometry, for
// contexts that end within a block, a chunk and beyond, and for several conversations in a step.
func TestAttention(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	teams := executors(t)
	for _, c := range []struct {
		kvHeads, group, cols int
		lengths, asked       []int
	}{
		{1, 1, 8, []int{1}, []int{1}},
		{4, 1, 64, []int{7}, []int{7}},
		{3, 2, 10, []int{9}, []int{3}},
		{2, 4, 128, []int{72}, []int{2}},
		{5, 1, 64, []int{73}, []int{40}},
		{1, 4, 33, []int{3}, []int{2}},
		{16, 1, 32, []int{64, 65, 63}, []int{1, 1, 1}},
		{4, 8, 16, []int{513, 200}, []int{1, 130}},
		{2, 1, 128, []int{1100}, []int{1}},
		{2, 1, 80, []int{600}, []int{200}},
		{2, 8, 16, []int{1030}, []int{9}},
		{8, 1, 256, []int{512}, []int{5}},
		{2, 3, 24, []int{40, 40}, []int{40, 0}},
		{1, 16, 16, []int{300}, []int{140}},
		{1, 200, 4, []int{20}, []int{17}},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			newScene(rng, c.kvHeads, c.group, c.cols, c.lengths, c.asked, 1).check(t, rng, teams)
		})
	}
}

// Scores of hundreds leave one key with all of the weight, wherever it is; equal ones give the mean.
func TestAttentionExtremes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 2))
	teams := executors(t)
	newScene(rng, 2, 2, 64, []int{700}, []int{70}, 300).check(t, rng, teams)
	newScene(rng, 2, 2, 64, []int{700}, []int{70}, 0).check(t, rng, teams)
	rising := newScene(rng, 1, 1, 16, []int{600}, []int{30}, 0)
	for pos := range 600 {
		rising.kv[0].K[pos*16] = float32(pos)
	}
	for r := range rising.places {
		rising.q[r*16] = 1
	}
	rising.check(t, rng, teams)
}

// A value that is not a number shows in the rows that see it, and in no other.
func TestAttentionNaN(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, e := range executors(t) {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
			s := newScene(rng, 1, 1, 16, []int{80}, []int{40}, 1)
			s.kv[0].V[60*16] = bad
			y := s.run(e, 0, 40)
			for r, place := range s.places {
				if got := y[r*16]; (math.IsNaN(float64(got)) || math.IsInf(float64(got), 0)) != (place.Pos >= 60) {
					t.Errorf("%d threads: a value of %g at 60 gives %g at %d", e.Threads(), bad, got, place.Pos)
				}
			}
		}
	}
}

func TestAttentionAllocatesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, e := range executors(t) {
		for _, asked := range []int{1, 3, 40} {
			s := newScene(rng, 4, 2, 32, []int{1100}, []int{asked}, 1)
			q := e.Upload("q", 0, asked, s.p.Heads*s.p.HeadDim, s.q)
			y := e.New("y", 0, asked, q.Cols)
			if n := testing.AllocsPerRun(20, func() { e.Attention(y, q, s.kv, s.places, s.p) }); n > 0 {
				t.Errorf("%d threads, %d rows: %g allocations", e.Threads(), asked, n)
			}
		}
	}
}

func FuzzAttention(f *testing.F) {
	f.Add(uint64(1), uint8(2), uint8(2), uint8(16), uint16(70), uint8(3))
	f.Add(uint64(2), uint8(1), uint8(1), uint8(128), uint16(513), uint8(1))
	f.Add(uint64(3), uint8(3), uint8(5), uint8(7), uint16(200), uint8(150))
	teams := executors(f)
	f.Fuzz(func(t *testing.T, seed uint64, kvHeads, group, cols uint8, length uint16, asked uint8) {
		rng := rand.New(rand.NewPCG(seed, 5))
		n := 1 + int(length)%1100
		s := newScene(rng, 1+int(kvHeads)%6, 1+int(group)%9, 1+int(cols)%130, []int{n}, []int{min(n, 1+int(asked))}, 1)
		if len(s.places)*n*s.p.Heads*s.p.HeadDim > 20<<20 {
			t.Skip("takes too long")
		}
		s.check(t, rng, teams)
	})
}

// BenchmarkAttention has the geometries of OLMoE-1B-7B and Qwen3-30B-A3B.
func BenchmarkAttention(b *testing.B) {
	e := New(2)
	defer e.Close()
	rng := rand.New(rand.NewPCG(3, 6))
	for _, g := range []struct {
		name           string
		kvHeads, group int
	}{{"olmoe", 16, 1}, {"qwen3", 4, 8}} {
		for _, length := range []int{512, 2048} {
			for _, asked := range []int{1, 4, 512} {
				s := newScene(rng, g.kvHeads, g.group, 128, []int{length}, []int{asked}, 1)
				q := e.Upload("q", 0, asked, s.p.Heads*s.p.HeadDim, s.q)
				y := e.New("y", 0, asked, q.Cols)
				b.Run(fmt.Sprintf("%s/context=%d/rows=%d", g.name, length, asked), func(b *testing.B) {
					macs := 0
					for _, place := range s.places {
						macs += 2 * (place.Pos + 1) * s.p.Heads * s.p.HeadDim
					}
					for b.Loop() {
						e.Attention(y, q, s.kv, s.places, s.p)
					}
					b.ReportMetric(float64(macs)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
				})
			}
		}
	}
}
