package balancer

import (
	"slices"

	"github.com/coli-moe/coli/messages"
)

// expectation is what a step takes under the setting in force: computing, and waiting for each byte read. It lags behind the steps, so
// that a change shows, and no single step moves it far.
type expectation struct {
	n      int     // steps seen; 0: nothing is expected yet
	rest   float64 // nanoseconds of a step without waiting
	waited float64 // nanoseconds of a step
	bytes  float64 // of a step
	ratio  [alarmMost]float64
	filled int // ratios in it, the newest overwriting the oldest
}

// begin takes an arm's means for what is expected.
func (e *expectation) begin(a *arm) {
	n := float64(max(a.n, 1))
	mean, _ := a.perStep()
	waited := min(a.waited/n, mean)
	*e = expectation{n: a.n, waited: waited, bytes: a.bytes / n, rest: mean - waited}
}

// perStep is what a step takes.
func (e *expectation) perStep() float64 { return e.rest + e.waited }

// add takes a step. It returns how many times longer than expected steps take, if that has been off for long enough; 0 otherwise.
func (e *expectation) add(t *messages.Took) (off float64) {
	nanos, waited := float64(t.Nanos), float64(t.Waited)
	expected := e.perStep()
	if e.bytes > 0 {
		expected = e.rest + e.waited*min(float64(t.Bytes)/e.bytes, farOff)
	}
	ratio := nanos / max(expected, 1)
	e.n++
	if e.n > alarmSteps {
		e.ratio[e.filled%alarmMost] = ratio
		e.filled++
	}
	if ratio > farOff { // a hang of the drive must not be what is expected from then on
		nanos, waited = nanos*farOff/ratio, waited*farOff/ratio
	}
	weight := 1 / float64(min(e.n, forget))
	e.rest += weight * (nanos - waited - e.rest)
	e.waited += weight * (waited - e.waited)
	e.bytes += weight * (float64(t.Bytes) - e.bytes)
	n := int(max(alarmSteps, min(float64(alarmTime)/max(e.perStep(), 1), alarmMost)))
	if e.filled < n {
		return 0
	}
	var newest [alarmMost]float64
	for i := range n {
		newest[i] = e.ratio[(e.filled-1-i)%alarmMost]
	}
	slices.Sort(newest[:n])
	if m := newest[n/2]; m > alarm || m < 1/alarm {
		return m
	}
	return 0
}
