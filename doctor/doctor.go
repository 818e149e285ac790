// Package doctor looks a machine over for what makes coli fast, slow or stop: processor, memory, drive, permission to probe, devices. Each
// check is a rule over a view of the system (System), so that the rules can be tested with systems that are not at hand; Machine is the
// view of the one it runs on.
//
// What does not live here: printing (cmd/coli), and the decisions themselves, which are made where they belong (packages engine, ledger,
// kernels, device, probe). A check asks there.
package doctor

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/probe"
)

// Status is the answer of a check.
type Status string

// The answers.
const (
	OK      Status = "ok"
	No      Status = "no"      // coli does without, more slowly or not at all: Check.Stops
	Unknown Status = "unknown" // the system does not tell, or was not asked
)

// Check is a question with its answer.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Found  string `json:"found"`          // one line
	Todo   string `json:"todo,omitempty"` // what the user can do, one line; "" for nothing
	Stops  bool   `json:"stops_coli"`     // with No: coli cannot run
}

// System is what the rules look at. Root is nil where the system has no /proc and /sys; a function that is nil is of something that the
// system does not tell.
type System struct {
	OS, Arch string
	Root     fs.FS  // "/"
	Model    string // path of the model that was asked about; "" for none

	Features []string // of the processor, those that kernels use
	ISA      string   // of the kernels chosen
	ISALimit string   // COLI_CPU

	Processors func() ([]int, error)      // that the process may run on
	Threads    func() (n int, why string) // chosen
	MemoryRate func(ctx context.Context, threads int) (bytesPerSecond float64, err error)
	CacheDir   func() (string, error)               // where the built-in model and the history go; it need not be there yet
	Writable   func(dir string) error               // whether files can be made there, or it can be made
	Free       func(dir string) (n int64, ok bool)  // bytes of the file system that a user may take
	Files      func(model string) ([]string, error) // that a model is made of
	Drive      func(path string) (probe.Location, error)
	DriveRate  func(ctx context.Context, files []string, size int64, readers int) (float64, error)
	Locked     func() (bytes uint64, err error) // the most memory that may be locked
	OpenFiles  func() (n uint64, err error)     // the most files that may be open
	Probe      func() []probe.Finding
	Devices    func() ([]device.Info, error)
}

// Options of Run.
type Options struct {
	Quick bool // measure no rates
}

// Run checks everything, in the order of a report.
func Run(ctx context.Context, s *System, o Options) []Check {
	var out []Check
	for _, check := range []func() []Check{
		s.processor, s.cores, s.memory, s.limits, s.swap, s.hugePages,
		func() []Check { return s.memoryRate(ctx, o) },
		s.files, s.drive,
		func() []Check { return s.driveRate(ctx, o) },
		s.rlimits, s.probing, s.devices,
	} {
		out = append(out, check()...)
	}
	return out
}

// Stopped says whether some check found what stops coli from running.
func Stopped(checks []Check) bool {
	for _, c := range checks {
		if c.Stops && c.Status == No {
			return true
		}
	}
	return false
}

func ok(name, format string, args ...any) Check {
	return Check{Name: name, Status: OK, Found: fmt.Sprintf(format, args...)}
}

func no(name, todo, format string, args ...any) Check {
	return Check{Name: name, Status: No, Found: fmt.Sprintf(format, args...), Todo: todo}
}

func unknown(name, format string, args ...any) Check {
	return Check{Name: name, Status: Unknown, Found: fmt.Sprintf(format, args...)}
}

// stops marks an answer that, if it is no, leaves coli unable to run.
func (c Check) stops() Check {
	c.Stops = c.Status == No
	return c
}
