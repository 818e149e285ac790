package balancer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/coli-moe/coli/messages"
)

const (
	minTurn  = 8                     // decode steps of a turn, at least,
	maxTurn  = 32                    // and at most,
	turnTime = 80 * time.Millisecond // so that it takes about this long: what a scheduler does within it evens out
	maxSteps = 4 * maxTurn           // an arm remembers

	margin  = 0.02 // of the time: what a setting that costs more must gain; less is noise
	obvious = 1.3  // no drift makes one setting so many times slower than the other
)

// turns of a trial: false is the setting in force, whose first turn came before the trial.
var turns = [...]bool{true, true, false, false, true, true, false}

// arm is what steps made under one setting took.
type arm struct {
	n                                 int
	nanos                             [maxSteps]float64
	total, waited, reading, readNanos float64 // summed
	reads, bytes                      float64
}

func (a *arm) add(t *messages.Took) {
	if a.n == maxSteps {
		return
	}
	a.nanos[a.n] = float64(t.Nanos)
	a.n++
	a.total += float64(t.Nanos)
	a.waited += float64(t.Waited)
	a.reading += float64(t.Reading)
	a.readNanos += float64(t.ReadNanos)
	a.reads += float64(t.Reads)
	a.bytes += float64(t.Bytes)
}

func (a *arm) reset() { *a = arm{} }

// perStep is the mean of the steps without the slowest eighth, since hiccups of the machine must not decide, and its standard error.
func (a *arm) perStep() (mean, err float64) {
	if a.n == 0 {
		return 0, 0
	}
	sorted := a.nanos
	s := sorted[:a.n]
	slices.Sort(s)
	if a.n >= 4 {
		s = s[:a.n-(a.n+7)/8]
	}
	for _, v := range s {
		mean += v
	}
	mean /= float64(len(s))
	for _, v := range s {
		err += (v - mean) * (v - mean)
	}
	// Of neighbouring steps one is not news: hence not 1/n.
	return mean, math.Sqrt(1.5 * err / float64(len(s)*max(len(s)-1, 1)))
}

// fastest and slowest are the shortest and the longest step.
func (a *arm) fastest() float64 { return slices.Min(a.nanos[:a.n]) }
func (a *arm) slowest() float64 { return slices.Max(a.nanos[:a.n]) }

// idle is the share of the time in which the drive had nothing to do, waiting the one in which the engine waited for it.
func (a *arm) idle() float64    { return 1 - min(a.reading/max(a.total, 1), 1) }
func (a *arm) waiting() float64 { return min(a.waited/max(a.total, 1), 1) }

// atOnce is how many reads were in flight while there was one.
func (a *arm) atOnce() float64 { return a.readNanos / max(a.reading, 1) }

// trial compares a candidate, b, with the setting in force, a.
type trial struct {
	from, to setting
	move     move
	need     float64 // the gain that to must bring
	turn     int
	length   int      // steps of a turn
	before   evidence // of earlier trials of the same
	a, b     arm
}

// evidence is what is known of the gain from one setting to another: its estimate, and the inverse of the estimate's variance.
type evidence struct {
	from, to     setting
	gain, weight float64
}

// surest bounds how well a trial is believed: what the next tokens need is not what the last ones needed.
const surest = 0.007

// setting is what the turn under way is made under.
func (t *trial) setting() setting {
	if turns[t.turn] {
		return t.to
	}
	return t.from
}

type verdict uint8

const (
	undecided verdict = iota
	worse             // or no better
	better
)

// add takes a step of the turn under way, and says when the trial is decided.
func (t *trial) add(m *messages.Took, ended bool) verdict {
	if !turns[t.turn] {
		t.a.add(m)
	} else {
		t.b.add(m)
		a, _ := t.a.perStep()
		if t.b.n >= 3 && t.b.fastest() > obvious*a {
			return worse
		}
		if t.b.n >= 4 && t.b.slowest() < t.a.fastest()/obvious {
			return better
		}
	}
	if !ended {
		return undecided
	}
	t.turn++
	return t.judge(t.turn == len(turns))
}

// gain is the share of the time that the candidate saves.
func (t *trial) gain() (gain, err float64) {
	a, ea := t.a.perStep()
	b, eb := t.b.perStep()
	most := max(a, b, 1)
	return (a - b) / most, max(math.Hypot(ea, eb)/most, surest)
}

// evidence is what is known of the gain after this trial.
func (t *trial) evidence() evidence {
	gain, err := t.gain()
	w := 1 / (err * err)
	sum := t.before.weight + w
	return evidence{t.from, t.to, (t.before.gain*t.before.weight + gain*w) / sum, sum}
}

// judge looks at all turns so far.
func (t *trial) judge(last bool) verdict {
	now, _ := t.gain()
	if limit := 1 - 1/obvious; now <= -limit {
		return worse
	} else if now >= limit && t.b.n >= t.length-1 {
		return better
	}
	known := t.evidence()
	gain, err := known.gain, 1/math.Sqrt(known.weight)
	switch {
	case last && gain >= max(t.need, err):
		return better
	case last, gain+3*err < t.need:
		return worse
	case t.turn < 2 || turns[t.turn-1] == turns[t.turn]: // in the middle of a pair: drift would decide
		return undecided
	case t.turn >= 4 && gain >= max(t.need, margin, 2*err), gain >= max(0.1, 4*err):
		return better
	case gain+2*err < t.need:
		return worse
	default:
		return undecided
	}
}

// words say how the trial ended.
func (t *trial) words(v verdict) string {
	not := ""
	if v == worse {
		not = "not "
	}
	a, _ := t.a.perStep()
	b, _ := t.b.perStep()
	return fmt.Sprintf("%s%s: %s a token instead of %s; the drive was idle %s of the time, the engine waited for it %s",
		not, difference(t.from, t.to), millis(b), millis(a), percent(t.a.idle()), percent(t.a.waiting()))
}

// difference names what differs between two settings.
func difference(from, to setting) string {
	var parts []string
	for _, x := range []struct {
		what     string
		from, to int
	}{{"readers", from.readers, to.readers}, {"predicted experts", from.depth, to.depth}, {"layers ahead", from.horizon, to.horizon}} {
		if x.from != x.to {
			parts = append(parts, fmt.Sprintf("%s %d -> %d", x.what, x.from, x.to))
		}
	}
	return strings.Join(parts, ", ")
}

// millis formats nanoseconds.
func millis(ns float64) string {
	ms := ns / 1e6
	switch {
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	case ms >= 10:
		return fmt.Sprintf("%.1f ms", ms)
	default:
		return fmt.Sprintf("%.2f ms", ms)
	}
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }
