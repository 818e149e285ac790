package device

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/coli-moe/coli/device/internal/vk"
)

// FaultEnv names the environment variable that injects failures: "alloc=3", "submit=2,lost=7".
const FaultEnv = "COLI_VK_FAULT"

// Faults are failures to inject, for tests. Each number counts from 1; 0 injects none.
type Faults struct {
	Alloc  int // this allocation fails for lack of memory
	Submit int // this submission fails for lack of memory
	Wait   int // this wait runs out
	Frame  int // recording this frame fails for lack of memory
	Lost   int // the device is lost at this submission
}

// ErrFault is in errors that a fault has caused.
var ErrFault = errors.New("injected by " + FaultEnv)

// fault is one kind's countdown.
type fault struct{ left atomic.Int64 }

// hit counts one event and says whether it is the one that fails.
func (f *fault) hit() bool { return f.left.Load() > 0 && f.left.Add(-1) == 0 }

type faultState struct{ alloc, submit, wait, frame, lost *fault }

func newFaults(f *Faults) (faultState, error) {
	if f == nil {
		f = new(Faults)
		if s := os.Getenv(FaultEnv); s != "" {
			var err error
			if *f, err = ParseFaults(s); err != nil {
				return faultState{}, fmt.Errorf("%s: %w", FaultEnv, err)
			}
		}
	}
	count := func(n int) *fault {
		x := new(fault)
		x.left.Store(int64(n))
		return x
	}
	return faultState{count(f.Alloc), count(f.Submit), count(f.Wait), count(f.Frame), count(f.Lost)}, nil
}

// ParseFaults reads what the environment variable holds.
func ParseFaults(s string) (Faults, error) {
	var f Faults
	fields := map[string]*int{"alloc": &f.Alloc, "submit": &f.Submit, "wait": &f.Wait, "frame": &f.Frame, "lost": &f.Lost}
	for part := range strings.SplitSeq(s, ",") {
		name, number, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(number)
		if fields[name] == nil || err != nil || n < 1 {
			return Faults{}, fmt.Errorf("%q is no fault: alloc, submit, wait, frame or lost, and its number, as in lost=7", part)
		}
		*fields[name] = n
	}
	return f, nil
}

// injected is a failure of Vulkan that did not happen.
func injected(r vk.Result) error { return fmt.Errorf("%w: %w", r, ErrFault) }
