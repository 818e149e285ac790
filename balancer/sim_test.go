package balancer

import (
	"math"
	"slices"

	"github.com/coli-moe/coli/messages"
)

// sim is a machine that decodes a model whose experts stream: a drive, a CPU, and routing of which everything follows from the token's number, so
// that every policy meets the same. Times are in milliseconds, sizes in MB, rates in MB/ms = GB/s.
type sim struct {
	layers, topK int
	size         float64 // of an expert
	dense        float64 // computing a layer without its experts
	expert       float64 // computing an expert
	router       float64 // predicting a layer

	latency float64 // of a read
	stream  float64 // rate of one read
	rate    float64 // of the drive
	seek    float64 // by which share each further read slows the drive down
	steal   float64 // by which share a read in flight slows computing down

	hit    float64    // an expert is in memory
	recall [4]float64 // a predicted expert is routed to, by layers ahead
	waste  float64    // one that is not routed to has to be read
	noise  float64    // steps take up to so much more or less
	hiccup float64    // share of steps that take
	stall  float64    // so much longer
	change func(token int, s *sim)

	token                   int
	now                     float64
	inFlight                []*simRead
	queued                  [2][]*simRead // demand, predicted
	reads                   [][]*simRead  // of the token, by layer and rank; behind the ranks those of experts that are not routed to
	ahead                   int           // of these, of layers to come
	readers                 int
	busy, sum, ended, bytes float64    // of the step
	used, usedBefore        []simRead  // what the pointers above point into, by turns
	wait                    []*simRead // scratch of experts
}

// simRead is a read on its way, or landed and not used.
type simRead struct {
	layer             int
	wrong             bool // nobody is going to use it
	begun, landed     bool
	latency, left, at float64
}

// chance is a number from 0 to 1 that follows from the others.
func chance(of ...int) float64 {
	x := uint64(0x9e3779b97f4a7c15)
	for _, v := range of {
		x += uint64(v+1) * 0xbf58476d1ce4e5b9
		x ^= x >> 30
		x *= 0x94d049bb133111eb
		x ^= x >> 27
		x *= 0x9e3779b97f4a7c15
		x ^= x >> 31
	}
	return float64(x>>11) / (1 << 53)
}

func (s *sim) missing(token, layer, rank int) bool { return chance(1, token, layer, rank) > s.hit }

// predict asks for the experts that a layer is expected to use, seen so many layers before.
func (s *sim) predict(layer, ahead, depth int) {
	for rank := range depth {
		at := rank
		p := s.recall[min(ahead, 3)]
		if rank >= s.topK { // beyond those that are as many as are used: what was ranked too low
			p = 0.25 * (1 - p)
			at = rank % s.topK
		} else {
			p *= 1.1 - 0.2*float64(rank)/float64(s.topK)
		}
		if chance(2, s.token, layer, rank, ahead) < p {
			if !s.missing(s.token, layer, at) {
				continue
			}
		} else {
			if chance(3, s.token, layer, rank) > s.waste {
				continue
			}
			at = s.topK + rank
		}
		if s.reads[layer][at] == nil && s.ahead < 16 {
			s.ahead++
			s.ask(layer, at, 1)
		}
	}
}

func (s *sim) ask(layer, rank, priority int) *simRead {
	s.used = append(s.used, simRead{layer: layer, wrong: rank >= s.topK, latency: s.latency, left: s.size})
	r := &s.used[len(s.used)-1]
	s.reads[layer][rank] = r
	s.queued[priority] = append(s.queued[priority], r)
	s.begin()
	return r
}

func (s *sim) begin() {
	for p := range s.queued {
		for len(s.queued[p]) > 0 && len(s.inFlight) < s.readers {
			r := s.queued[p][0]
			s.queued[p] = slices.Delete(s.queued[p], 0, 1)
			r.begun, r.at = true, s.now
			s.inFlight = append(s.inFlight, r)
		}
	}
}

// advance lets the drive work for so long at most, or until a read lands.
func (s *sim) advance(most float64) (took float64, landed bool) {
	moving := 0
	for _, r := range s.inFlight {
		if r.latency <= 0 {
			moving++
		}
	}
	n := float64(max(moving, 1))
	rate := min(s.stream, s.rate/(1+s.seek*(n-1))/n)
	took = most
	for _, r := range s.inFlight {
		if r.latency > 0 {
			took = min(took, r.latency)
		} else {
			took = min(took, r.left/rate)
		}
	}
	s.now += took
	if len(s.inFlight) > 0 {
		s.busy += took
	}
	const tiny = 1e-9
	kept := s.inFlight[:0]
	for _, r := range s.inFlight {
		if r.latency > 0 {
			if r.latency -= took; r.latency < tiny {
				r.latency = 0
			}
		} else if r.left -= took * rate; r.left < tiny {
			r.landed, landed = true, true
			s.ended++
			s.bytes += s.size
			s.sum += s.now - r.at
			continue
		}
		kept = append(kept, r)
	}
	s.inFlight = kept
	s.begin()
	return took, landed
}

func (s *sim) compute(ms float64) {
	for ms > 1e-9 {
		slow := 1 + s.steal*float64(len(s.inFlight))
		took, _ := s.advance(ms * slow)
		ms -= took / slow
	}
}

// skip goes on to the next token.
func (s *sim) skip() {
	if s.token++; s.change != nil {
		s.change(s.token, s)
	}
}

// step decodes a token under a policy.
func (s *sim) step(p messages.Policy) messages.Took {
	if s.reads == nil {
		for range s.layers {
			s.reads = append(s.reads, make([]*simRead, 3*s.topK))
		}
	}
	for _, layer := range s.reads {
		clear(layer)
	}
	s.ahead, s.used, s.usedBefore = 0, s.usedBefore[:0], s.used
	if most := 3*s.topK*s.layers + len(s.inFlight); cap(s.used) < most {
		s.used = make([]simRead, 0, 2*most)
	}
	for i, r := range s.inFlight { // wrong guesses of the last token; nothing else is left of it
		s.used = append(s.used, *r)
		s.inFlight[i] = &s.used[i]
	}
	s.readers = p.Readers
	s.begin()
	began, waited := s.now, 0.0
	s.busy, s.sum, s.ended, s.bytes = 0, 0, 0, 0
	for layer := range s.layers {
		s.compute(s.dense)
		if p.Depth > 0 {
			for h := 1; h <= p.Horizon && layer+h < s.layers; h++ {
				s.compute(s.router)
				s.predict(layer+h, h, p.Depth)
			}
		}
		waited += s.experts(layer)
	}
	took := s.now - began
	s.skip()
	extra := took * s.noise * (2*chance(4, s.token) - 1)
	if chance(5, s.token) < s.hiccup {
		extra += s.stall
	}
	const ms = 1e6
	return messages.Took{
		Nanos: int64((took + extra) * ms), Waited: int64(waited * ms), Reading: int64(s.busy * ms), ReadNanos: int64(s.sum * ms),
		Reads: int64(s.ended), Bytes: int64(s.bytes * ms), Policy: p.ID,
	}
}

// experts computes a layer's experts as they come, and returns how long it waited.
func (s *sim) experts(layer int) (waited float64) {
	wait := s.wait[:0]
	ready := 0
	for _, r := range s.reads[layer] {
		if r != nil {
			s.ahead--
		}
	}
	for rank := range s.topK {
		r := s.reads[layer][rank]
		switch {
		case !s.missing(s.token, layer, rank) || r != nil && r.landed:
			ready++
			continue
		case r == nil:
			r = s.ask(layer, rank, 0)
		case !r.begun:
			s.queued[1] = slices.DeleteFunc(s.queued[1], func(x *simRead) bool { return x == r })
			s.queued[0] = append(s.queued[0], r)
			s.begin()
		}
		wait = append(wait, r)
	}
	s.queued[1] = slices.DeleteFunc(s.queued[1], func(r *simRead) bool { return r.wrong && r.layer <= layer })
	s.compute(float64(ready) * s.expert)
	for len(wait) > 0 {
		n := len(wait)
		wait = slices.DeleteFunc(wait, func(r *simRead) bool { return r.landed })
		if n -= len(wait); n > 0 {
			s.compute(float64(n) * s.expert)
			continue
		}
		took, _ := s.advance(math.Inf(1))
		waited += took
	}
	s.wait = wait
	return waited
}
