package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
)

// Live is the state of a model that is at work. Counters count since the model was loaded.
type Live struct {
	Actors []actors.ActorStats // empty without actors; their times need Options.Measure

	// Experts is nil unless experts are read from disk. The tier answers between two messages; if it does not in time its last answer
	// stands (nil before the first), and ExpertsAge says how old it is.
	Experts    *ExpertStats
	ExpertsAge time.Duration
	Reads      prefetcher.Stats // zero unless experts are read from disk

	Prefilled, Decoded int64 // tokens computed, of prompts and of answers
	Stats              Stats // after the last step; of a device without what its last step chose

	Policy    messages.Policy     // how experts are read now; zero unless they are read from disk
	Decisions []balancer.Decision // how it came to that, the newest last
	Block     *probe.Snapshot     // what drives did; nil unless experts are read from disk
	BlockMode probe.Mode          // and how that is known

	Ledger     []ledger.Account // see Model.Ledger
	DeviceName string           // see Model.DeviceName
	Resident   int64            // of this process, mapped files included, in bytes; 0 where unknown
}

// live is what the engine's goroutine leaves for Live.
type live struct {
	prefilled, decoded atomic.Int64

	mu    sync.Mutex // held for as long as a copy takes
	stats Stats

	asking  sync.Mutex // held while the tier is asked
	experts *ExpertStats
	at      time.Time
}

// patience is how long Live waits for the tier, which is at most at work on a few messages of some microseconds.
const patience = 50 * time.Millisecond

// Live returns the state of a model. Unlike the other methods it may be called by any goroutine while steps are computed, until Close: it
// waits for none of them, and for the tier's figures no longer than a moment.
func (m *Model) Live() Live {
	l := &m.live
	out := Live{Prefilled: l.prefilled.Load(), Decoded: l.decoded.Load(), Ledger: m.Ledger(), DeviceName: m.deviceName, Resident: ResidentBytes()}
	l.mu.Lock()
	out.Stats = l.stats
	l.mu.Unlock()
	if m.rt != nil {
		out.Actors = m.rt.Stats()
	}
	if m.system != nil && m.system.Streams() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		out.Experts, out.ExpertsAge = m.liveExperts(ctx)
		out.Reads, out.Policy, out.Decisions = m.system.Reads(), m.system.Policy(), m.system.Decisions()
		if m.probe != nil {
			if s := new(probe.Snapshot); m.probe.Read(s) == nil {
				out.Block, out.BlockMode = s, m.probe.Mode()
			}
		}
	}
	return out
}

// liveExperts asks the tier for its figures, and returns those it had before if it does not answer.
func (m *Model) liveExperts(ctx context.Context) (*ExpertStats, time.Duration) {
	l := &m.live
	l.asking.Lock()
	defer l.asking.Unlock()
	now := time.Now()
	if f, err := m.system.Ask(ctx); err == nil {
		l.experts, l.at = &ExpertStats{Figures: f, DriveRate: m.driveRate, Prefetch: m.howRead()}, now
	}
	if l.experts == nil {
		return nil, 0
	}
	return l.experts, now.Sub(l.at)
}

// computed counts n tokens of a step, and publishes the executors' counters. A step of one token in a session that holds others decodes.
func (m *Model) computed(n int, decoded bool) {
	counter := &m.live.prefilled
	if decoded {
		counter = &m.live.decoded
	}
	counter.Add(int64(n))
	s := Stats{m.exec.Stats(), m.retired}
	if c := m.binding.card; c != nil {
		s.Device = c.Counted()
	}
	m.publish(s)
}

// publish leaves counters for Live. Fused is left out: it is not counted by step.
func (m *Model) publish(s Stats) {
	s.Device.Fused = nil
	m.live.mu.Lock()
	m.live.stats = s
	m.live.mu.Unlock()
}
