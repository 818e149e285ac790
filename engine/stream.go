package engine

import (
	"context"
	"errors"
	"io"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
)

// balance says how experts are read: what is asked for stands, the rest is the balancer's.
func (m *Model) balance(opt Options, p place) balancer.Config {
	topK := m.Config.NumExpertsPerTok
	_, experts := m.expertLayers()
	farthest := max(len(m.cpuLayers())-1, 1)
	c := balancer.Config{
		Start: messages.Policy{Readers: p.readers, Depth: topK, Horizon: 1}, Why: "to begin with", TopK: topK,
		Readers: balancer.Range{Min: 1, Max: prefetcher.MaxReaders},
		Depth:   balancer.Range{Max: min(2*topK, experts)},
		Horizon: balancer.Range{Min: 1, Max: min(maxHorizon, farthest)},
	}
	switch {
	case opt.Prefetch == PrefetchOff || opt.Deterministic && opt.Prefetch != PrefetchOn && opt.Depth == 0 && opt.Horizon == 0:
		c.Depth = balancer.Range{}
	case opt.Depth > 0:
		d := min(opt.Depth, experts)
		c.Depth = balancer.Range{Min: d, Max: d}
	case opt.Deterministic:
		c.Depth = balancer.Range{Min: topK, Max: topK}
	case opt.Prefetch == PrefetchOn:
		c.Depth.Min = 1
	}
	if h := opt.Horizon; h > 0 || opt.Deterministic {
		h = max(min(h, farthest), 1)
		c.Horizon = balancer.Range{Min: h, Max: h}
	}
	if opt.Readers > 0 || opt.Deterministic {
		c.Readers = balancer.Range{Min: p.readers, Max: p.readers}
	}
	return c
}

// maxHorizon bounds the layers ahead that are predicted without being asked for: the router of the layer after next is right about two
// times in three, later ones less often.
const maxHorizon = 3

// begin prepares a step of n rows that ends with ctx: it decides what the CPU's layers predict.
func (m *Model) begin(ctx context.Context, n int) (b actors.Beginning) {
	m.predict = nil
	if m.system == nil || !m.system.Streams() {
		return b
	}
	if m.choose != nil {
		m.system.SetPolicy(m.choose())
	}
	m.system.Within(ctx)
	p := m.system.Policy()
	if m.depth, m.horizon = p.Depth, p.Horizon; n > 1 {
		// Rows of a prompt use most experts of a layer together: more guesses than there are rows' choices would be in each other's way.
		m.depth, m.horizon = min(p.Depth, m.Config.NumExpertsPerTok), 1
	}
	if p.Depth > 0 {
		m.predict = m.system.Predict
	}
	return m.system.Begin(p)
}

// end counts a step of n rows. Steps of one row, decoding, tell the balancer what they took.
func (m *Model) end(b actors.Beginning, n int) {
	if m.system == nil {
		return
	}
	m.system.Tokens(n)
	if !m.repeatSaid && m.failures == 0 && m.system.Repeated() > 0 {
		m.repeatSaid = true
		m.note("a read of an expert failed and was repeated; check the drive (dmesg, smartctl)")
	}
	if n != 1 || !m.system.Streams() {
		return
	}
	if m.predict != nil { // the first layer of the next token has no layer before it that could foresee its experts
		m.system.PredictUsual(m.firstExperts, m.depth)
	}
	m.system.Decoded(b)
}

// ExpertStats are what the expert pipeline has done since the model was loaded.
type ExpertStats struct {
	actors.Figures
	DriveRate float64 // what the drive delivers at this request size, bytes a second; 0 if unknown
	Prefetch  string  // how experts are read, and the balancer's last reason
}

// Experts returns the pipeline's figures; ok is false for a model whose experts are all in memory, or that has none.
func (m *Model) Experts() (s ExpertStats, ok bool, err error) {
	if m.system == nil || !m.system.Streams() {
		return s, false, nil
	}
	s.Figures, err = m.system.Figures()
	s.DriveRate = m.driveRate
	s.Prefetch = m.howRead()
	return s, true, err
}

// howRead says how experts are read, trials aside, and what the last decision was made for.
func (m *Model) howRead() string {
	last := m.system.LastDecision()
	if last.Token == 0 { // its reason is the policy
		return last.Reason
	}
	return balancer.Describe(last.Policy) + "; " + last.Reason
}

// Policy is how experts are read from disk now; zero for a model whose experts are all in memory. Any goroutine may call it.
func (m *Model) Policy() messages.Policy {
	if m.system == nil {
		return messages.Policy{}
	}
	return m.system.Policy()
}

// Decisions are the balancer's newest ones, oldest first, with their reasons. Any goroutine may call it.
func (m *Model) Decisions() []balancer.Decision {
	if m.system == nil {
		return nil
	}
	return m.system.Decisions()
}

// Probe is the probe of the drive that a model that streams has, nil otherwise.
func (m *Model) Probe() *probe.Probe { return m.probe }

// Routed are the pairs routed since the model was loaded, by layer and expert, layers outermost; nil without routed experts. It is valid
// until the next step.
func (m *Model) Routed() []uint64 {
	if m.system == nil {
		return nil
	}
	m.account()
	return m.system.Counts()
}

// account has the device's steps counted.
func (m *Model) account() {
	if c := m.binding.card; c != nil {
		c.Account()
	}
}

// count counts pairs of the device. The earlier ones are of a step that was over when this one began.
func (m *Model) count(layer int, experts []int32, earlier bool) {
	m.system.Count(layer, experts)
	if earlier && len(m.routed) > 0 {
		for _, e := range experts {
			m.routed[layer*m.Config.NumExperts+int(e)]++
		}
	}
}

// remember notes what was routed before a step. Of the device's last step it may not be known yet: the device does not wait for that.
func (m *Model) remember() {
	if m.system != nil {
		m.routed = append(m.routed[:0], m.system.Counts()...)
	}
}

// recount forgets what the step has routed so far: it is done again.
func (m *Model) recount() {
	if m.system != nil {
		m.system.Recount(m.routed)
	}
}

// WriteTrace writes the timeline of a model loaded with Options.Trace.
func (m *Model) WriteTrace(w io.Writer) error {
	if m.rt == nil {
		return errors.New("a model without routed experts on the CPU alone has no actors to trace")
	}
	return m.rt.WriteTrace(w)
}
