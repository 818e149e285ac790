package sampler

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// plain are settings that change nothing: the draw follows the softmax of the logits.
func plain() Params { return Params{Temperature: 1, TopP: 1, RepeatPenalty: 1, Seed: 1} }

func with(change func(*Params)) Params {
	p := plain()
	change(&p)
	return p
}

func mustNew(t testing.TB, p Params) *Sampler {
	t.Helper()
	s, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustSample(t testing.TB, s *Sampler, logits []float32) int32 {
	t.Helper()
	id, err := s.Sample(logits)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func randomLogits(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 0))
	logits := make([]float32, n)
	for i := range logits {
		logits[i] = float32(3 * r.NormFloat64())
	}
	return logits
}

func TestDefaultsAreLlamaCpps(t *testing.T) {
	want := Params{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepeatPenalty: 1.0, RepeatLastN: 64, Seed: -1}
	if got := Defaults(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestNewNamesTheFlag(t *testing.T) {
	for _, tc := range []struct {
		flag   string
		change func(*Params)
	}{
		{"--temp", func(p *Params) { p.Temperature = -0.1 }},
		{"--temp", func(p *Params) { p.Temperature = nan }},
		{"--temp", func(p *Params) { p.Temperature = inf }},
		{"--top-k", func(p *Params) { p.TopK = -1 }},
		{"--top-p", func(p *Params) { p.TopP = 1.01 }},
		{"--top-p", func(p *Params) { p.TopP = nan }},
		{"--min-p", func(p *Params) { p.MinP = -0.01 }},
		{"--min-p", func(p *Params) { p.MinP = 2 }},
		{"--repeat-penalty", func(p *Params) { p.RepeatPenalty = 0 }},
		{"--repeat-penalty", func(p *Params) { p.RepeatPenalty = inf }},
		{"--repeat-last-n", func(p *Params) { p.RepeatLastN = -2 }},
		{"--seed", func(p *Params) { p.Seed = -2 }},
	} {
		p := with(tc.change)
		if _, err := New(p); err == nil || !strings.HasPrefix(err.Error(), tc.flag+" ") {
			t.Errorf("New(%+v): error %v, want one about %s", p, err, tc.flag)
		}
	}
	_, err := New(Params{TopK: -1, TopP: 3})
	for _, flag := range []string{"--top-k", "--top-p", "--repeat-penalty"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("error %v does not name %s", err, flag)
		}
	}
}

func TestGreedy(t *testing.T) {
	for _, tc := range []struct {
		name   string
		logits []float32
		accept []int32
		want   int32
	}{
		{"largest", []float32{1, 3, 2}, nil, 1},
		{"lowest id of equals", []float32{0, 7, 7, 7}, nil, 1},
		{"all equal", []float32{5, 5, 5}, nil, 0},
		{"one", []float32{-9}, nil, 0},
		{"masked", []float32{-inf, -inf, -5, -6}, nil, 2},
		{"negative zero ties with zero", []float32{float32(math.Copysign(0, -1)), 0}, nil, 0},
		{"penalty divides a positive logit", []float32{4, 3, 1}, []int32{0}, 1},
		{"penalty multiplies a negative logit", []float32{-2, -3, -8}, []int32{0}, 1},
		{"penalty applies once", []float32{4, 1.9, 1}, []int32{0, 0, 0}, 0},
		{"penalty forgets", []float32{4, 3, 1}, []int32{0, 2, 2, 2}, 0},
		{"penalty leaves a mask alone", []float32{-inf, -3}, []int32{0}, 1},
		{"penalty of ids outside the vocabulary", []float32{4, 3, 1}, []int32{-1, 3}, 0},
		{"penalty does not overflow into a mask", []float32{-math.MaxFloat32, -inf}, []int32{0}, 0},
	} {
		s := mustNew(t, with(func(p *Params) { p.Temperature, p.TopK, p.RepeatPenalty, p.RepeatLastN = 0, 1, 2, 3 }))
		for _, id := range tc.accept {
			s.Accept(id)
		}
		before := slices.Clone(tc.logits)
		if got := mustSample(t, s, tc.logits); got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got, tc.want)
		}
		if !slices.Equal(before, tc.logits) {
			t.Errorf("%s: the caller's logits changed", tc.name)
		}
	}
}

func TestRecentTokens(t *testing.T) {
	logits := []float32{3, 2.9, 0}
	for _, tc := range []struct {
		name  string
		lastN int
		want  int32 // after token 0 and then 100 others were accepted
	}{{"none", 0, 0}, {"shorter", 64, 0}, {"longer", 101, 1}, {"all", -1, 1}} {
		s := mustNew(t, with(func(p *Params) { p.Temperature, p.RepeatPenalty, p.RepeatLastN = 0, 1.5, tc.lastN }))
		for id := range int32(101) {
			if id == 0 || id > 2 {
				s.Accept(id)
			} else {
				s.Accept(2)
			}
		}
		if got := mustSample(t, s, logits); got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got, tc.want)
		}
		s.Reset()
		if got := mustSample(t, s, logits); got != 0 {
			t.Errorf("%s: after Reset got %d, want 0", tc.name, got)
		}
	}
}

func TestUnusableLogits(t *testing.T) {
	for _, tc := range []struct {
		name   string
		logits []float32
		index  int
	}{
		{"NaN", []float32{0, -inf, nan, nan}, 2},
		{"+Inf", []float32{0, inf}, 1},
		{"all masked", []float32{-inf, -inf}, 0},
	} {
		for _, temperature := range []float32{0, 1} {
			s := mustNew(t, with(func(p *Params) { p.Temperature = temperature }))
			_, err := s.Sample(tc.logits)
			if e, ok := errors.AsType[*NonFiniteError](err); !ok || e.Index != tc.index {
				t.Errorf("%s, temperature %v: error %v, want a NonFiniteError at %d", tc.name, temperature, err, tc.index)
			}
		}
	}
	if _, err := mustNew(t, plain()).Sample(nil); err == nil {
		t.Error("no logits: no error")
	}
}

// TestKeptCandidates checks which ids survive the filters.
func TestKeptCandidates(t *testing.T) {
	logOf := func(ps ...float64) []float32 {
		logits := make([]float32, len(ps))
		for i, p := range ps {
			logits[i] = float32(math.Log(p))
		}
		return logits
	}
	for _, tc := range []struct {
		name   string
		logits []float32
		change func(*Params)
		want   []int32
	}{
		{"nothing on", logOf(.1, .2, .7), func(*Params) {}, []int32{0, 1, 2}},
		{"top-k", logOf(.1, .2, .3, .4), func(p *Params) { p.TopK = 2 }, []int32{2, 3}},
		{"top-k of equals keeps the lowest ids", []float32{1, 1, 1, 1, 1}, func(p *Params) { p.TopK = 2 }, []int32{0, 1}},
		{"top-k beyond the vocabulary", logOf(.5, .5), func(p *Params) { p.TopK = 99 }, []int32{0, 1}},
		{"top-k skips masks", []float32{-inf, 1, -inf, 0}, func(p *Params) { p.TopK = 3 }, []int32{1, 3}},
		{"top-p keeps the one that reaches p", logOf(.1, .2, .3, .4), func(p *Params) { p.TopP = .65 }, []int32{2, 3}},
		{"top-p one more", logOf(.1, .2, .3, .4), func(p *Params) { p.TopP = .75 }, []int32{1, 2, 3}},
		{"top-p 0 keeps the best", logOf(.1, .2, .3, .4), func(p *Params) { p.TopP = 0 }, []int32{3}},
		{"top-p of equals keeps the lowest ids", []float32{1, 1, 1, 1}, func(p *Params) { p.TopP = .5 }, []int32{0, 1}},
		{"min-p", logOf(.05, .1, .35, .5), func(p *Params) { p.MinP = .15 }, []int32{1, 2, 3}},
		{"min-p 1 keeps the best", logOf(.1, .4, .4), func(p *Params) { p.MinP = 1 }, []int32{1, 2}},
		{"top-p counts what top-k kept", logOf(.1, .2, .3, .4), func(p *Params) { p.TopK, p.TopP = 2, .55 }, []int32{3}},
		{"min-p after top-p", logOf(.1, .2, .3, .4), func(p *Params) { p.TopP, p.MinP = .95, .3 }, []int32{1, 2, 3}},
		{"temperature comes last", logOf(.1, .2, .7), func(p *Params) { p.TopP, p.Temperature = .8, 100 }, []int32{1, 2}},
		{"huge logits", []float32{3e38, -3e38, 3e38}, func(p *Params) { p.TopP = .99 }, []int32{0, 2}},
	} {
		kept := ids(mustNew(t, with(tc.change)).filter(tc.logits))
		if !slices.Equal(kept, tc.want) {
			t.Errorf("%s: kept %v, want %v", tc.name, kept, tc.want)
		}
	}
}

func ids(c []candidate) []int32 {
	out := make([]int32, len(c))
	for i, x := range c {
		out[i] = x.id
	}
	slices.Sort(out)
	return out
}

// distribution computes the probability of every id in the plainest way: sort everything, cut, renormalise.
func distribution(logits []float32, p Params) []float64 {
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool { return logits[order[i]] > logits[order[j]] })
	if p.TopK > 0 {
		order = order[:min(p.TopK, len(order))]
	}
	largest := float64(logits[order[0]])
	softmaxOver := func(order []int, temperature float64) []float64 {
		ps, total := make([]float64, len(order)), 0.0
		for i, id := range order {
			ps[i] = math.Exp((float64(logits[id]) - largest) / temperature)
			total += ps[i]
		}
		for i := range ps {
			ps[i] /= total
		}
		return ps
	}
	ps := softmaxOver(order, 1)
	kept, sum := 0, 0.0
	for kept < len(order) && (kept == 0 || sum < float64(p.TopP) || p.TopP >= 1) {
		sum += ps[kept]
		kept++
	}
	for kept > 1 && ps[kept-1] < float64(p.MinP)*ps[0] {
		kept--
	}
	out := make([]float64, len(logits))
	for i, q := range softmaxOver(order[:kept], float64(p.Temperature)) {
		out[order[i]] = q
	}
	return out
}

func TestFilterMatchesSortingEverything(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 300 {
		p := with(func(p *Params) {
			p.TopK = r.IntN(3) * r.IntN(60)
			p.TopP = min(1, 1.3*r.Float32())
			p.MinP = max(0, 0.2*r.Float32()-0.1)
		})
		logits := randomLogits(uint64(i), 1+r.IntN(200))
		var want []int32
		for id, q := range distribution(logits, p) {
			if q > 0 {
				want = append(want, int32(id))
			}
		}
		if got := ids(mustNew(t, p).filter(logits)); !slices.Equal(got, want) {
			t.Fatalf("%+v, %d logits: kept %v, want %v", p, len(logits), got, want)
		}
	}
}

// TestDrawFollowsTheDistribution compares the counts of 20,000 draws with the expected ones (Pearson's chi-square).
func TestDrawFollowsTheDistribution(t *testing.T) {
	const draws = 20000
	logits := randomLogits(9, 12)
	for _, tc := range []struct {
		name   string
		change func(*Params)
	}{
		{"softmax", func(*Params) {}},
		{"hot", func(p *Params) { p.Temperature = 2.5 }},
		{"cold", func(p *Params) { p.Temperature = 0.6 }},
		{"top-k", func(p *Params) { p.TopK = 5 }},
		{"top-p", func(p *Params) { p.TopP = 0.9 }},
		{"min-p", func(p *Params) { p.MinP = 0.1 }},
		{"all", func(p *Params) { p.Temperature, p.TopK, p.TopP, p.MinP = 0.8, 8, 0.95, 0.02 }},
	} {
		p := with(tc.change)
		s := mustNew(t, p)
		counts := make([]int, len(logits))
		for range draws {
			counts[mustSample(t, s, logits)]++
		}
		chi2, degrees := 0.0, -1.0
		for id, q := range distribution(logits, p) {
			switch expected := q * draws; {
			case q == 0 && counts[id] > 0:
				t.Errorf("%s: drew %d, which is filtered out", tc.name, id)
			case q > 0:
				chi2 += (float64(counts[id]) - expected) * (float64(counts[id]) - expected) / expected
				degrees++
			}
		}
		// Wilson and Hilferty's approximation of the quantile at z = 3.09, one in a thousand.
		limit := degrees * math.Pow(1-2/(9*degrees)+3.09*math.Sqrt(2/(9*degrees)), 3)
		if chi2 > limit {
			t.Errorf("%s: chi-square %.1f over %v degrees of freedom, want at most %.1f", tc.name, chi2, degrees, limit)
		}
	}
}

// TestSeedIsPortable pins the ids of a seed: a change of platform or release must not change a text that was given with its seed.
func TestSeedIsPortable(t *testing.T) {
	logits := make([]float32, 1000)
	for i := range logits {
		logits[i] = float32(i*7919%1000) / 128
	}
	for _, tc := range []struct {
		seed int64
		want []int32
	}{
		{0, []int32{778, 284, 593, 272, 383, 951, 963, 383, 62, 556, 667, 889}},
		{42, []int32{321, 642, 62, 62, 25, 951, 62, 852, 741, 173, 210, 889}},
	} {
		p := Defaults()
		p.Seed = tc.seed
		s := mustNew(t, p)
		var got []int32
		for range 12 {
			got = append(got, mustSample(t, s, logits))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("seed %d: got %v, want %v", tc.seed, got, tc.want)
		}
		s.Reset()
		if again := mustSample(t, s, logits); again != got[0] {
			t.Errorf("seed %d: after Reset got %d, want %d", tc.seed, again, got[0])
		}
	}
}

func TestDrawnSeedRepeats(t *testing.T) {
	logits := randomLogits(1, 1000)
	a := mustNew(t, Defaults())
	p := Defaults()
	p.Seed = a.Seed()
	b := mustNew(t, p)
	if a.Seed() < 0 || a.Seed() != b.Seed() {
		t.Fatalf("seeds %d and %d", a.Seed(), b.Seed())
	}
	for range 50 {
		if x, y := mustSample(t, a, logits), mustSample(t, b, logits); x != y {
			t.Fatalf("seed %d: %d, then %d", a.Seed(), x, y)
		}
	}
	if other := mustNew(t, Defaults()); other.Seed() == a.Seed() {
		t.Errorf("two drawn seeds are equal: %d", a.Seed())
	}
}

func TestExp(t *testing.T) {
	for _, x := range []float64{0, -1e-300, -1e-9, -0.3465, -0.3466, -1, -10.5, -100, -699.9} {
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > 4.5e-16*want {
			t.Errorf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 10000 {
		x := -700 * r.Float64()
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > 4.5e-16*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	if got := exp(math.Inf(-1)); got != 0 {
		t.Errorf("exp(-Inf) = %v", got)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	logits := randomLogits(2, 5000)
	p := Defaults()
	p.RepeatPenalty = 1.1
	s := mustNew(t, p)
	step := func() {
		id, err := s.Sample(logits)
		if err != nil {
			t.Fatal(err)
		}
		s.Accept(id)
	}
	for range 2 * p.RepeatLastN {
		step()
	}
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations a token, want none", n)
	}
}

func BenchmarkSample(b *testing.B) {
	logits := randomLogits(2, 150_000)
	for _, bc := range []struct {
		name   string
		change func(*Params)
	}{
		{"greedy", func(p *Params) { p.Temperature = 0 }},
		{"defaults", func(p *Params) { *p = Defaults() }},
		{"penalty", func(p *Params) { *p = Defaults(); p.RepeatPenalty = 1.1 }},
		{"top-p_only", func(p *Params) { p.TopP = 0.95 }},
		{"nothing_on", func(*Params) {}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			s := mustNew(b, with(bc.change))
			for b.Loop() {
				s.Accept(mustSample(b, s, logits))
			}
		})
	}
}

// FuzzSample checks that no logits and no settings panic, and that what is drawn was allowed to be.
func FuzzSample(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 128, 63}, float32(0.8), 40, float32(0.95), float32(0.05), float32(1.1))
	f.Add([]byte{0, 0, 128, 255, 0, 0, 192, 127}, float32(0), 0, float32(1), float32(0), float32(1))
	f.Add([]byte{255, 255, 127, 127, 255, 255, 127, 255}, float32(1e-40), 1, float32(0), float32(1), float32(1e-40))
	f.Fuzz(func(t *testing.T, data []byte, temperature float32, k int, topP, minP, penalty float32) {
		p := Params{Temperature: temperature, TopK: k, TopP: topP, MinP: minP, RepeatPenalty: penalty, RepeatLastN: 2, Seed: 7}
		s, err := New(p)
		if err != nil {
			return
		}
		logits := make([]float32, len(data)/4)
		for i := range logits {
			b := data[4*i:]
			logits[i] = math.Float32frombits(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
		}
		for range 3 {
			id, err := s.Sample(logits)
			if err != nil {
				return
			}
			if id < 0 || int(id) >= len(logits) || math.IsInf(float64(logits[id]), -1) {
				t.Fatalf("%+v: drew %d from %v", p, id, logits)
			}
			s.Accept(id)
		}
	})
}
