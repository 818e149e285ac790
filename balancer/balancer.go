// Package balancer decides how experts are read from disk: how many reads at a time, how many experts are predicted for a layer, and how
// many layers ahead. It is told what each decode step took and what the drive did, and knows nothing else of the machine.
//
// machine.go is the decision, pure: no clock, no goroutine. trial.go compares two settings. actor.go is the shell that talks to the
// others. What the settings do is elsewhere: readers in package prefetcher, predictions in packages model and tier.
//
// # How it decides
//
// It searches from a derived start, one setting at a time, by trials: the candidate and the setting in force take turns of some decode
// steps (A BB AA BB A, so that a steady drift favours neither), and the faster by time per token wins, if it is by more than the trial's own
// error, and by 2 % where it reads or computes more. A candidate that is clearly slower is given up after a few steps; one whose gain
// cannot reach that any more, after a turn or two. What the figures say decides what is tried first and what is not tried at all: where the
// engine hardly waits for the disk there is nothing to gain by reading otherwise.
//
// When a round of trials has changed nothing, it waits, twice as long each time, and tries what it has not tried for the longest time. It
// also waits for so long that what the last trial lost is 2 % of the time. A time per token that leaves the one expected for as many bytes
// read by more than a quarter begins the search anew.
//
// Times are compared as they are. A policy changes how many bytes are read (a wrong prediction is read too, and takes the place of
// something in memory), so dividing them out would hide what is to be found; what the routing of a few tokens adds is left to the turns,
// and to the slowest steps not counting.
package balancer

import (
	"fmt"
	"time"

	"github.com/coli-moe/coli/messages"
)

// Range of a setting, ends included. It is fixed where they are equal.
type Range struct{ Min, Max int }

func (r Range) fixed() bool { return r.Max <= r.Min }

func (r Range) clamp(n int) int { return max(r.Min, min(n, r.Max)) }

// Config says what may be decided.
type Config struct {
	Start                   messages.Policy // the first policy, brought into the ranges
	Why                     string          // where it comes from, in words
	Readers, Depth, Horizon Range
	TopK                    int // experts of a token in a layer: the unit of Depth
}

// Fixed returns the configuration of a policy that stands.
func Fixed(readers, depth, horizon int) Config {
	return Config{
		Start:   messages.Policy{Readers: readers, Depth: depth, Horizon: horizon},
		Readers: Range{readers, readers}, Depth: Range{depth, depth}, Horizon: Range{horizon, horizon},
	}
}

// Fixed says whether nothing is left to decide.
func (c *Config) Fixed() bool {
	return c.Readers.fixed() && c.Depth.fixed() && (c.Horizon.fixed() || c.Depth.Max == 0)
}

// Decision is what was decided, and why.
type Decision struct {
	At     time.Time       // set by the actor
	Token  uint64          // decode steps before it
	Policy messages.Policy // from then on
	Reason string          // one line with its figures
}

// Describe says in words what a policy is.
func Describe(p messages.Policy) string {
	readers := fmt.Sprintf("reads at a time: %d", p.Readers)
	switch {
	case p.Depth == 0:
		return readers + ", nothing predicted"
	case p.Horizon == 1:
		return fmt.Sprintf("%s, predicted: %d experts of the next layer", readers, p.Depth)
	default:
		return fmt.Sprintf("%s, predicted: %d experts of each of the next %d layers", readers, p.Depth, p.Horizon)
	}
}
