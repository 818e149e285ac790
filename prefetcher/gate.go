package prefetcher

import (
	"fmt"
	"time"
)

// The gate's schedule, in decode steps.
const (
	gateWindow = 16   // a trial has four windows: on, off, off, on, so that a steady drift favours neither
	gateEvery  = 1024 // from one trial's end to the next one's beginning
)

// gateMargin is by how much the faster setting must win; less is noise.
const gateMargin = 0.02

// trial is the order of a trial's windows.
var trial = [4]bool{true, false, false, true}

// Gate decides whether prediction pays, by trying both: the setting that is faster by 2 % is kept, and if neither is, the one that reads
// less. It is pure and not for concurrent use. The zero value begins a trial.
type Gate struct {
	window  int // of the trial; len(trial): between trials
	step    int // in the window, or since the trial
	current windowSum
	sums    [2]windowSum // off, on
	kept    bool
	reason  string
}

// windowSum adds up what a window's steps took.
type windowSum struct {
	time, slowest time.Duration
	bytes         int64
	steps         int
}

// On says whether the next step is to predict.
func (g *Gate) On() bool {
	if g.window < len(trial) {
		return trial[g.window]
	}
	return g.kept
}

// Reason says in a line why prediction is on or off.
func (g *Gate) Reason() string {
	if g.reason == "" {
		return "prediction is being tried"
	}
	return g.reason
}

// Step takes a decode step that was made with the setting On returned: how long it took and what was read from disk during it. It
// returns true when a trial has just been decided.
func (g *Gate) Step(took time.Duration, bytes int64) (decided bool) {
	g.step++
	if g.window == len(trial) {
		if g.step == gateEvery {
			g.window, g.step, g.sums = 0, 0, [2]windowSum{}
		}
		return false
	}
	if g.step > 1 { // the first step still has the last window's reads under way
		g.current.time += took
		g.current.slowest = max(g.current.slowest, took)
		g.current.bytes += bytes
		g.current.steps++
	}
	if g.step < gateWindow {
		return false
	}
	s := &g.sums[0]
	if trial[g.window] {
		s = &g.sums[1]
	}
	s.time += g.current.time - g.current.slowest // one hiccup of the machine must not decide
	s.steps += g.current.steps - 1
	s.bytes += g.current.bytes
	g.current, g.step = windowSum{}, 0
	if g.window++; g.window < len(trial) && !(g.window == 2 && g.clear()) {
		return false
	}
	g.window = len(trial)
	g.decide()
	return true
}

// perStep is what a step took without and with prediction.
func (g *Gate) perStep() (off, on time.Duration) {
	return g.sums[0].time / time.Duration(g.sums[0].steps), g.sums[1].time / time.Duration(g.sums[1].steps)
}

// clear says that a window of each decides: no drift makes such a difference, and the slower half of a trial is time lost.
func (g *Gate) clear() bool {
	off, on := g.perStep()
	return 2*max(off, on) > 3*min(off, on)
}

func (g *Gate) decide() {
	off, on := &g.sums[0], &g.sums[1]
	perOff, perOn := g.perStep()
	what := fmt.Sprintf("%v a token with prediction, %v without", perOn.Round(time.Microsecond), perOff.Round(time.Microsecond))
	gain := float64(perOff-perOn) / float64(max(perOff, perOn, 1))
	switch {
	case gain >= gateMargin:
		g.kept, g.reason = true, fmt.Sprintf("prediction pays: %s", what)
	case gain <= -gateMargin:
		g.kept, g.reason = false, fmt.Sprintf("prediction does not pay: %s", what)
	case on.bytes < off.bytes:
		g.kept, g.reason = true, fmt.Sprintf("prediction costs nothing: %s, and it reads no more", what)
	default:
		g.kept, g.reason = false, fmt.Sprintf("prediction gains nothing: %s", what)
	}
}
