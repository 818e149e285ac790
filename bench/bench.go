// Package bench is the harness of coli's experiments, and the experiments: a matrix of arms, repetitions interleaved over the arms, records
// that say on what machine they were made and in what state, files that an interrupted run goes on from, tables and plots of them.
//
// What does not live here: command-line flags (cmd/coli) and how good a model's answers are, which is `coli perplexity`.
package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/coli-moe/coli/internal/loghist"
)

// Experiment is a set of arms that are compared with each other.
type Experiment interface {
	Name() string      // "decode": the subcommand
	Metrics() []Metric // what its samples hold, in the order of a table's columns
	Arms() []Arm       // every cell of the matrix, in the order of its settings
}

// Metric is one figure of a sample.
type Metric struct {
	Name   string // "tok/s", the key in Sample.Values
	Unit   string // for benchstat and axes: "tok/s", "GB/s", "ns/op", "%"
	Help   string // one line
	Better int    // 1: more is better, -1: less is, 0: neither
	Table  bool   // whether the table has a column of it; a record has all
	Digits int    // after the point, in a table
}

// Param is a setting of an arm.
type Param struct {
	Name  string `json:"name"`  // the flag's: "ram"
	Value string `json:"value"` // as a user would give it: "25%"
}

// Arm is a cell of the matrix.
type Arm struct {
	Test   string  // "tg128 @ d512": what is done
	Params []Param // how: every setting that may vary, in the order of the columns
	// Bytes of memory that an open arm holds beyond the mapped weights. Arms that fit together stay open from one repetition to the next;
	// otherwise an arm is opened, and warmed up, anew for each.
	Bytes int64
	// Fresh asks for the arm to be opened anew for each repetition whatever fits: cold caches.
	Fresh bool
	// Open may say, by an error that wraps ErrSkip, that there is no measuring the arm here; the others are measured then.
	Open func(context.Context) (Run, error)
	// Resumed is told of each sample of the arm that an earlier run has kept, before any arm is opened; its error ends the run. It may be nil.
	Resumed func(rep int, s *Sample) error
}

// ErrSkip marks an error that says why an arm cannot be measured on this machine. It is part of the arm's record.
var ErrSkip = errors.New("skipped")

// SettingError is the error of an experiment whose settings ask for what cannot be measured, on whatever machine.
type SettingError struct{ Err error }

func (e *SettingError) Error() string { return e.Err.Error() }

func (e *SettingError) Unwrap() error { return e.Err }

// badSetting is fmt.Errorf for a SettingError.
func badSetting(format string, args ...any) error { return &SettingError{fmt.Errorf(format, args...)} }

// Reader is an experiment that reads files: a model's, or those a drive is measured with. They are part of every record, a run is
// resumed with the same ones only, and state Cold evicts them from the page cache.
type Reader interface {
	Files() []string
}

// Describer is an experiment that knows more about the machine that it measures than Environment does: which GPU is used.
type Describer interface {
	Describe(*Env)
}

// Concluder is an experiment that says what its records come to. It is called once, with those of all arms; it may add metrics to them, and
// returns lines for the user.
type Concluder interface {
	Conclude([]Record) []string
}

// Run is an open arm. Its methods are called by one goroutine, and never while another arm's are.
type Run interface {
	// Warm makes the arm ready to be measured; called once.
	Warm(context.Context) error
	// Measure makes repetition rep, from 0 on. What it does depends on rep and the experiment's seed alone, so that every arm does the same.
	Measure(ctx context.Context, rep int) (Sample, error)
	Close() error
}

// Sample is what a repetition measured.
type Sample struct {
	Values     map[string]float64      `json:"values"` // by Metric.Name
	Histograms map[string]loghist.Hist `json:"histograms,omitempty"`
	// Answer is a digest of what was computed, of experiments whose arms have to agree on it.
	Answer string `json:"answer,omitempty"`
	// Parts are the seconds a token (or what else Test counts) took, by what they were spent on; they sum up to the whole.
	Parts []Part `json:"parts,omitempty"`
	// Stayed is how many bytes of the files could not be evicted from the page cache before, in state Cold. Execute sets it.
	Stayed int64 `json:"stayed,omitempty"`
	// Notes are lines about the repetition: what a policy decided, and why.
	Notes []string `json:"notes,omitempty"`
}

// Part is what a share of the time was spent on.
type Part struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}
