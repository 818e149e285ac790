// Package sampler chooses the next token from a row of logits: repeat penalty, top-k, top-p, min-p, temperature, and a seeded draw.
//
// The steps and their order are those of llama.cpp's default chain (penalties, top_k, top_p, min_p, temperature; its remaining samplers
// are off by default), so that a setting copied from there means the same here. The random numbers are not: a seed gives the same ids on
// every platform coli runs on, not the ids another program draws with that seed.
//
// The package knows nothing of models, text or stop rules; those live in engine and engine/stop.
package sampler

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
)

// Params are the settings of a Sampler. The zero value is not valid; start from Defaults.
type Params struct {
	Temperature   float32 // divides the logits that survived the filters; 0 takes the largest logit, whatever the other settings
	TopK          int     // keep the k largest logits; 0 keeps all
	TopP          float32 // keep the most probable tokens until their probabilities sum to p; 1 keeps all
	MinP          float32 // keep tokens at least this fraction as probable as the most probable one; 0 keeps all
	RepeatPenalty float32 // a recent token's logit is divided by this where positive, else multiplied; 1 changes nothing
	RepeatLastN   int     // how many accepted tokens count as recent; 0 none, -1 all since the last Reset
	Seed          int64   // of the draw, 0 or more; -1 draws a seed
}

// Defaults returns llama.cpp's defaults, with a seed to be drawn.
func Defaults() Params {
	return Params{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepeatPenalty: 1, RepeatLastN: 64, Seed: -1}
}

// validate reports every setting that is out of range, by the name of its flag. Comparisons are written so that NaN fails them.
func (p Params) validate() error {
	var errs []error
	require := func(ok bool, flag string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s %v: want %s", flag, value, want))
		}
	}
	require(p.Temperature >= 0 && p.Temperature <= math.MaxFloat32, "--temp", p.Temperature, "0 (greedy) or a positive number")
	require(p.TopK >= 0, "--top-k", p.TopK, "0 (off) or a positive number")
	require(p.TopP >= 0 && p.TopP <= 1, "--top-p", p.TopP, "a number from 0 to 1 (1 is off)")
	require(p.MinP >= 0 && p.MinP <= 1, "--min-p", p.MinP, "a number from 0 to 1 (0 is off)")
	require(p.RepeatPenalty > 0 && p.RepeatPenalty <= math.MaxFloat32, "--repeat-penalty", p.RepeatPenalty, "a positive number (1 is off)")
	require(p.RepeatLastN >= -1, "--repeat-last-n", p.RepeatLastN, "-1 (all), 0 (off) or a positive number")
	require(p.Seed >= -1, "--seed", p.Seed, "-1 (draw one), 0 or a positive number")
	return errors.Join(errs...)
}

// NonFiniteError says that a row of logits cannot be sampled: it holds NaN or +Inf, or nothing but -Inf.
type NonFiniteError struct {
	Index int     // of the first logit at fault: a token id
	Value float32 // NaN or +Inf; -Inf when every logit is
}

func (e *NonFiniteError) Error() string {
	if math.IsInf(float64(e.Value), -1) {
		return "every logit is -Inf"
	}
	return fmt.Sprintf("logit %d is %v", e.Index, e.Value)
}

type candidate struct {
	logit float32
	id    int32
}

// before orders candidates from the most to the least probable, the lower id first among equals.
func before(a, b candidate) bool { return a.logit > b.logit || a.logit == b.logit && a.id < b.id }

func after(a, b candidate) bool { return before(b, a) }

// A Sampler holds the random state, the recent tokens and scratch space, which grow to their final size in the first calls; later calls
// do not allocate, unless RepeatLastN is -1, when the list of recent tokens grows. It belongs to one conversation and one goroutine.
type Sampler struct {
	params    Params
	rng       *rand.PCG
	recent    []int32 // a ring of RepeatLastN ids, or all ids when that is -1
	next      int     // where the next id goes in a full ring
	penalised []float32
	cands     []candidate
}

// New returns a sampler, or an error that names each flag whose value is out of range.
func New(p Params) (*Sampler, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	if p.Seed == -1 {
		p.Seed = int64(rand.Uint32()) // 32 bits: short enough to be typed again
	}
	s := &Sampler{params: p, rng: rand.NewPCG(0, 0)}
	s.Reset()
	return s, nil
}

// Seed returns the seed in use: the given one, or the one that was drawn.
func (s *Sampler) Seed() int64 { return s.params.Seed }

// Greedy says that Sample returns the lowest id of the largest logit, whatever was accepted: whoever knows that id need not ask.
func (s *Sampler) Greedy() bool {
	return s.params.Temperature == 0 && (s.params.RepeatPenalty == 1 || s.params.RepeatLastN == 0)
}

// Reset forgets the accepted tokens and starts the random sequence of the seed again.
func (s *Sampler) Reset() {
	const stream = 0x636f6c69 // any constant: PCG wants 128 bits of seed
	s.rng.Seed(uint64(s.params.Seed), stream)
	s.recent, s.next = s.recent[:0], 0
}

// Accept records a token, of the prompt or sampled, as recent for the repeat penalty. Sample does not do it by itself.
func (s *Sampler) Accept(id int32) {
	switch n := s.params.RepeatLastN; {
	case n == -1 || len(s.recent) < n:
		s.recent = append(s.recent, id)
	case n > 0:
		s.recent[s.next] = id
		s.next = (s.next + 1) % n
	}
}

// Sample returns the id of the next token. The logits, one per token id, are only read; -Inf marks a token that must not be chosen. A row
// that holds another non-finite value, or no finite one, is refused with a *NonFiniteError.
func (s *Sampler) Sample(logits []float32) (int32, error) {
	if len(logits) == 0 {
		return 0, errors.New("no logits to sample from")
	}
	if err := checkFinite(logits); err != nil {
		return 0, err
	}
	logits = s.penalise(logits)
	if s.params.Temperature == 0 {
		return argmax(logits), nil
	}
	return s.draw(s.filter(logits)), nil
}

func checkFinite(logits []float32) error {
	masked := 0
	for i, l := range logits {
		if l-l == 0 { // false for NaN and both infinities
			continue
		}
		if !(l < 0) {
			return &NonFiniteError{Index: i, Value: l}
		}
		masked++
	}
	if masked == len(logits) {
		return &NonFiniteError{Index: 0, Value: logits[0]}
	}
	return nil
}

// argmax returns the lowest id that has the largest logit.
func argmax(logits []float32) int32 {
	best := 0
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// penalise returns the logits with the repeat penalty applied, in scratch space if any is changed. A token is penalised once, however
// often it occurred: its new logit is computed from the caller's row.
func (s *Sampler) penalise(logits []float32) []float32 {
	penalty := s.params.RepeatPenalty
	if penalty == 1 || len(s.recent) == 0 {
		return logits
	}
	s.penalised = append(s.penalised[:0], logits...)
	for _, id := range s.recent {
		if id < 0 || int(id) >= len(logits) || logits[id] < -math.MaxFloat32 {
			continue
		}
		l := logits[id] * penalty
		if logits[id] > 0 {
			l = logits[id] / penalty
		}
		s.penalised[id] = max(-math.MaxFloat32, min(l, math.MaxFloat32)) // an overflow must not turn into a mask
	}
	return s.penalised
}

// filter returns the candidates that pass top-k, top-p and min-p: at least one, in an order that depends on nothing but the logits.
func (s *Sampler) filter(logits []float32) []candidate {
	c := topK(s.cands[:0], logits, s.params.TopK)
	s.cands = c
	largest := c[0]
	for _, x := range c {
		if before(x, largest) {
			largest = x
		}
	}
	weight := func(x candidate) float64 { return exp(float64(x.logit) - float64(largest.logit)) }
	minP := float64(s.params.MinP)

	if s.params.TopP >= 1 {
		kept := c[:0]
		for _, x := range c {
			if weight(x) >= minP {
				kept = append(kept, x)
			}
		}
		return kept
	}

	// Only as many candidates are sorted as are kept: they are popped off a heap, each into the place its pop frees at the end.
	total := 0.0
	for _, x := range c {
		total += weight(x)
	}
	heapify(c, before)
	n, sum, enough := len(c), 0.0, float64(float64(s.params.TopP)*total)
	for n > 0 && (n == len(c) || sum < enough && weight(c[0]) >= minP) {
		sum += weight(c[0])
		n--
		c[0], c[n] = c[n], c[0]
		siftDown(c[:n], 0, before)
	}
	return c[n:]
}

// topK appends to c the k candidates with the largest logits that are not masked, all of them if k is 0.
func topK(c []candidate, logits []float32, k int) []candidate {
	if k == 0 || k > len(logits) {
		k = len(logits)
	}
	for id, l := range logits {
		switch {
		case l < -math.MaxFloat32: // masked
		case len(c) < k:
			if c = append(c, candidate{l, int32(id)}); len(c) == k && k < len(logits) {
				heapify(c, after)
			}
		case l > c[0].logit: // the root is the least of the best k so far; an equal logit has a higher id and loses
			c[0] = candidate{l, int32(id)}
			siftDown(c, 0, after)
		}
	}
	return c
}

// draw picks one of the candidates with probability proportional to exp(logit/temperature).
func (s *Sampler) draw(c []candidate) int32 {
	largest := c[0].logit
	for _, x := range c {
		largest = max(largest, x.logit)
	}
	weight := func(x candidate) float64 {
		return exp((float64(x.logit) - float64(largest)) / float64(s.params.Temperature))
	}
	total := 0.0
	for _, x := range c {
		total += weight(x)
	}
	u := float64(s.rng.Uint64()>>11) / (1 << 53) // uniform in [0,1)
	rest := float64(u * total)
	chosen := c[0].id
	for _, x := range c {
		w := weight(x)
		if w == 0 {
			continue
		}
		chosen = x.id // the last one with a weight, should rounding leave a rest
		if rest -= w; rest < 0 {
			break
		}
	}
	return chosen
}

// heapify orders h so that no element comes first, by the given order, before its parent.
func heapify(h []candidate, first func(a, b candidate) bool) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		siftDown(h, i, first)
	}
}

func siftDown(h []candidate, i int, first func(a, b candidate) bool) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && first(h[child+1], h[child]) {
			child++
		}
		if !first(h[child], h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
