package prefetcher

import (
	"strings"
	"testing"
	"time"
)

// machine tells how long a step takes and what it reads, with and without prediction.
type machine func(step int, on bool) (time.Duration, int64)

func steady(on, off time.Duration, bytesOn, bytesOff int64) machine {
	return func(_ int, predict bool) (time.Duration, int64) {
		if predict {
			return on, bytesOn
		}
		return off, bytesOff
	}
}

const ms = time.Millisecond

func TestGate(t *testing.T) {
	for name, tt := range map[string]struct {
		machine
		on     bool
		reason string
	}{
		"pays":                  {steady(90*ms, 100*ms, 10, 5), true, "prediction pays: 90ms a token with prediction, 100ms without"},
		"does not":              {steady(110*ms, 100*ms, 5, 5), false, "prediction does not pay: 110ms a token with prediction, 100ms without"},
		"within the noise":      {steady(99*ms, 100*ms, 10, 5), false, "prediction gains nothing: 99ms a token with prediction, 100ms without"},
		"slower within it":      {steady(101*ms, 100*ms, 5, 5), false, "prediction gains nothing: 101ms a token with prediction, 100ms without"},
		"reads less":            {steady(100*ms, 100*ms, 4, 5), true, "prediction costs nothing: 100ms a token with prediction, 100ms without, and"},
		"no time at all":        {steady(0, 0, 0, 0), false, "prediction gains nothing: 0s a token with prediction, 0s without"},
		"the change costs once": {func(step int, on bool) (time.Duration, int64) { return (90 + time.Duration(step%16/15)*5) * ms, 5 }, false, ""},
		"steady drift": {func(step int, on bool) (time.Duration, int64) { // a cache that fills makes every step faster than the last
			return 200*ms - time.Duration(step)*ms, 5
		}, false, "prediction gains nothing: 167.5ms a token with prediction, 167.5ms without"},
		"one hiccup": {func(step int, on bool) (time.Duration, int64) {
			if step == 5 {
				return 5 * time.Second, 5
			}
			return steady(90*ms, 100*ms, 5, 5)(step, on)
		}, true, "prediction pays: 90ms a token with prediction, 100ms without"},
		"first step of a window": {func(step int, on bool) (time.Duration, int64) {
			if step%16 == 0 && on {
				return time.Second, 5
			}
			return steady(90*ms, 100*ms, 5, 5)(step, on)
		}, true, "prediction pays: 90ms a token with prediction, 100ms without"},
	} {
		t.Run(name, func(t *testing.T) {
			var g Gate
			if g.Reason() != "prediction is being tried" {
				t.Errorf("before the first trial: %s", g.Reason())
			}
			for step := range 64 {
				took, bytes := tt.machine(step, g.On())
				if decided := g.Step(took, bytes); decided != (step == 63) {
					t.Fatalf("step %d: decided %v", step, decided)
				}
			}
			if g.On() != tt.on || !strings.Contains(g.Reason(), tt.reason) {
				t.Errorf("%v: %s", g.On(), g.Reason())
			}
		})
	}
}

// TestGateTriesAgain lets the machine change after the first trial.
func TestGateTriesAgain(t *testing.T) {
	var g Gate
	run := func(steps int, m machine) (decisions, on int) {
		for step := range steps {
			if g.On() {
				on++
			}
			took, bytes := m(step, g.On())
			if g.Step(took, bytes) {
				decisions++
			}
		}
		return decisions, on
	}
	if d, on := run(64, steady(90*ms, 100*ms, 5, 5)); d != 1 || on != 32 || !g.On() {
		t.Fatalf("%d decisions, %d of 64 steps with prediction, then %v", d, on, g.On())
	}
	if d, on := run(1024, steady(110*ms, 100*ms, 5, 5)); d != 0 || on != 1024 {
		t.Fatalf("between trials: %d decisions, %d steps with prediction", d, on)
	}
	if d, on := run(64, steady(110*ms, 100*ms, 5, 5)); d != 1 || on != 32 || g.On() {
		t.Fatalf("second trial: %d decisions, %d of 64 steps with prediction, then %v", d, on, g.On())
	}
	if d, on := run(1024, steady(110*ms, 100*ms, 5, 5)); d != 0 || on != 0 {
		t.Fatalf("after it: %d decisions, %d steps with prediction", d, on)
	}
}

// TestGateClear: a difference that no drift explains ends the trial after a window of each.
func TestGateClear(t *testing.T) {
	for name, tt := range map[string]struct {
		machine
		on bool
	}{
		"much slower": {steady(190*ms, 100*ms, 10, 5), false},
		"much faster": {steady(60*ms, 100*ms, 5, 5), true},
	} {
		t.Run(name, func(t *testing.T) {
			var g Gate
			for step := range 32 {
				took, bytes := tt.machine(step, g.On())
				if decided := g.Step(took, bytes); decided != (step == 31) {
					t.Fatalf("step %d: decided %v", step, decided)
				}
			}
			if g.On() != tt.on {
				t.Errorf("prediction is %v: %s", g.On(), g.Reason())
			}
		})
	}
}
