package actors

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
)

// balanced has everything decided while running.
func balanced(t *testing.T, trace bool) *rig {
	t.Helper()
	p, err := probe.Open(probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return newRig(t, 2, tightSlots, func(c *SystemConfig) {
		c.Balance = balancer.Config{
			Start: messages.Policy{Readers: 1, Depth: 2, Horizon: 1}, Why: "derived", TopK: 2,
			Readers: balancer.Range{Min: 1, Max: prefetcher.MaxReaders}, Depth: balancer.Range{Max: 4}, Horizon: balancer.Range{Min: 1, Max: 2},
		}
		c.Probe, c.Trace = p, trace
	})
}

// tell sends what decode steps took, for which readers pay, until enough was decided.
func (r *rig) tell(t *testing.T, decisions int) {
	t.Helper()
	for began := time.Now(); len(r.sys.Decisions()) < decisions; time.Sleep(20 * time.Microsecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatalf("%d decisions: %+v", len(r.sys.Decisions()), r.sys.Decisions())
		}
		p := r.sys.Policy()
		m := messages.TookPool.Get()
		nanos := int64(time.Second) / int64(min(p.Readers, 8))
		m.Nanos, m.Waited, m.Reading, m.ReadNanos, m.Bytes, m.Policy = nanos, nanos/2, nanos/2, nanos/2*int64(p.Readers), 1e6, p.ID
		r.sys.balance.Send(m)
	}
}

// TestBalancer: what the balancer decides is the policy in force, the prefetcher's too, remembered with its reason, and on the timeline.
func TestBalancer(t *testing.T) {
	want := want(t)
	r := balanced(t, true)
	if p := r.sys.Policy(); p.Readers != 1 || p.Depth != 2 || p.Horizon != 1 {
		t.Errorf("it begins with %+v", p)
	}
	r.tell(t, 6)
	if !slices.Equal(r.run(), want) {
		t.Error("the logits differ")
	}
	d := r.sys.Decisions()
	if !strings.HasPrefix(d[0].Reason, "derived: reads at a time: 1, ") || !strings.HasPrefix(d[1].Reason, "readers 1 -> 2: 500 ms a token instead of 1000 ms; ") {
		t.Errorf("%q, %q", d[0].Reason, d[1].Reason)
	}
	if last := r.sys.LastDecision(); last.At.Before(d[0].At) || last.Policy.Readers < 4 {
		t.Errorf("the last decision of %+v", d)
	}
	var track []string
	for _, e := range parse(t, r.sys.rt).TraceEvents {
		if e.Ph == "X" && e.Args["horizon"] != nil {
			track = append(track, e.Name)
		}
	}
	if len(track) < 6 || track[0] != d[0].Reason || track[1] != d[1].Reason {
		t.Errorf("the timeline has %q", track)
	}
}

// TestBalancerPanics: the last decision stands, not the trial that was on, and the run goes on. So it does without the probe.
func TestBalancerPanics(t *testing.T) {
	want := want(t)
	r := balanced(t, false)
	r.tell(t, 3)
	for _, name := range []string{"probe", "balancer"} {
		ref := r.sys.rt.find(name)
		ref.Send(&notice{})
		<-ref.Dead()
	}
	before := r.sys.LastDecision().Policy
	r.sys.Decoded(r.sys.Begin(before))
	if !slices.Equal(r.run(), want) || len(r.failed) > 0 {
		t.Errorf("the logits differ, or steps failed of %v", r.failed)
	}
	if got := r.sys.Policy(); got != before {
		t.Errorf("policy %+v, decided before the panic %+v", got, before)
	}
	lines := r.notes.all()
	if len(lines) != 2 || !strings.HasPrefix(lines[1], "actor balancer (how experts are read) stopped: panicked on notice: ") ||
		!strings.HasSuffix(lines[1], "; coli goes on without it, and experts are read as was decided last") {
		t.Errorf("lines %q", lines)
	}
}

// TestFixedPolicy: where nothing is left to decide nobody decides, and it says so.
func TestFixedPolicy(t *testing.T) {
	r := newRig(t, 2, tightSlots, nil)
	r.sys.Decoded(r.sys.Begin(r.sys.Policy()))
	d := r.sys.Decisions()
	if r.sys.balance != nil || len(d) != 1 || d[0].Reason != "nothing to balance, all is fixed: reads at a time: 2, predicted: 8 experts of the next layer" {
		t.Errorf("%+v", d)
	}
	if p := newRig(t, 1, allInMemory, nil).sys.Policy(); p != (messages.Policy{}) {
		t.Errorf("policy %+v where nothing is read", p)
	}
}

// TestDecodedAllocatesNothing: what the engine does for each token, and the balancer while it has nothing to decide.
func TestDecodedAllocatesNothing(t *testing.T) {
	r := newRig(t, 2, tightSlots, func(c *SystemConfig) {
		c.Balance = balancer.Fixed(1, 2, 1)
		c.Balance.Horizon.Max = 2 // of no use to steps that wait for nothing
	})
	step := func() {
		r.sys.Decoded(r.sys.Begin(r.sys.Policy()))
		time.Sleep(100 * time.Microsecond) // a token takes longer than the balancer
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(200, step); n != 0 && !checked {
		t.Errorf("%v allocations a step", n)
	}
}
