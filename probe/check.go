package probe

import (
	"os"
	"strings"
)

// Status is the answer to whether something is there.
type Status uint8

// The answers.
const (
	Unknown Status = iota // it could not be found out
	Yes
	No
)

func (s Status) String() string {
	switch s {
	case Yes:
		return "ok"
	case No:
		return "no"
	}
	return "unknown"
}

// Finding is something the probe needs.
type Finding struct {
	Name   string // "kernel type information (BTF)"
	Status Status
	Detail string // what was found, one line
	Todo   string // what the user can do, one line; empty if there is nothing to do
}

// Check finds out whether block I/O can be measured: a finding for each thing that the probe needs, in the order of dependence, and at last
// whether it runs. It opens a probe for that, some 100 ms, and closes it.
func Check() []Finding { return check() }

// setcap is the command that lets every user's run of the program measure.
func setcap() string {
	path, err := os.Executable()
	if err != nil {
		path = "PROGRAM"
	}
	return "sudo setcap cap_bpf,cap_perfmon+ep " + path
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
