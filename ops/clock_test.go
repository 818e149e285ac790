package ops

import (
	"testing"
	"time"
)

// TestClock: every nanosecond of a step is booked once, under what was entered last; what lies between steps is not booked.
func TestClock(t *testing.T) {
	var c Clock
	const pause = 2 * time.Millisecond
	begin := time.Now()
	c.Start()
	func() {
		defer c.Enter(c.Enter(PartDense))
		time.Sleep(pause)
		func() {
			defer c.Enter(c.Enter(PartWaiting))
			time.Sleep(2 * pause)
		}()
	}()
	if last := c.Last(); last >= 2*pause {
		t.Errorf("the part left last took %v: that is the one within it", last)
	}
	c.Stop()
	whole := time.Since(begin)
	time.Sleep(10 * pause)
	c.Start()
	c.Stop()

	spent := c.Spent()
	if spent[PartDense] < pause || spent[PartWaiting] < 2*pause {
		t.Errorf("%v of dense products, %v of waiting; slept %v and %v", spent[PartDense], spent[PartWaiting], pause, 2*pause)
	}
	var sum time.Duration
	for p, d := range spent {
		sum += d
		if Part(p) != PartDense && Part(p) != PartWaiting && Part(p) != PartOther && d != 0 {
			t.Errorf("%v of %v, which nobody entered", d, Part(p))
		}
	}
	if sum > whole+pause {
		t.Errorf("%v are booked, and the step took %v", sum, whole)
	}
	c.Rebook(spent[PartDense], PartDense, PartRouter)
	if after := c.Spent(); after[PartDense] != 0 || after[PartRouter] != spent[PartDense] {
		t.Errorf("rebooked: %v of dense products, %v of the router", after[PartDense], after[PartRouter])
	}
}

func TestNilClock(t *testing.T) {
	var c *Clock
	c.Start()
	defer c.Enter(c.Enter(PartDense))
	c.Rebook(time.Second, PartDense, PartRouter)
	c.Stop()
	if c.Spent() != [Parts]time.Duration{} || c.Last() != 0 {
		t.Error("a clock that is none has booked something")
	}
}

func TestPartNames(t *testing.T) {
	seen := map[string]bool{}
	for p := range Parts {
		if p.String() == "" || seen[p.String()] {
			t.Errorf("part %d has the name %q", uint8(p), p)
		}
		seen[p.String()] = true
	}
	if Parts.String() != "part 9" {
		t.Errorf("what is no part is called %q", Parts)
	}
}
