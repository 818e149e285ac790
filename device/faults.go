package device

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// FaultEnv names the environment variable that injects failures: "alloc=3", "submit=2,lost=7".
const FaultEnv = "COLI_VK_FAULT"

// Faults are failures to inject, for tests. Each number counts from 1; 0 injects none. The device's own transfers count too.
type Faults struct {
	Alloc  int // this Alloc fails for lack of memory
	Block  int // this block of memory is refused by the driver; another kind of memory, or a smaller block, may do
	Frame  int // recording this frame fails for lack of memory
	Submit int // this submission fails for lack of memory
	Wait   int // this wait for a submission runs out
	Lost   int // the device is lost at this submission
}

// ErrFault is in errors that a fault has caused.
var ErrFault = errors.New("injected fault")

// countdown fails one event.
type countdown struct{ left atomic.Int64 }

// hit counts an event and says whether it is the one that fails.
func (c *countdown) hit() bool { return c.left.Load() > 0 && c.left.Add(-1) == 0 }

// faults are the failures still to come.
type faults struct{ alloc, block, frame, submit, wait, lost countdown }

func (f *faults) init(given *Faults) error {
	switch env := os.Getenv(FaultEnv); {
	case given != nil:
		f.set(*given)
	case env != "":
		parsed, err := ParseFaults(env)
		if err != nil {
			return fmt.Errorf("%s: %w", FaultEnv, err)
		}
		f.set(parsed)
	}
	return nil
}

func (f *faults) set(n Faults) {
	for c, n := range map[*countdown]int{
		&f.alloc: n.Alloc, &f.block: n.Block, &f.frame: n.Frame, &f.submit: n.Submit, &f.wait: n.Wait, &f.lost: n.Lost,
	} {
		c.left.Store(int64(n))
	}
}

// ParseFaults reads what the environment variable holds.
func ParseFaults(s string) (Faults, error) {
	var f Faults
	fields := map[string]*int{
		"alloc": &f.Alloc, "block": &f.Block, "frame": &f.Frame, "submit": &f.Submit, "wait": &f.Wait, "lost": &f.Lost,
	}
	for part := range strings.SplitSeq(s, ",") {
		name, number, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(number)
		if fields[name] == nil || err != nil || n < 1 {
			return Faults{}, fmt.Errorf("%q is no fault: alloc, block, frame, submit, wait or lost, and its number, as in lost=7", part)
		}
		*fields[name] = n
	}
	return f, nil
}
