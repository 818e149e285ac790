package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/engine/sampler"
)

// runOptions are the flags of `coli run`.
type runOptions struct {
	settings
	load                      engine.Options
	place                     placement
	metrics                   metricsServer
	model, prompt, file       string
	system                    string
	ctxSize                   int
	raw, json, quiet, verbose bool
}

const runLong = `Answer a prompt; without one, on a terminal, hold a conversation (/help lists its commands).

PROMPT is one or more words. A lone - is standard input, which is read as well when something is piped in: what is piped follows the words.
The model's chat template is used when it has one; --raw continues the prompt as plain text. Standard output has the model's words only.`

const runExample = `  coli run "Once upon a time"
  coli run -m model.gguf --temp 0 -n 200 "What is a mixture of experts?"
  coli run -m model.gguf "Summarise this text." < report.txt`

const runFooter = `
Each flag has an environment twin, which the flag overrides: COLI_TOP_K=20 is --top-k 20. Settings that neither gives come from the
checkpoint's generation_config, then from the defaults above. Flags of llama.cpp that mean the same are understood.
`

// newRunCmd returns `coli run`.
func newRunCmd() *cobra.Command {
	o := runOptions{settings: settings{Params: sampler.Defaults(), think: "auto"}}
	cmd := &cobra.Command{
		Use:         "run [PROMPT]",
		Short:       "Answer a prompt or hold a conversation",
		Long:        runLong,
		Example:     runExample,
		Annotations: map[string]string{footerKey: runFooter},
		Args:        cobra.ArbitraryArgs,
		RunE:        func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	group(cmd, "Model", func(f *pflag.FlagSet) {
		f.StringVarP(&o.model, "model", "m", "", "`PATH` of a GGUF, safetensors or coli file or a directory (default: the built-in model)")
		f.IntVarP(&o.ctxSize, "ctx-size", "c", 0, "most tokens of prompt and answer, 0 for the model's own limit")
		f.IntVarP(&o.load.Threads, "threads", "t", 0, "CPU threads, 0 for the physical cores this process may use")
		f.IntVar(&o.load.Chunk, "chunk", engine.DefaultChunk, "tokens of the prompt computed in one step")
	})
	o.place.flags(cmd)
	group(cmd, "Prompt", func(f *pflag.FlagSet) {
		f.StringVarP(&o.prompt, "prompt", "p", "", "the prompt, instead of PROMPT")
		f.StringVarP(&o.file, "file", "f", "", "`FILE` with text that follows the prompt, - for standard input")
		f.StringVar(&o.system, "system", "", "system message of the conversation")
		f.BoolVar(&o.raw, "raw", false, "continue the prompt as plain text, without the chat template")
		f.Var(&o.think, "think", "whether a model that can think does so: `auto|on|off`")
	})
	group(cmd, "Answer", func(f *pflag.FlagSet) {
		f.IntVarP(&o.predict, "predict", "n", -1, "most tokens to generate, -1 for no limit but the context")
		f.StringArrayVar(&o.stop, "stop", nil, "end the answer before this text; may be repeated")
		f.Float32Var(&o.Temperature, "temp", o.Temperature, "temperature, 0 for greedy")
		f.IntVar(&o.TopK, "top-k", o.TopK, "draw from the k most probable tokens, 0 for all")
		f.Float32Var(&o.TopP, "top-p", o.TopP, "draw from the most probable tokens that sum to p, 1 for all")
		f.Float32Var(&o.MinP, "min-p", o.MinP, "drop tokens less probable than p times the best, 0 for none")
		f.Float32Var(&o.RepeatPenalty, "repeat-penalty", o.RepeatPenalty, "penalty of repeated tokens, 1 for none")
		f.IntVar(&o.RepeatLastN, "repeat-last-n", o.RepeatLastN, "how many of the last tokens are penalised, -1 for all")
		f.Int64VarP(&o.Seed, "seed", "s", o.Seed, "seed of the draw, -1 to draw one; the same seed gives the same text")
	})
	group(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&o.json, "json", false, "print one JSON object: text, reason, counts, timings, settings")
		f.BoolVar(&o.quiet, "quiet", false, "nothing on standard error but errors")
		f.BoolVar(&o.verbose, "verbose", false, "more statistics; in a conversation, after each answer")
		o.metrics.flags(f)
	})
	return cmd
}

// run carries out the command.
func (o *runOptions) run(cmd *cobra.Command, args []string) (err error) {
	if err := o.check(cmd.Flags().Changed); err != nil {
		return usageError{err}
	}
	if len(args) > 0 && os.Getenv(twin("prompt")) == o.prompt {
		o.prompt = "" // the command line beats the environment
	}
	if len(args) > 0 && o.model == "" && isModel(args[0]) {
		return usageError{fmt.Errorf("%s is a model, not a prompt; name it with --model, or ask about it with --prompt", args[0])}
	}
	text, err := promptSource{args, o.prompt, o.file, os.Stdin, cmd.ErrOrStderr()}.read()
	switch {
	case err != nil:
		return err
	case text != "":
	case o.json:
		return usageError{errors.New("--json needs a prompt")}
	case !term.IsTerminal(int(os.Stdout.Fd())):
		return usageError{errNoPrompt}
	}

	ctx, stop := endable(cmd.Context())
	defer stop()
	cmd.SetContext(ctx)
	say := func(line string) { o.note(cmd, "%s", line) }
	if o.load.Measure = o.metrics.wanted(); o.load.Measure {
		if err := o.metrics.serve(say); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, o.metrics.close()) }()
	}
	start := time.Now()
	path, err := modelPath(cmd, o.model)
	if err != nil {
		return err
	}
	used := history{ignored: o.place.experts.deterministic}
	o.place.apply(&o.load, say)
	o.load.Context = max(o.ctxSize, 0)
	o.load.History = used.load(path, say)
	m, err := loadModel(ctx, path, o.load, o.quiet)
	if err != nil {
		return err
	}
	o.metrics.show(m)
	defer func() {
		o.metrics.show(nil)
		used.save(m, say)
		err = errors.Join(err, o.place.experts.writeTrace(m), m.Close())
	}()
	a, err := o.assistant(m, path, cmd)
	if err != nil {
		return err
	}
	loaded := time.Since(start)
	o.place.announce(m, o.verbose, say)
	if o.verbose {
		o.note(cmd, "loaded in %.2f s; %d threads (%s)", loaded.Seconds(), m.Threads(), m.ThreadsWhy)
		for _, a := range m.Ledger() {
			o.note(cmd, "%s", ledgerLine(a))
		}
	}
	if text == "" {
		stop()
		err = o.converse(cmd, a)
	} else {
		err = o.once(ctx, cmd, a, text, loaded)
	}
	if w := newDeviceWork(m); w != nil && o.verbose {
		o.note(cmd, "%s", w.counters())
	}
	if !o.quiet {
		o.place.device.printProfile(cmd.ErrOrStderr(), m)
	}
	return err
}

// check refuses flags that contradict each other before anything is loaded.
func (o *runOptions) check(set func(flag string) bool) error {
	switch {
	case o.load.Threads < 0:
		return fmt.Errorf("--threads %d: want a positive number, or 0 for the physical cores", o.load.Threads)
	case o.load.Chunk < 1:
		return fmt.Errorf("--chunk %d: want a positive number", o.load.Chunk)
	case o.raw && o.system != "":
		return errors.New("--system is part of a chat and --raw is none; put the text before the prompt, or drop --raw")
	case o.raw && set("think") && o.think != "auto":
		return errors.New("--think speaks to the chat template, which --raw leaves out")
	case o.quiet && o.verbose:
		return errors.New("--quiet and --verbose contradict each other")
	}
	for _, s := range o.stop {
		if s == "" {
			return errors.New("--stop: a stop string is empty")
		}
	}
	if err := o.place.check(); err != nil {
		return err
	}
	_, err := sampler.New(o.Params)
	return err
}

// assistant settles how tokens are drawn, says so, and prepares the model.
func (o *runOptions) assistant(m *engine.Model, path string, cmd *cobra.Command) (*assistant, error) {
	p, why := sampling(o.Params, cmd.Flags().Changed, m.Config.Generation)
	s, err := sampler.New(p)
	if err != nil {
		return nil, fmt.Errorf("the checkpoint's generation_config: %w", err)
	}
	if why != "" {
		o.note(cmd, "from the checkpoint: %s", why)
	}
	if p.Seed == -1 && p.Temperature > 0 {
		o.note(cmd, "seed %d", s.Seed())
	}
	o.settings.Params = p
	o.Seed = s.Seed()
	a, err := newAssistant(m, path, o.ctxSize, o.raw, o.settings)
	if err != nil {
		return nil, err
	}
	if o.system != "" && a.template == nil {
		return nil, errors.New("--system: the model has no chat template to put it into; make it part of the prompt")
	}
	return a, nil
}

// once answers one prompt.
func (o *runOptions) once(ctx context.Context, cmd *cobra.Command, a *assistant, text string, loaded time.Duration) error {
	said := words{w: cmd.OutOrStdout()}
	if o.json {
		said.w = nil
	}
	res, err := a.answer(ctx, conversation{o.system, []message{{"user", text}}}, said.emit)
	if err := said.end(); err != nil {
		return outputError(err)
	}
	interrupted := res.Reason == engine.ReasonInterrupted
	if err != nil && !interrupted {
		return err
	}
	if o.json {
		r := newReport(said.text.String(), res, a.settings)
		r.LoadTime, r.Raw, r.ContextSize, r.Threads = loaded.Seconds(), a.template == nil, a.contextSize(), a.model.Threads()
		r.Model = reportModel{a.path, a.model.Config.ModelType}
		r.Device = newDeviceWork(a.model)
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetEscapeHTML(false)
		if err := enc.Encode(r); err != nil {
			return outputError(err)
		}
	}
	o.note(cmd, "%s", statsLine(res, a.contextSize(), engine.ResidentBytes()))
	if res.Experts != nil {
		o.note(cmd, "%s", expertsLine(*res.Experts))
	}
	if interrupted {
		return exitError(exitInterrupted)
	}
	return nil
}

// outputError is the error of writing to standard output. A reader that has seen enough is none.
func outputError(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return exitError(exitPipe)
	}
	return fmt.Errorf("writing the answer: %w", err)
}

// converse talks at the terminal.
func (o *runOptions) converse(cmd *cobra.Command, a *assistant) error {
	t, err := newTerminal()
	if err != nil {
		return err
	}
	defer t.Close()
	r := repl{
		lines: t, talk: a, out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr(), verbose: o.verbose, interruptible: interruptible,
		conversation: conversation{System: o.system},
	}
	if o.quiet {
		r.notes = io.Discard
	} else {
		fmt.Fprintln(r.notes, "Ask, or type /help.")
	}
	return r.run(context.WithoutCancel(cmd.Context()))
}

// note prints a line on stderr unless --quiet is set.
func (o *runOptions) note(cmd *cobra.Command, format string, args ...any) {
	if !o.quiet {
		note(cmd.ErrOrStderr(), format, args...)
	}
}

// interruptible derives a context that the first Ctrl+C cancels; the second ends the program, should the first not be heeded.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return onSignal(ctx, os.Interrupt)
}

// endable derives a context that is cancelled by whatever asks the program to end, so that it leaves no half-written file behind.
func endable(ctx context.Context) (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup's wish is respected
		signals = append(signals, syscall.SIGHUP)
	}
	return onSignal(ctx, signals...)
}

func onSignal(ctx context.Context, signals ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
