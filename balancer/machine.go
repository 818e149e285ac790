package balancer

import (
	"fmt"
	"slices"
	"time"

	"github.com/coli-moe/coli/messages"
)

const (
	firstPause = 64                     // decode steps between rounds; doubled by each trial that changes nothing,
	lastPause  = 1024                   // up to here
	lossShare  = 0.02                   // of the time that trials may lose, once a round has ended
	alarm      = 1.25                   // a step this many times longer or shorter than expected is not noise,
	alarmSteps = 16                     // if the median of so many is, at least
	alarmMost  = 64                     // and at most,
	alarmTime  = 250 * time.Millisecond // so that they take about this long
	firstQuiet = 256                    // steps after an alarm in which another one is noise; doubled by each that comes soon after,
	lastQuiet  = 4096                   // up to here
	forget     = 128                    // steps by which what is expected lags behind
	farOff     = 4                      // times what is expected that a step counts for, or reads, at most
	maxKnown   = 32                     // changes of which the evidence is kept

	leap = 3 // places in readerGrid that a move of two settings goes: to about four times as many, or a quarter

	// What makes a move worth a trial, or comes first. None of these decides which setting is kept, only what is tried, and when.
	noWait     = 0.02 // of the time: less waiting for the disk is not worth a trial
	someIdle   = 0.03 // of the time: the drive has room for guesses,
	muchIdle   = 0.15 // or wants more of everything first
	alwaysIdle = 0.95 // there are no reads that could take cores from computing
	fewBusy    = 0.6  // of the readers at work, on average: more of them have nothing to do
	mostBusy   = 0.8  // likewise: there are none for guesses from further ahead
	longQueue  = 2    // times the drive's own time: requests wait for each other
)

// setting is what a policy sets. Without prediction the horizon is the least.
type setting struct{ readers, depth, horizon int }

// move is a way from one setting to another.
type move uint8

const (
	moreReaders move = iota
	fewerReaders
	predict // or not
	deeper
	shallower
	further
	nearer
	widen    // more readers and, for them, further ahead
	exchange // prediction for readers, or the other way round
	home     // where the search began
	moves
)

// readerGrid are the numbers of readers that are tried.
var readerGrid = []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}

// Machine is the state of the balancer. It is not safe for concurrent use, and its methods do not allocate except to word a decision.
type Machine struct {
	cfg    Config
	depths []int // that are tried, in rising order

	policy messages.Policy // of the next step
	start  setting
	kept   setting
	tokens uint64
	skip   bool // the first step under a policy still has the last one's reads under way

	recent arm // steps under the kept setting, since it was chosen or the last trial: the next one's first turn
	expect expectation
	alarm  uint64 // when the search last began anew
	quiet  uint64 // how long it is not to, from then on

	searching bool   // a round is under way,
	planned   bool   // of the moves that the figures suggest
	first     []move // that it begins with, before those
	queue     []move // that are left of it
	stride    int    // by which readers change, in grid steps
	trying    bool
	trial     trial
	inTurn    int        // steps of its turn
	tried     []attempt  // since the search began
	known     []evidence // likewise, the newest last
	pause     int        // steps to the next trial
	rest      int        // how long the next pause is at least
	said      bool       // that there is nothing to gain

	block messages.BlockIO // the last one with anything in it, of the setting in force
	mixed bool             // the next one is of a trial, too
	last  Decision
}

// attempt is when a setting was last tried.
type attempt struct {
	setting
	at uint64
}

// New returns a machine that has made its first decision, to begin with cfg.Start.
func New(cfg Config) *Machine {
	cfg.TopK = max(cfg.TopK, 1)
	cfg.Readers.Min, cfg.Horizon.Min = max(cfg.Readers.Min, 1), max(cfg.Horizon.Min, 1)
	m := &Machine{cfg: cfg, stride: 1, rest: firstPause, searching: true}
	s := setting{cfg.Readers.clamp(cfg.Start.Readers), cfg.Depth.clamp(cfg.Start.Depth), cfg.Horizon.clamp(cfg.Start.Horizon)}
	half := (cfg.TopK + 1) / 2
	for _, d := range []int{0, half, cfg.TopK, cfg.TopK + half, 2 * cfg.TopK, s.depth} {
		m.depths = append(m.depths, cfg.Depth.clamp(d))
	}
	slices.Sort(m.depths)
	m.depths = slices.Compact(m.depths)
	m.start = m.normal(s)
	m.kept = m.start
	m.set(m.kept)
	why := cfg.Why
	if cfg.Fixed() {
		why = "nothing to balance, all is fixed"
	}
	m.decide(fmt.Sprintf("%s: %s", why, Describe(m.policy)))
	return m
}

func (m *Machine) normal(s setting) setting {
	if s.depth == 0 {
		s.horizon = m.cfg.Horizon.Min
	}
	return s
}

// Policy is what the next step is to be made under.
func (m *Machine) Policy() messages.Policy { return m.policy }

// Last is the last decision.
func (m *Machine) Last() Decision { return m.last }

// Wants says whether figures of the drive would help now: a round is under way, or near.
func (m *Machine) Wants() bool { return !m.cfg.Fixed() && !m.trying && m.pause < 2*minTurn }

// BlockIO takes what the drive has done since the last one. What it did in a trial it did for two settings: that says nothing of either.
func (m *Machine) BlockIO(b *messages.BlockIO) {
	switch {
	case m.trying:
	case m.mixed:
		m.mixed = false
	case b.Known && b.Device.Count > 0:
		m.block = *b
	}
}

// queueing says that requests wait for the drive longer than it takes for them: it has more at a time than it works on.
func (m *Machine) queueing() bool {
	return m.block.Known && m.block.Queue.Mean() > longQueue*m.block.Device.Mean()
}

// Took takes what a step took, and says whether there is a new decision. The policy may have changed without one: a trial is on. Figures
// that no clock gives are brought into their bounds, in t.
func (m *Machine) Took(t *messages.Took) (decided bool) {
	m.tokens++
	if m.cfg.Fixed() || t.Policy != m.policy.ID {
		return false
	}
	t.Nanos = max(t.Nanos, 1)
	t.Waited = max(0, min(t.Waited, t.Nanos))
	if m.skip {
		m.skip = false
		return false
	}
	if m.trying {
		return m.try(t)
	}
	if m.pause > 0 {
		m.pause--
		if m.recent.n >= m.turn() { // the newest steps are the next trial's first turn
			m.recent.reset()
		}
	}
	m.recent.add(t)
	if m.expect.n == 0 {
		if m.recent.n >= minTurn {
			m.expect.begin(&m.recent)
		}
	} else if off := m.expect.add(t); off != 0 && m.alarmed() {
		m.expect, m.tried, m.known = expectation{}, m.tried[:0], m.known[:0]
		if off > 1 {
			m.round(home, fewerReaders)
		} else {
			m.round(moreReaders, home)
		}
		m.decide(fmt.Sprintf("a token takes %.2f times as long as those before, for as many bytes: the search begins anew from %s", off, Describe(m.policy)))
		return true
	}
	if m.pause > 0 || m.recent.n < m.turn() {
		return false
	}
	return m.next()
}

// alarmed says whether an alarm is believed: on a machine whose speed changes all the time, searching for the best setting each time would
// take longer than it has.
func (m *Machine) alarmed() bool {
	since := m.tokens - m.alarm
	if m.alarm > 0 && since < m.quiet {
		return false
	}
	if m.quiet = min(2*m.quiet, lastQuiet); m.alarm == 0 || since > 8*m.quiet {
		m.quiet = firstQuiet
	}
	m.alarm = m.tokens
	return true
}

// turn is how many steps a turn has.
func (m *Machine) turn() int {
	mean := float64(turnTime)
	if m.recent.n > 0 {
		mean = m.recent.total / float64(m.recent.n)
	}
	return int(max(minTurn, min(float64(turnTime)/mean, maxTurn)))
}

// round begins a search with moves from the setting in force, some before others.
func (m *Machine) round(first ...move) {
	m.searching, m.planned, m.pause, m.rest, m.stride, m.said = true, false, 0, firstPause, 1, false
	m.first = append(m.first[:0], first...)
	m.recent.reset()
}

// next begins a trial, or the next pause: the trials of a round one after the other; after a round, one at a time with pauses between.
func (m *Machine) next() (decided bool) {
	if m.searching && !m.planned {
		m.plan()
	}
	for len(m.queue) > 0 {
		mv := m.queue[0]
		m.queue = slices.Delete(m.queue, 0, 1)
		if to := m.target(mv); m.promising(mv) && m.lastTried(to) == 0 {
			m.begin(mv, to)
			return false
		}
	}
	if m.searching && len(m.tried) > 0 { // the round has ended
		m.searching = false
		m.sleep(0)
		return false
	}
	m.searching = false
	if mv, ok := m.oldest(); ok {
		m.begin(mv, m.target(mv))
		return false
	}
	waiting := m.recent.waiting()
	m.sleep(0)
	if m.said {
		return false
	}
	m.said = true
	m.decide(fmt.Sprintf("nothing to gain: the engine waits for the disk %s of the time, a token takes %s", percent(waiting), millis(m.expect.perStep())))
	return true
}

// plan queues the moves of a round, those first that the figures suggest.
func (m *Machine) plan() {
	order := [...]move{moreReaders, predict, fewerReaders, shallower, exchange, nearer, widen, deeper, further}
	switch {
	case m.queueing():
		order = [...]move{fewerReaders, shallower, predict, nearer, exchange, further, deeper, moreReaders, widen}
	case m.recent.idle() > muchIdle:
		order = [...]move{moreReaders, widen, further, deeper, predict, exchange, shallower, fewerReaders, nearer}
	}
	m.planned = true
	m.queue = append(append(m.queue[:0], m.first...), order[:]...)
}

// possible says whether a move may gain anything where the engine waits for the disk as it did of late.
func (m *Machine) possible(mv move) bool {
	if m.target(mv) == m.kept {
		return false
	}
	if m.recent.waiting() >= noWait {
		return true
	}
	switch mv { // what may save computing, or leave cores to it
	case shallower, nearer:
		return true
	case predict:
		return m.kept.depth > 0
	case fewerReaders:
		return m.recent.idle() < alwaysIdle
	default:
		return false
	}
}

// promising says whether a move is worth a trial now.
func (m *Machine) promising(mv move) bool {
	switch mv {
	case moreReaders: // those there are must have something to do
		return m.possible(mv) && !m.queueing() && m.recent.atOnce() >= fewBusy*float64(m.kept.readers)
	case exchange: // where prediction alone makes such a difference no number of readers makes up for it
		return m.possible(mv) && m.evidence(m.kept, m.target(predict)).gain > 1/obvious-1
	case widen:
		return m.possible(mv) && !m.queueing() && m.recent.idle() > someIdle
	case deeper, further: // a drive, or readers, that are busy already have no time for more guesses
		return m.possible(mv) && (m.recent.idle() > someIdle || m.recent.atOnce() < mostBusy*float64(m.kept.readers))
	default:
		return m.possible(mv)
	}
}

// target is the setting that a move leads to; the one in force where it leads nowhere.
func (m *Machine) target(mv move) setting {
	s := m.kept
	switch mv {
	case home:
		return m.start
	case moreReaders:
		s.readers = m.cfg.Readers.clamp(shift(readerGrid, s.readers, m.stride))
	case fewerReaders:
		s.readers = m.cfg.Readers.clamp(shift(readerGrid, s.readers, -m.stride))
	case predict:
		if s.depth > 0 {
			s.depth = m.cfg.Depth.Min
		} else {
			s.depth = m.cfg.Depth.clamp(m.cfg.TopK)
		}
	case widen:
		if far := m.cfg.Horizon.clamp(s.horizon + 1); s.depth > 0 && far > s.horizon {
			s.readers, s.horizon = m.cfg.Readers.clamp(shift(readerGrid, s.readers, leap)), far
		}
	case exchange:
		if s.depth > 0 {
			s.depth, s.readers = m.cfg.Depth.Min, m.cfg.Readers.clamp(shift(readerGrid, s.readers, leap))
		} else {
			s.depth, s.readers = m.cfg.Depth.clamp(m.cfg.TopK), m.cfg.Readers.clamp(shift(readerGrid, s.readers, -leap))
		}
	case deeper, shallower:
		if by := 1 - 2*int(mv-deeper); s.depth > 0 {
			s.depth = shift(m.depths, s.depth, by)
		}
	case further, nearer:
		if by := 1 - 2*int(mv-further); s.depth > 0 {
			s.horizon = m.cfg.Horizon.clamp(s.horizon + by)
		}
	}
	return m.normal(s)
}

// shift is the value so many places beyond or before now in a rising list, or its end.
func shift(values []int, now, by int) int {
	i, found := slices.BinarySearch(values, now)
	if by > 0 && !found {
		i--
	}
	return values[max(0, min(i+by, len(values)-1))]
}

// lastTried is when a setting was tried, 0 for never.
func (m *Machine) lastTried(s setting) uint64 {
	for _, t := range m.tried {
		if t.setting == s {
			return t.at
		}
	}
	return 0
}

// oldest is the move to the setting that was not tried for the longest time.
func (m *Machine) oldest() (best move, ok bool) {
	var at uint64
	for mv := range moves {
		if t := m.lastTried(m.target(mv)); m.possible(mv) && (!ok || t < at) {
			best, at, ok = mv, t, true
		}
	}
	return best, ok
}

// begin starts a trial.
func (m *Machine) begin(mv move, to setting) {
	m.trial = trial{from: m.kept, to: to, move: mv, need: margin, length: m.turn(), a: m.recent, before: m.evidence(m.kept, to)}
	if cheaper(to, m.kept) {
		m.trial.need = 0
	}
	m.trying, m.mixed = true, true
	i := slices.IndexFunc(m.tried, func(a attempt) bool { return a.setting == to })
	if i < 0 {
		i, m.tried = len(m.tried), append(m.tried, attempt{setting: to})
	}
	m.tried[i].at = m.tokens
	m.set(to)
	m.inTurn = 0
}

// evidence is what earlier trials say of a change, of which half is believed by now.
func (m *Machine) evidence(from, to setting) evidence {
	for _, e := range m.known {
		if e.from == from && e.to == to {
			return evidence{from, to, e.gain, e.weight / 2}
		}
		if e.from == to && e.to == from {
			return evidence{from, to, -e.gain, e.weight / 2}
		}
	}
	return evidence{from: from, to: to}
}

// learn keeps what a trial has shown.
func (m *Machine) learn(e evidence) {
	m.known = slices.DeleteFunc(m.known, func(k evidence) bool {
		return k.from == e.from && k.to == e.to || k.from == e.to && k.to == e.from
	})
	if len(m.known) == maxKnown {
		m.known = slices.Delete(m.known, 0, 1)
	}
	m.known = append(m.known, e)
}

// cheaper says that a reads and computes less than b, or the same with fewer readers.
func cheaper(a, b setting) bool {
	if x, y := a.depth*a.horizon, b.depth*b.horizon; x != y {
		return x < y
	}
	return a.readers < b.readers
}

// try takes a step of a trial.
func (m *Machine) try(t *messages.Took) (decided bool) {
	x := &m.trial
	m.inTurn++
	before := x.turn
	v := x.add(t, m.inTurn == x.length)
	if v == undecided {
		if x.turn != before {
			m.inTurn = 0
			if turns[x.turn] != turns[before] {
				m.set(x.setting())
			}
		}
		return false
	}
	m.trying = false
	what := x.words(v)
	m.learn(x.evidence())
	a, _ := x.a.perStep()
	b, _ := x.b.perStep()
	m.recent.reset()
	if v == better {
		m.kept, m.block = x.to, messages.BlockIO{}
		m.expect.begin(&x.b)
		stride := m.stride
		m.round(x.move)
		if x.move == moreReaders || x.move == fewerReaders {
			m.stride = 2 * stride
		}
	} else if m.stride > 1 {
		m.stride = 1
		m.queue = slices.Insert(m.queue, 0, x.move)
	}
	m.set(m.kept)
	if v == worse && !m.searching {
		m.rest = min(2*m.rest, lastPause)
		m.sleep(float64(x.b.n) * max(b-a, 0) / max(a, 1))
	}
	m.decide(what)
	return true
}

// sleep begins a pause, long enough for the loss, in steps, to be a small share of it.
func (m *Machine) sleep(loss float64) {
	m.pause = max(m.rest, int(min(loss/lossShare, 4*lastPause)))
	m.recent.reset()
}

// set puts a setting in force.
func (m *Machine) set(s setting) {
	if m.policy.ID > 0 && s == (setting{m.policy.Readers, m.policy.Depth, m.policy.Horizon}) {
		return
	}
	m.policy = messages.Policy{ID: m.policy.ID + 1, Readers: s.readers, Depth: s.depth, Horizon: s.horizon}
	m.skip = true
}

func (m *Machine) decide(reason string) {
	m.last = Decision{Token: m.tokens, Policy: m.policy, Reason: reason}
}
