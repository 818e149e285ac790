package engine

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/coli-moe/coli/actors"
)

// beginning is what a step's end is compared with.
type beginning struct {
	at        time.Time
	read      int64
	predicted bool
}

// begin prepares a step that ends with ctx: it decides whether the CPU's layers predict.
func (m *Model) begin(ctx context.Context) beginning {
	m.predict = nil
	if m.system == nil || !m.system.Streams() {
		return beginning{}
	}
	m.system.Within(ctx)
	if m.prefetch == PrefetchOn || m.prefetch != PrefetchOff && m.gate.On() {
		m.predict = m.system.Predict
	}
	return beginning{time.Now(), m.system.BytesRead(), m.predict != nil}
}

// end counts a step of n rows. Steps of one row, decoding, tell the gate whether prediction pays.
func (m *Model) end(b beginning, n int) {
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
	if b.predicted { // the first layer of the next token has no layer before it that could foresee its experts
		m.system.PredictUsual(m.firstExperts, m.Config.NumExpertsPerTok)
	}
	if m.prefetch == PrefetchOn || m.prefetch == PrefetchOff {
		return
	}
	m.gate.Step(time.Since(b.at), m.system.BytesRead()-b.read)
}

// ExpertStats are what the expert pipeline has done since the model was loaded.
type ExpertStats struct {
	actors.Figures
	DriveRate float64 // what the drive delivers at this request size, bytes a second; 0 if unknown
	Prefetch  string  // whether experts are read ahead, and why
}

// Experts returns the pipeline's figures; ok is false for a model whose experts are all in memory, or that has none.
func (m *Model) Experts() (s ExpertStats, ok bool, err error) {
	if m.system == nil || !m.system.Streams() {
		return s, false, nil
	}
	s.Figures, err = m.system.Figures()
	s.DriveRate = m.driveRate
	switch m.prefetch {
	case PrefetchOn, PrefetchOff:
		s.Prefetch = string(m.prefetch) + ", as asked"
	default:
		s.Prefetch = m.gate.Reason()
	}
	return s, true, err
}

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
