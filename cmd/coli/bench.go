package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/ledger"
)

const benchLong = `Measure this machine with coli on it: whole models, and the drive, the kernels and the actors below them. Each experiment compares the
arms of a matrix: flags that say so take lists (1,2,4) and ranges (512-2048+512, 1-8*2), and every combination is measured, five times,
interleaved. Standard output has the result and nothing else.

How good a model's answers are is another question, which coli perplexity measures.`

const benchExample = `  coli bench decode
  coli bench decode -m model.gguf -t 1-8*2 -r 3
  coli bench stream -m model.coli --ram 25%,50%,75% --plot plots/
  coli bench io -o json > drive.json
  coli bench balance -m model.coli --resume balance/   # go on with it after Ctrl+C
  coli bench kernels -o bench > new.txt; benchstat old.txt new.txt`

// newBenchCmd returns `coli bench`, the parent of the experiments.
func newBenchCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "bench EXPERIMENT",
		Short:                 "Measure models and machine: experiments with tables and plots",
		Long:                  benchLong,
		Example:               benchExample,
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
	}
	cmd.AddCommand(newBenchDecodeCmd(), newBenchPrefillCmd(), newBenchStreamCmd(), newBenchBalanceCmd())
	cmd.AddCommand(newBenchIOCmd(), newBenchKernelsCmd(), newBenchMailboxCmd())
	cmd.AddCommand(newPlotCmd())
	return cmd
}

// experimentCmd describes a subcommand of coli bench.
type experimentCmd struct {
	name, short, long, example string
	states                     []bench.State // that --state may take, the default first; with none there is no such flag
	define                     func(*cobra.Command)
	// build turns flags into an experiment. An error about what was asked for is a usageError or a bench.SettingError.
	build func(context.Context, *benchRun) (bench.Experiment, error)
}

// benchRun is an experiment on its way: what the flags that all of them share say.
type benchRun struct {
	cmd      *cobra.Command
	reps     int
	noWarmup bool
	seed     uint64
	state    bench.State
	format   bench.Format
	resume   string
	quiet    bool
	verbose  bool

	observers  []observer
	bar        *benchBar          // nil if none is drawn
	conclusion []string           // of a bench.Concluder
	cancel     context.CancelFunc // ends the experiment as Ctrl+C does
}

// observer looks at an experiment while it is carried out. Its methods are called by one goroutine.
type observer interface {
	flags(*pflag.FlagSet)
	wanted() bool // its flags ask for it; nothing of what follows is called otherwise
	// start is called before the first arm is opened.
	start(context.Context, *benchRun) error
	event(bench.Event) // see openModel
	// stop is called after the last arm was closed, with what there is of records.
	stop([]bench.Record) error
	measures() bool // it wants models to be loaded with their actors' times measured
	screen() bool   // it draws on the terminal, so that nobody else may
}

// newObservers returns those that every experiment has. They are stopped from the last to the first, so the view, which has to leave the
// terminal before anyone else writes there, is the last.
func newObservers() []observer { return []observer{&metricsServer{}, &plotter{}, &watcher{}} }

// measure says whether models are to be loaded with engine.Options.Measure: someone looks at what it gives.
func (b *benchRun) measure() bool {
	for _, o := range b.observers {
		if o.wanted() && o.measures() {
			return true
		}
	}
	return false
}

// say tells the user a line, unless --quiet is set.
func (b *benchRun) say(line string) {
	if b.quiet {
		return
	}
	if b.bar != nil {
		b.bar.clear() // the line is its
	}
	note(b.cmd.ErrOrStderr(), "%s", line)
}

// openModel is the model of an open arm, nil if the experiment has none: runs with one have a method Model.
func openModel(r bench.Run) *engine.Model {
	if r, ok := r.(interface{ Model() *engine.Model }); ok {
		return r.Model()
	}
	return nil
}

// newExperimentCmd returns the subcommand of an experiment.
func newExperimentCmd(x experimentCmd) *cobra.Command {
	b := &benchRun{format: bench.Markdown, observers: newObservers()}
	cmd := &cobra.Command{
		Use:     x.name,
		Short:   x.short,
		Long:    x.long,
		Example: x.example,
		Args:    noWords("all that coli bench " + x.name + " needs has a flag"),
	}
	b.cmd = cmd
	if x.define != nil {
		x.define(cmd)
	}
	group(cmd, "Measurement", func(f *pflag.FlagSet) {
		f.IntVarP(&b.reps, "reps", "r", 5, "repetitions of each arm")
		f.BoolVar(&b.noWarmup, "no-warmup", false, "measure arms as they are opened")
		if len(x.states) > 0 {
			b.state = x.states[0]
			f.Var(&stateFlag{&b.state, x.states}, "state", "`STATE` of caches when a repetition begins: "+join(x.states))
		}
		f.Uint64Var(&b.seed, "seed", 0, "seed of what is drawn: tokens, offsets; every arm draws the same")
		f.StringVar(&b.resume, "resume", "", "keep samples in the folder `DIR`, and go on with those that are there")
	})
	group(cmd, "Output", func(f *pflag.FlagSet) {
		f.VarP((*formatsFlag)(&b.format), "output-format", "o", "`FORMAT` of the result: "+join(bench.Formats())+"; bench is for benchstat")
		for _, o := range b.observers {
			o.flags(f)
		}
		f.BoolVar(&b.quiet, "quiet", false, "nothing on standard error but errors")
		f.BoolVar(&b.verbose, "verbose", false, "lines on standard error: each repetition, what the columns are")
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return b.run(x.build) }
	return cmd
}

// run builds an experiment, carries it out and writes what came of it.
func (b *benchRun) run(build func(context.Context, *benchRun) (bench.Experiment, error)) error {
	if err := b.check(); err != nil {
		return usageError{err}
	}
	signal.Ignore(syscall.SIGPIPE) // a reader that has gone is an error of writing then, and what an experiment has made is removed
	ctx, stop := endable(b.cmd.Context())
	defer stop()
	ctx, b.cancel = context.WithCancel(ctx)
	defer b.cancel()
	e, err := build(ctx, b)
	if setting := (*bench.SettingError)(nil); errors.As(err, &setting) {
		return usageError{err}
	} else if err != nil {
		return err
	}
	var files []string
	if r, ok := e.(bench.Reader); ok {
		files = r.Files()
	}
	o := bench.Options{
		Reps: b.reps, NoWarmup: b.noWarmup, State: b.state, Seed: b.seed, Memory: benchMemory(), Dir: b.resume, Env: bench.Environment(files),
	}
	records, err := b.execute(ctx, e, o)
	if len(records) > 0 {
		var out bytes.Buffer
		if err := bench.Write(&out, b.format, e.Metrics(), records); err != nil {
			return err
		}
		if _, failed := b.cmd.OutOrStdout().Write(out.Bytes()); failed != nil {
			return errors.Join(err, b.outputError(failed))
		}
		if b.verbose {
			b.legend(e.Metrics(), records)
		}
	}
	if err == nil {
		for _, line := range b.conclusion {
			b.say(line)
		}
	}
	if errors.Is(err, context.Canceled) {
		b.say(b.interrupted(records))
	}
	return err
}

// legend says what the columns of a table of records are.
func (b *benchRun) legend(metrics []bench.Metric, records []bench.Record) {
	for _, m := range metrics {
		if m.Table && slices.ContainsFunc(records, func(r bench.Record) bool { _, ok := r.Metrics[m.Name]; return ok }) {
			b.say(m.Legend())
		}
	}
}

func (b *benchRun) check() error {
	switch {
	case b.reps < 1:
		return fmt.Errorf("--reps %d: want 1 or more", b.reps)
	case b.quiet && b.verbose:
		return errors.New("--quiet and --verbose contradict each other")
	}
	return nil
}

// execute carries out an experiment under the eyes of its observers.
func (b *benchRun) execute(ctx context.Context, e bench.Experiment, o bench.Options) (records []bench.Record, err error) {
	watch := []func(bench.Event){b.eventLine}
	screen := b.quiet
	for _, ob := range b.observers {
		if !ob.wanted() {
			continue
		}
		if err := ob.start(ctx, b); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, ob.stop(records)) }()
		watch, screen = append(watch, ob.event), screen || ob.screen()
	}
	if !screen && term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
		b.bar = newBenchBar(os.Stderr)
		defer b.bar.clear()
		watch = append(watch, b.bar.event)
	}
	o.Watch = func(e bench.Event) {
		for _, w := range watch {
			w(e)
		}
	}
	records, err = bench.Execute(ctx, e, o)
	if c, ok := e.(bench.Concluder); ok {
		b.conclusion = c.Conclude(records)
	}
	return records, err
}

// eventLine says with --verbose what a repetition measured, and always what is left out.
func (b *benchRun) eventLine(e bench.Event) {
	switch {
	case e.Phase == bench.Skipped:
		b.say(fmt.Sprintf("%s: %v", e.Arm, e.Err))
	case e.Phase == bench.Measured && b.verbose:
		b.say(fmt.Sprintf("%d/%d %s, repetition %d: %s", e.Done, e.Total, e.Arm, e.Rep+1, strings.Join(e.Figures, ", ")))
	}
}

// interrupted says what becomes of an experiment that was not carried to its end.
func (b *benchRun) interrupted(records []bench.Record) string {
	if b.resume == "" {
		return "interrupted; with --resume DIR an experiment goes on where it stopped"
	}
	n := 0
	for _, r := range records {
		n += r.Reps
	}
	return fmt.Sprintf("interrupted; what was measured (%d of the repetitions) is in %s, and the same command goes on from there", n, b.resume)
}

// outputError is the error of writing the result. A reader that has seen enough is none.
func (b *benchRun) outputError(err error) error {
	switch {
	case errors.Is(err, syscall.EPIPE):
		return exitError(exitPipe)
	case b.resume != "":
		return fmt.Errorf("writing the result: %w; the same command writes it again from %s", err, b.resume)
	}
	return fmt.Errorf("writing the result: %w", err)
}

// benchMemory is what arms may hold together: half of what is free, so that none of them waits for memory.
func benchMemory() int64 {
	l, err := ledger.New(ledger.System())
	if err != nil {
		return 0
	}
	free, _ := l.Free()
	return free / 2
}

// benchBar is the progress of an experiment, on one line.
type benchBar struct{ bar *progressbar.ProgressBar }

func newBenchBar(w io.Writer) *benchBar {
	return &benchBar{progressbar.NewOptions(1, progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(20), progressbar.OptionShowCount(),
		progressbar.OptionSetElapsedTime(true), progressbar.OptionClearOnFinish())}
}

// event draws the bar with what is going on; errors are ignored, since a bar that cannot be drawn is no reason to stop.
func (b *benchBar) event(e bench.Event) {
	if e.Phase >= bench.Measured {
		b.clear() // it is drawn again when more is done
		return
	}
	if b.bar.GetMax() != e.Total {
		b.bar.ChangeMax(e.Total)
	}
	b.bar.Set(e.Done) //nolint:errcheck
	b.bar.Describe(fmt.Sprintf("%.50s: %s", e.Arm.String(), e.Phase))
}

func (b *benchBar) clear() { b.bar.Clear() } //nolint:errcheck

// stateFlag is a bench.State of those that an experiment knows.
type stateFlag struct {
	state *bench.State
	known []bench.State
}

func (s *stateFlag) Set(text string) error {
	return choose(s.state, text, s.known)
}

func (s *stateFlag) String() string { return string(*s.state) }

// Type is what the help calls the value.
func (s *stateFlag) Type() string { return "state" }

// formatsFlag is a bench.Format.
type formatsFlag bench.Format

func (f *formatsFlag) Set(text string) error {
	return choose((*bench.Format)(f), text, bench.Formats())
}

func (f *formatsFlag) String() string { return string(*f) }

// Type is what the help calls the value.
func (f *formatsFlag) Type() string { return "format" }

// choose sets a value to the one of some words that text is.
func choose[T ~string](value *T, text string, words []T) error {
	for _, w := range words {
		if string(w) == text {
			*value = w
			return nil
		}
	}
	return fmt.Errorf("want one of %s", strings.ReplaceAll(join(words), "|", ", "))
}

// join is how the help lists words.
func join[T ~string](words []T) string {
	var all []string
	for _, w := range words {
		all = append(all, string(w))
	}
	return strings.Join(all, "|")
}

// intsFlag is a list of the matrix: see bench.ParseInts.
type intsFlag []int

func (l *intsFlag) Set(text string) (err error) {
	*l, err = bench.ParseInts(text)
	return err
}

func (l *intsFlag) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int(*l)), " ", ","), "[]")
}

// Type is what the help calls the value.
func (l *intsFlag) Type() string { return "list" }

// wordsFlag is a list of words of the matrix: see bench.ParseList. With parse, each is checked.
type wordsFlag struct {
	words []string
	parse func(word string) error
}

func (l *wordsFlag) Set(text string) error {
	words, err := bench.ParseList(text)
	for _, w := range words {
		if err == nil && l.parse != nil {
			err = l.parse(w)
		}
	}
	l.words = words
	return err
}

func (l *wordsFlag) String() string { return strings.Join(l.words, ",") }

// Type is what the help calls the value.
func (l *wordsFlag) Type() string { return "list" }

// sizesFlag is a list of sizes of the matrix: see bench.ParseSizes. Of what a percentage is one, the experiment knows.
type sizesFlag []string

func (l *sizesFlag) Set(text string) (err error) {
	*l, err = bench.ParseSizes(text)
	for _, s := range *l {
		if err == nil {
			_, err = ledger.ParseSize(s, 1<<40)
		}
	}
	return err
}

func (l *sizesFlag) String() string { return strings.Join(*l, ",") }

// Type is what the help calls the value.
func (l *sizesFlag) Type() string { return "list" }
