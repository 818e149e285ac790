package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Options say how Execute carries out an experiment.
type Options struct {
	Reps     int    // repetitions of each arm, 1 at least
	NoWarmup bool   // arms are measured as they are opened
	State    State  // what caches hold; empty where they play no part
	Seed     uint64 // the experiment's, for the record
	// Memory is how many bytes open arms may hold together. If all fit, or there is only one, each stays open until its last repetition;
	// otherwise every one is opened anew for each, so that all are treated alike.
	Memory int64
	Dir    string      // where samples are kept for an interrupted run to go on from; "" keeps none
	Env    Env         // of Environment
	Watch  func(Event) // is told what happens, in Execute's goroutine; nil: nobody is
}

// Phase is what happens to an arm.
type Phase int

// The phases, in the order an arm goes through them.
const (
	Opening   Phase = iota
	Warming         // Run.Warm is about to be called
	Measuring       // Run.Measure is
	Measured        // Sample is there
	Skipped         // the arm cannot be measured
	Closing         // Run.Close is about to be called
)

func (p Phase) String() string {
	return [...]string{"opening", "warming up", "measuring", "measured", "skipped", "closing"}[p]
}

// Event is a moment of an experiment.
type Event struct {
	Phase  Phase
	Arm    *Arm
	Run    Run // nil while there is none
	Rep    int
	Sample *Sample // Measured
	Err    error   // Skipped

	Figures []string // Measured: what a table shows of the sample, "tok/s 12.3"

	Done, Total int // repetitions, of all arms
}

// Execute measures every arm of an experiment Options.Reps times. Repetitions are interleaved, A B C and then C B A and so on, so that what
// changes slowly on a machine (heat, other people's work) meets all arms alike.
//
// It returns a record for each arm that was measured at least once, with an error too: what there is by then. With Options.Dir set, another
// call with the same directory goes on from there.
func Execute(ctx context.Context, e Experiment, o Options) ([]Record, error) {
	x := execution{Options: o, experiment: e, metrics: e.Metrics(), arms: e.Arms()}
	if o.Reps < 1 {
		return nil, fmt.Errorf("%d repetitions: want 1 or more", o.Reps)
	}
	if err := x.prepare(); err != nil {
		return nil, err
	}
	err := x.run(ctx)
	if x.journal != nil {
		err = errors.Join(err, x.journal.Close())
	}
	return x.records(), err
}

// execution is one call of Execute.
type execution struct {
	Options
	experiment Experiment
	metrics    []Metric
	arms       []Arm
	files      []File
	journal    *journal // nil without Options.Dir

	keep    bool // arms stay open
	open    []Run
	samples [][]*Sample // by arm and repetition; nil for one that is to be made
	skipped []error     // by arm
	done    int
}

// prepare checks the arms and reads what an earlier run has measured.
func (x *execution) prepare() error {
	if len(x.arms) == 0 {
		return errors.New("there is nothing to measure: the matrix is empty")
	}
	keys := map[string]bool{}
	x.keep = true
	left := x.Memory
	var fresh int64 // only one of these is open at a time
	for i := range x.arms {
		a := &x.arms[i]
		if keys[a.key()] {
			return fmt.Errorf("%s is there twice", a)
		}
		keys[a.key()] = true
		if x.State == Cold || a.Fresh {
			a.Fresh = true
			fresh = max(fresh, a.Bytes)
		} else if x.keep = x.keep && a.Bytes <= left; x.keep {
			left -= a.Bytes
		}
		x.samples = append(x.samples, make([]*Sample, x.Reps))
	}
	x.keep = x.keep && fresh <= left || len(x.arms) == 1
	x.open, x.skipped = make([]Run, len(x.arms)), make([]error, len(x.arms))

	if r, ok := x.experiment.(Reader); ok {
		var err error
		if x.files, err = identify(r.Files()); err != nil {
			return err
		}
	}
	if d, ok := x.experiment.(Describer); ok {
		d.Describe(&x.Env)
	}
	if x.Dir == "" {
		return nil
	}
	var err error
	if x.journal, err = openJournal(x.Dir, x.manifest()); err != nil {
		return err
	}
	for _, l := range x.journal.lines {
		i := slices.IndexFunc(x.arms, func(a Arm) bool { return a.key() == l.Arm })
		if l.Rep >= x.Reps || x.samples[i][l.Rep] != nil {
			continue
		}
		if a := &x.arms[i]; a.Resumed != nil {
			if err := a.Resumed(l.Rep, &l.Sample); err != nil {
				return errors.Join(fmt.Errorf("%s: %w", x.Dir, err), x.journal.Close())
			}
		}
		x.samples[i][l.Rep] = &l.Sample
		x.done++
	}
	return nil
}

func (x *execution) run(ctx context.Context) (err error) {
	defer func() {
		for i := range x.arms {
			err = errors.Join(err, x.close(i))
		}
	}()
	for rep := range x.Reps {
		for n := range x.arms {
			i := n
			if rep%2 == 1 {
				i = len(x.arms) - 1 - n
			}
			if x.samples[i][rep] != nil || x.skipped[i] != nil {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := x.measure(ctx, i, rep); err != nil {
				if ctx.Err() != nil { // whatever it failed with, it was told to
					return ctx.Err()
				}
				return fmt.Errorf("%s: %w", &x.arms[i], err)
			}
		}
	}
	if !slices.Contains(x.skipped, nil) {
		return errors.New("nothing of it can be measured here")
	}
	return nil
}

// measure makes a repetition of arm i.
func (x *execution) measure(ctx context.Context, i, rep int) (err error) {
	a := &x.arms[i]
	var stayed int64
	var notes []string
	if x.State == Cold {
		stayed, notes = evict(x.files)
	}
	if x.open[i] == nil {
		x.tell(Event{Phase: Opening, Arm: a, Rep: rep})
		r, err := a.Open(ctx)
		if errors.Is(err, ErrSkip) {
			x.skipped[i] = err
			x.done += x.Reps - rep
			x.tell(Event{Phase: Skipped, Arm: a, Rep: rep, Err: err})
			return nil
		}
		if err != nil {
			return err
		}
		x.open[i] = r
		if x.warms() {
			x.tell(Event{Phase: Warming, Arm: a, Run: r, Rep: rep})
			if err := r.Warm(ctx); err != nil {
				return fmt.Errorf("warming up: %w", err)
			}
		}
	}
	x.tell(Event{Phase: Measuring, Arm: a, Run: x.open[i], Rep: rep})
	s, err := x.open[i].Measure(ctx, rep)
	if err == nil {
		err = s.check(x.metrics)
	}
	if err != nil {
		return fmt.Errorf("repetition %d: %w", rep+1, err)
	}
	s.Stayed, s.Notes = stayed, append(notes, s.Notes...)
	if x.journal != nil {
		if err := x.journal.append(journalLine{Arm: a.key(), Rep: rep, Sample: s}); err != nil {
			return err
		}
	}
	x.samples[i][rep] = &s
	x.done++
	x.tell(Event{Phase: Measured, Arm: a, Run: x.open[i], Rep: rep, Sample: &s, Figures: s.figures(x.metrics)})
	if !x.kept(i) || !slices.Contains(x.samples[i], nil) {
		return x.close(i)
	}
	return nil
}

func (x *execution) warms() bool { return !x.NoWarmup && x.State != Cold }

func (x *execution) kept(i int) bool { return x.keep && !x.arms[i].Fresh }

func (x *execution) close(i int) error {
	r := x.open[i]
	if r == nil {
		return nil
	}
	x.open[i] = nil
	x.tell(Event{Phase: Closing, Arm: &x.arms[i], Run: r})
	if err := r.Close(); err != nil {
		return fmt.Errorf("%s: closing: %w", &x.arms[i], err)
	}
	return nil
}

func (x *execution) tell(e Event) {
	if x.Watch != nil {
		e.Done, e.Total = x.done, len(x.arms)*x.Reps
		x.Watch(e)
	}
}

// records are of what has been measured.
func (x *execution) records() (all []Record) {
	for i, a := range x.arms {
		r := Record{
			Experiment: x.experiment.Name(), Test: a.Test, Params: append([]Param{}, a.Params...), State: x.State, Warmup: x.warms(), Kept: x.kept(i), Seed: x.Seed,
			Files: x.files, Env: x.Env,
		}
		var samples []Sample
		for _, s := range x.samples[i] {
			if s != nil {
				samples = append(samples, *s)
			}
		}
		if x.skipped[i] != nil {
			r.Skipped = x.skipped[i].Error()
		}
		if len(samples) > 0 || r.Skipped != "" {
			r.add(x.metrics, samples)
			all = append(all, r)
		}
	}
	return all
}
