package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/engine"
)

type actorStats = actors.ActorStats

// watcher is the observer that shows an experiment while it is carried out: --watch. It draws on standard error, below the lines that are
// written there meanwhile.
type watcher struct {
	asked   bool
	shown   bool // the terminal can show it
	program *tea.Program
	ended   chan struct{} // closed when the view has left the terminal
	lines   *linesAbove
	restore func() // gives standard error back

	mu    sync.Mutex
	model *engine.Model // of the arm that is at work; not closed while mu is held
}

func (w *watcher) flags(f *pflag.FlagSet) {
	f.BoolVar(&w.asked, "watch", false, "show tokens, experts, reads and actors live on the terminal")
}

func (w *watcher) wanted() bool { return w.asked }

// measures is true only if there is a view to show the times in.
func (w *watcher) measures() bool { return cannotWatch() == "" }

func (w *watcher) screen() bool { return w.shown }

// cannotWatch says why this terminal cannot show the view, "" if it can.
func cannotWatch() string {
	switch {
	case !term.IsTerminal(int(os.Stderr.Fd())):
		return "standard error is no terminal"
	case os.Getenv("TERM") == "dumb" || os.Getenv("TERM") == "":
		return "the terminal cannot move the cursor (TERM=" + os.Getenv("TERM") + ")"
	}
	return ""
}

func (w *watcher) start(_ context.Context, b *benchRun) error {
	if b.quiet {
		return usageError{errors.New("--watch and --quiet contradict each other")}
	}
	if why := cannotWatch(); why != "" {
		b.say("--watch is left out: " + why)
		return nil
	}
	// Keys are read only from a terminal: Ctrl+C is a signal as ever where input comes from elsewhere.
	var input io.Reader
	if term.IsTerminal(int(os.Stdin.Fd())) {
		input = os.Stdin
	}
	m := watchModel{
		title: b.cmd.CommandPath(), resumable: b.resume != "", look: w.look, interrupt: b.cancel, now: time.Now(),
		keys: input != nil,
	}
	w.program = tea.NewProgram(m, tea.WithOutput(os.Stderr), tea.WithInput(input), tea.WithoutSignalHandler(), tea.WithFPS(10))
	w.ended = make(chan struct{})
	was := b.cmd.ErrOrStderr()
	w.lines = &linesAbove{below: was, program: w.program}
	b.cmd.SetErr(w.lines)
	w.restore = func() { b.cmd.SetErr(was) }
	w.shown = true
	go func() {
		defer close(w.ended)
		end, err := w.program.Run()
		w.lines.close()
		switch m, ok := end.(watchModel); {
		case err != nil:
			b.say("the view is gone, and the experiment goes on: " + err.Error())
		case ok && !m.over:
			b.say("the view is closed, and the experiment goes on")
		}
	}()
	return nil
}

// look takes a glance at the model of the open arm, nil if there is none. It holds the model open for as long.
func (w *watcher) look(at time.Time) *glance {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.model
	if m == nil {
		return nil
	}
	return &glance{at: at, model: m, live: m.Live()}
}

// event is called by the goroutine that carries out the experiment, before a model is closed too.
func (w *watcher) event(e bench.Event) {
	if !w.shown {
		return
	}
	w.mu.Lock()
	w.model = nil
	if e.Phase != bench.Closing && e.Run != nil {
		w.model = openModel(e.Run)
	}
	w.mu.Unlock()
	w.program.Send(eventMsg{e, time.Now()})
}

// stop takes the view away, after a panic of the experiment too: the terminal is as it was before anything else is written.
func (w *watcher) stop([]bench.Record) error {
	if !w.shown {
		return nil
	}
	w.mu.Lock()
	w.model = nil
	w.mu.Unlock()
	w.program.Send(watchEndMsg{})
	<-w.ended
	w.restore()
	return nil
}

// linesAbove is standard error while there is a view: whole lines stand above it. Any goroutine may write.
type linesAbove struct {
	mu      sync.Mutex
	below   io.Writer
	program *tea.Program // nil when the view is gone
	rest    []byte       // of a line that has not ended
}

func (l *linesAbove) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.program == nil {
		return l.below.Write(p)
	}
	l.rest = append(l.rest, p...)
	if end := bytes.LastIndexByte(l.rest, '\n'); end >= 0 {
		text := strings.TrimRight(string(l.rest[:end]), "\r")
		l.rest = append(l.rest[:0], l.rest[end+1:]...)
		l.program.Send(tea.Println(text)())
	}
	return len(p), nil
}

// close writes what is left; from now on lines go where they went before.
func (l *linesAbove) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.program = nil
	if len(l.rest) > 0 {
		fmt.Fprintf(l.below, "%s\n", l.rest) //nolint:errcheck // there is nowhere left to report it
		l.rest = nil
	}
}
