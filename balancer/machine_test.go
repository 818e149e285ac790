package balancer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/coli-moe/coli/messages"
)

const ms = int64(time.Millisecond)

// auto leaves everything to be decided for a model of the given top_k.
func auto(topK int) Config {
	return Config{
		Start: messages.Policy{Readers: 1, Depth: topK, Horizon: 1}, Why: "derived", TopK: topK,
		Readers: Range{1, 64}, Depth: Range{0, 2 * topK}, Horizon: Range{1, 3},
	}
}

// steady is what a step takes, by policy.
type steady func(p messages.Policy) messages.Took

// run plays steps and returns how many of them were made under another policy than the one that stood before, and the decisions.
func (m *Machine) run(steps int, s steady) (tried int, reasons []string) {
	for range steps {
		p := m.Policy()
		if (setting{p.Readers, p.Depth, p.Horizon}) != m.kept {
			tried++
		}
		t := s(p)
		t.Policy = p.ID
		if m.Took(&t) {
			reasons = append(reasons, m.Last().Reason)
		}
	}
	return tried, reasons
}

// TestWaitsForNothing: where the engine does not wait for the disk, what costs computing is tried, and no more than that.
func TestWaitsForNothing(t *testing.T) {
	m := New(auto(8))
	tried, reasons := m.run(2000, func(p messages.Policy) messages.Took {
		return messages.Took{Nanos: 50*ms + int64(p.Depth)*ms/10, Waited: ms / 2}
	})
	if p := m.Policy(); p.Depth != 0 || p.Readers != 1 {
		t.Errorf("%+v: %q", p, reasons)
	}
	last := reasons[len(reasons)-1]
	if tried > 60 || last != "nothing to gain: the engine waits for the disk 1 % of the time, a token takes 50.0 ms" {
		t.Errorf("%d steps were tries; the last reason is %q", tried, last)
	}
	if m.run(2000, func(messages.Policy) messages.Took { return messages.Took{Nanos: 50 * ms} }); m.Last().Reason != last {
		t.Errorf("decided again: %q", m.Last().Reason)
	}
}

// TestTrialsGetRarer: where nothing better is to be found, trials lose less than 2 % of the time once the first search is over.
func TestTrialsGetRarer(t *testing.T) {
	m := New(auto(8))
	best := m.kept
	var lost, all int64
	for step := range 6000 {
		p := m.Policy()
		took := messages.Took{Nanos: 100 * ms, Waited: 50 * ms, Reading: 90 * ms, ReadNanos: 90 * ms, Bytes: 1e6, Policy: p.ID}
		if (setting{p.Readers, p.Depth, p.Horizon}) != best {
			took.Nanos += 25 * ms
		}
		if step >= 500 {
			all += took.Nanos
			lost += took.Nanos - 100*ms
		}
		m.Took(&took)
	}
	if m.kept != best || float64(lost) > 0.02*float64(all) {
		t.Errorf("%.1f %% of the time was lost in trials; %+v is kept", 100*float64(lost)/float64(all), m.kept)
	}
}

// TestRestlessMachine: where the speed changes all the time, the search does not begin anew each time.
func TestRestlessMachine(t *testing.T) {
	m := New(auto(8))
	anew := 0
	for step := range 20000 {
		p := m.Policy()
		took := messages.Took{Nanos: 20 * ms, Waited: 10 * ms, Reading: 18 * ms, ReadNanos: 18 * ms, Bytes: 1e6, Policy: p.ID}
		if step/150%2 == 1 {
			took.Nanos *= 2
		}
		if m.Took(&took) && strings.Contains(m.Last().Reason, "begins anew") {
			anew++
		}
	}
	if anew < 2 || anew > 9 {
		t.Errorf("the search began anew %d times", anew)
	}
}

// TestHang: a drive, or a machine, that stops once is no reason to search anew.
func TestHang(t *testing.T) {
	for _, at := range []int{3, 12, 300, 1500} {
		m := New(auto(8))
		step := 0
		_, reasons := m.run(3000, func(p messages.Policy) messages.Took {
			took := messages.Took{Nanos: 20 * ms, Waited: 10 * ms, Reading: 18 * ms, ReadNanos: 18 * ms, Bytes: 1e6}
			if step++; step == at {
				took.Nanos, took.Waited, took.Reading = 60_000*ms, 60_000*ms, 60_000*ms
			}
			return took
		})
		for _, r := range reasons {
			if strings.Contains(r, "begins anew") {
				t.Errorf("a hang in step %d: %s", at, r)
			}
		}
	}
}

// TestQueueing: where requests wait longer for the drive than it works on them, fewer readers come first and more are not tried.
func TestQueueing(t *testing.T) {
	for _, known := range []bool{false, true} {
		c := auto(8)
		c.Start.Readers = 4
		m := New(c)
		var b messages.BlockIO
		b.Known = known
		b.Queue.Add(10 * time.Millisecond)
		b.Device.Add(time.Millisecond)
		m.BlockIO(&b)
		_, reasons := m.run(100, func(p messages.Policy) messages.Took {
			return messages.Took{Nanos: 100 * ms, Waited: 80 * ms, Reading: 100 * ms, ReadNanos: 400 * ms, Bytes: 1e6}
		})
		want := "not readers 4 -> 6: "
		if known {
			want = "not readers 4 -> 3: "
		}
		if len(reasons) == 0 || !strings.HasPrefix(reasons[0], want) {
			t.Errorf("queue known: %v: %q", known, reasons)
		}
	}
}

// TestDriveInTrials: what the drive does in a trial says nothing of the setting in force.
func TestDriveInTrials(t *testing.T) {
	m := New(auto(8))
	slow := func(messages.Policy) messages.Took {
		return messages.Took{Nanos: 100 * ms, Waited: 80 * ms, Reading: 100 * ms, ReadNanos: 100 * ms, Bytes: 1e6}
	}
	busy := messages.BlockIO{Known: true}
	busy.Queue.Add(10 * time.Millisecond)
	busy.Device.Add(time.Millisecond)
	for !m.trying {
		m.run(1, slow)
	}
	m.BlockIO(&busy)
	for m.trying {
		m.run(1, slow)
	}
	if m.BlockIO(&busy); m.queueing() {
		t.Error("the drive's queue of a trial counts")
	}
	if m.BlockIO(&busy); !m.queueing() {
		t.Error("the drive's queue after a trial does not count")
	}
}

// TestSteps: steps made under an older policy, and the first under a new one, are nobody's.
func TestSteps(t *testing.T) {
	m := New(auto(8))
	slow := func(messages.Policy) messages.Took {
		return messages.Took{Nanos: 100 * ms, Waited: 80 * ms, Reading: 100 * ms, ReadNanos: 100 * ms}
	}
	for m.Policy().ID == 1 {
		m.run(1, slow)
	}
	for range 50 {
		m.Took(&messages.Took{Nanos: 9000 * ms, Policy: 1})
	}
	id := m.Policy().ID
	m.Took(&messages.Took{Nanos: 9000 * ms, Policy: id})
	if m.trial.b.n != 0 || m.Policy().ID != id {
		t.Errorf("%d steps counted", m.trial.b.n)
	}
	m.Took(&messages.Took{Nanos: 90 * ms, Policy: id})
	if m.trial.b.n != 1 {
		t.Errorf("%d steps counted, want 1", m.trial.b.n)
	}
}

func TestFixed(t *testing.T) {
	for _, c := range []Config{Fixed(3, 8, 2), Fixed(0, 0, 0), {Readers: Range{2, 2}, Horizon: Range{1, 3}}} {
		m := New(c)
		p := m.Policy()
		if tried, reasons := m.run(500, func(messages.Policy) messages.Took { return messages.Took{Nanos: 100 * ms, Waited: 90 * ms} }); tried > 0 ||
			len(reasons) > 0 || m.Policy() != p || m.Wants() {
			t.Errorf("%+v: %d tries, %q", c, tried, reasons)
		}
		if p.Readers < 1 || p.Horizon < 1 || !strings.HasPrefix(m.Last().Reason, "nothing to balance, all is fixed: ") {
			t.Errorf("%+v: %+v, %q", c, p, m.Last().Reason)
		}
	}
}

// FuzzMachine: whatever steps take and the probe says, policies stay in their ranges, change only with their number, and trials end.
func FuzzMachine(f *testing.F) {
	for seed := range uint64(32) {
		f.Add(seed, uint8(seed*3), uint8(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, topK, shape uint8) {
		rng := rand.New(rand.NewPCG(seed, 3))
		k := 1 + int(topK)%16
		c := auto(k)
		c.Start = messages.Policy{Readers: rng.IntN(100) - 10, Depth: rng.IntN(100) - 10, Horizon: rng.IntN(10) - 2}
		if shape&1 != 0 {
			c.Readers = Range{1 + rng.IntN(70), 1 + rng.IntN(70)}
		}
		if shape&2 != 0 {
			c.Depth = Range{rng.IntN(k + 1), rng.IntN(3 * k)}
		}
		if shape&4 != 0 {
			c.Horizon = Range{rng.IntN(3), rng.IntN(5)}
		}
		m := New(c)
		trying := 0
		last := m.Policy()
		for range 3000 {
			p := m.Policy()
			if p.ID < last.ID || p.ID == last.ID && p != last {
				t.Fatalf("%+v after %+v", p, last)
			}
			last = p
			for _, x := range []struct {
				n int
				Range
			}{{p.Readers, Range{max(c.Readers.Min, 1), max(c.Readers.Max, c.Readers.Min, 1)}}, {p.Depth, c.Depth}, {p.Horizon, Range{1, max(c.Horizon.Max, c.Horizon.Min, 1)}}} {
				if x.n < x.Min || x.n > max(x.Min, x.Max) {
					t.Fatalf("%+v is outside %+v", p, c)
				}
			}
			took := messages.Took{Policy: p.ID - uint64(rng.IntN(20)/19), Nanos: rng.Int64N(1 << rng.IntN(40)), Bytes: rng.Int64N(1 << rng.IntN(40))}
			if shape&8 != 0 {
				took.Nanos = 50*ms + rng.Int64N(ms)
			}
			took.Waited, took.Reading = rng.Int64N(took.Nanos+1), rng.Int64N(took.Nanos+1)
			if shape&16 != 0 && rng.IntN(30) == 0 { // what no clock gives
				for _, x := range []*int64{&took.Nanos, &took.Waited, &took.Reading, &took.Bytes} {
					*x = [...]int64{0, -1, math.MinInt64, math.MaxInt64}[rng.IntN(4)]
				}
			}
			took.ReadNanos = took.Reading * rng.Int64N(9)
			if rng.IntN(20) == 0 {
				b := messages.BlockIO{Known: rng.IntN(4) > 0}
				b.Queue.Add(time.Duration(rng.Int64N(1e7)))
				b.Device.Add(time.Duration(rng.Int64N(1e7)))
				m.BlockIO(&b)
			}
			m.Took(&took)
			if trying++; !m.trying {
				trying = 0
			}
			if trying > 2*len(turns)*(maxTurn+1) {
				t.Fatal("a trial does not end")
			}
			if strings.Contains(m.Last().Reason, "NaN") || strings.Contains(m.Last().Reason, "Inf") || strings.Contains(m.Last().Reason, "\n") {
				t.Fatalf("reason %q", m.Last().Reason)
			}
		}
	})
}

func TestMachineAllocatesNothing(t *testing.T) {
	m := New(auto(8))
	step := func() {
		p := m.Policy()
		m.Took(&messages.Took{Nanos: 50 * ms, Policy: p.ID})
	}
	for range 400 { // until there is nothing to gain
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLog(t *testing.T) {
	var l Log
	if d := l.Last(); d.Reason != "" || len(l.Decisions()) > 0 {
		t.Errorf("%+v", d)
	}
	for i := range 3 * remembered {
		l.add(Decision{Reason: fmt.Sprint(i)})
	}
	all := l.Decisions()
	if len(all) != remembered || all[0].Reason != fmt.Sprint(2*remembered) || l.Last() != all[remembered-1] {
		t.Errorf("%d decisions from %+v to %+v", len(all), all[0], l.Last())
	}
}
