package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/loghist"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
)

var watchStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// hist has n times of d.
func hist(d time.Duration, n int) (h loghist.Hist) {
	for range n {
		h.Add(d)
	}
	return h
}

// aGlance is a model at work, a moment after the start: each rate is what it says a second.
func aGlance(seconds int) *glance {
	n := int64(seconds)
	at := watchStart.Add(time.Duration(seconds) * time.Second)
	return &glance{at: at, model: "model", live: engine.Live{
		Actors: []actors.ActorStats{
			{Name: "tier", Length: 3, Handled: uint64(8123 * n), Wait: hist(20*time.Microsecond, 100*seconds), Handle: hist(time.Microsecond, 100*seconds)},
			{Name: "an actor with quite a long name", Dead: true},
		},
		Experts: &engine.ExpertStats{Figures: actors.Figures{TierFigures: messages.TierFigures{
			Slots: 102, SlotBytes: 3 << 20, Resident: 99, PairsInMemory: 60 * n, PairsInFlight: 30 * n, PairsOnDisk: 10 * n,
		}}},
		Reads:     prefetcher.Stats{Bytes: 1840e6 * n, Busy: time.Duration(n) * time.Second / 2, Took: time.Duration(n) * time.Second},
		Prefilled: 0, Decoded: 7 * n, Resident: 1 << 30,
		Policy: messages.Policy{ID: 2, Readers: 2, Depth: 8, Horizon: 1},
		Decisions: []balancer.Decision{
			{At: watchStart.Add(-time.Minute), Reason: "the first"},
			{At: watchStart.Add(-10 * time.Second), Reason: "to begin with: reads at a time: 1, predicted: 8 experts of the next layer"},
			{At: watchStart, Reason: "reads at a time 1 → 2: 141 → 128 ms a token"},
		},
		Block: &probe.Snapshot{
			Devices: []probe.Device{{Read: probe.Ops{Queue: hist(3*time.Microsecond, 50*seconds), Device: hist(900*time.Microsecond, 50*seconds)}}},
			Own:     probe.Own{InFlight: 2},
		},
	}}
}

var anArm = &bench.Arm{Test: "tg128", Params: []bench.Param{{Name: "ram", Value: "25%"}, {Name: "readers", Value: "0"}}}

// after is the view after messages, in a terminal of that size.
func after(width, height int, msgs ...tea.Msg) watchModel {
	m := watchModel{title: "coli bench stream", resumable: true, keys: true, look: func(time.Time) *glance { return nil }, interrupt: func() {}, now: watchStart}
	for _, msg := range append([]tea.Msg{tea.WindowSizeMsg{Width: width, Height: height}}, msgs...) {
		next, _ := m.Update(msg)
		m = next.(watchModel)
	}
	return m
}

func screen(m watchModel) string { return ansi.Strip(m.View().Content) }

func atWork() []tea.Msg {
	event := func(seconds int, e bench.Event) eventMsg {
		e.Arm, e.Total = anArm, 40
		return eventMsg{e, watchStart.Add(time.Duration(seconds) * time.Second)}
	}
	return []tea.Msg{
		event(0, bench.Event{Phase: bench.Opening, Done: 4}), // resumed
		event(1, bench.Event{Phase: bench.Measuring, Done: 4}),
		event(60, bench.Event{Phase: bench.Measured, Done: 14, Rep: 1, Figures: []string{"tok/s 7.10", "hit % 60.0"}}),
		glanceMsg{watchStart.Add(60 * time.Second), aGlance(60)},
		glanceMsg{watchStart.Add(61 * time.Second), aGlance(61)},
		glanceMsg{watchStart.Add(62 * time.Second), aGlance(62)},
		event(62, bench.Event{Phase: bench.Measuring, Done: 14, Rep: 2}),
	}
}

func TestWatchView(t *testing.T) {
	for name, c := range map[string]struct {
		m    watchModel
		want string
	}{
		"80 columns": {after(80, 40, atWork()...), `
coli bench stream  measuring, repetition 3
tg128 ram=25% readers=0
██████████░░░░░░░░░░░░░░░░░░░░ 14 of 40 repetitions, 1m02s, about 2m41s left

tokens    7.00/s decoded, 0/s of prompts
experts   60 % in memory, 30 % on their way, 10 % on disk
reads     1.84 GB/s, 2.0 at a time, busy 50 %, 2 in flight
requests  p50/p99: queue 3.1 µs/4.1 µs, drive 786 µs/1.0 ms
memory    99 of 102 experts, 3.0 MiB each; process 1.0 GiB
policy    reads at a time: 2, predicted: 8 experts of the next layer
          1m02s ago: reads at a time 1 → 2: 141 → 128 ms a token
          1m12s ago: to begin with: reads at a time: 1, predicted: 8 experts of
          the next layer

actor              queue    msg/s  wait p50      p99  work p50      p99
tier                   3     8123     25 µs    33 µs    768 ns   1.0 µs
an actor with qui…     0        0         –        –         –        –

measured
tg128 ram=25% readers=0: tok/s 7.10, hit % 60.0

Ctrl+C ends it, to be resumed · q closes this view only`},
		"60 columns": {after(60, 40, atWork()...), `
coli bench stream  measuring, repetition 3
tg128 ram=25% readers=0
████░░░░░░░░░ 14 of 40 repetitions, 1m02s, about 2m41s left

tokens    7.00/s decoded, 0/s of prompts
experts   60 % in memory, 30 % on their way, 10 % on disk
reads     1.84 GB/s, 2.0 at a time, busy 50 %, 2 in flight
requests  p50/p99: queue 3.1 µs/4.1 µs, drive 786 µs/1.0 ms
memory    99 of 102 experts, 3.0 MiB each; process 1.0 GiB
policy    reads at a time: 2, predicted: 8 experts of the
          next layer
          1m02s ago: reads at a time 1 → 2: 141 → 128 ms a
          token
          1m12s ago: to begin with: reads at a time: 1,
          predicted: 8 experts of the next layer

actor              queue    msg/s  wait p99  work p99
tier                   3     8123     33 µs    1.0 µs
an actor with qui…     0        0         –         –

measured
tg128 ram=25% readers=0: tok/s 7.10, hit % 60.0

Ctrl+C ends it, to be resumed · q closes this view only`},
		"few lines": {after(80, 8, atWork()...), `
coli bench stream  measuring, repetition 3
tg128 ram=25% readers=0
██████████░░░░░░░░░░░░░░░░░░░░ 14 of 40 repetitions, 1m02s, about 2m41s left

tokens    7.00/s decoded, 0/s of prompts

Ctrl+C ends it, to be resumed · q closes this view only`},
		"no model": {after(80, 20, eventMsg{bench.Event{Phase: bench.Measured, Arm: anArm, Done: 1, Total: 1, Figures: []string{"GB/s 2.31"}}, watchStart}), `
coli bench stream  measured, repetition 1
tg128 ram=25% readers=0
██████████████████████████████ 1 of 1 repetitions, 0s

measured
tg128 ram=25% readers=0: GB/s 2.31

Ctrl+C ends it, to be resumed · q closes this view only`},
		"beginning": {after(80, 20), `
coli bench stream
getting ready

Ctrl+C ends it, to be resumed · q closes this view only`},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), screen(c.m)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever the terminal's size, no line is longer and there are no more of them: a terminal would wrap and scroll them.
func TestWatchFits(t *testing.T) {
	skipped := eventMsg{bench.Event{Phase: bench.Skipped, Arm: anArm, Total: 0, Err: errors.New(strings.Repeat("a long reason ", 20))}, watchStart}
	for width := range 130 {
		for _, height := range []int{0, 1, 2, 3, 4, 5, 10, 24, 100} {
			for _, msgs := range [][]tea.Msg{nil, {skipped}, append(atWork(), skipped)} {
				text := screen(after(width, height, msgs...))
				lines := strings.Split(text, "\n")
				if len(lines) >= height && text != "" {
					t.Fatalf("%d lines in %dx%d", len(lines), width, height)
				}
				for _, line := range lines {
					if ansi.StringWidth(line) > width {
						t.Fatalf("%q in %dx%d", line, width, height)
					}
				}
			}
		}
	}
}

func TestWatchKeys(t *testing.T) {
	interrupted := false
	m := after(80, 24, atWork()...)
	m.interrupt = func() { interrupted = true }
	next, cmd := m.Update(tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl})
	if cmd == nil || cmd() != nil || !interrupted || !strings.HasSuffix(screen(next.(watchModel)), "\nending") {
		t.Errorf("Ctrl+C: interrupted %v, screen %q", interrupted, screen(next.(watchModel)))
	}
	quits := func(cmd tea.Cmd) bool {
		if cmd == nil {
			return false
		}
		_, ok := cmd().(tea.QuitMsg)
		return ok
	}
	for name, c := range map[string]struct {
		msg  tea.Msg
		over bool
	}{"q": {tea.KeyPressMsg{Code: 'q', Text: "q"}, false}, "the experiment's end": {watchEndMsg{}, true}} {
		next, cmd := m.Update(c.msg)
		if end := next.(watchModel); !quits(cmd) || end.over != c.over || screen(end) != "" {
			t.Errorf("%s: over %v, screen %q", name, end.over, screen(end))
		}
	}
	if next, cmd := m.Update(tea.KeyPressMsg{Code: 'x', Text: "x"}); cmd != nil || screen(next.(watchModel)) != screen(m) {
		t.Error("x does something")
	}
}

// Rates are those of one model and of the last seconds.
func TestWatchForgets(t *testing.T) {
	m := after(80, 40, atWork()...)
	next, cmd := m.Update(glanceMsg{watchStart.Add(70 * time.Second), aGlance(70)})
	if m = next.(watchModel); cmd == nil || len(m.glances) != 1 {
		t.Errorf("%d glances after a pause, next glance asked for: %v", len(m.glances), cmd != nil)
	}
	other := aGlance(71)
	other.model = "another"
	next, _ = m.Update(glanceMsg{watchStart.Add(71 * time.Second), other})
	if m = next.(watchModel); len(m.glances) != 1 || strings.Contains(screen(m), "tokens") {
		t.Errorf("%d glances of another model, screen %q", len(m.glances), screen(m))
	}
	next, _ = m.Update(eventMsg{bench.Event{Phase: bench.Closing, Arm: anArm, Total: 2}, watchStart.Add(72 * time.Second)})
	if m = next.(watchModel); len(m.glances) != 0 {
		t.Errorf("%d glances of a closed model", len(m.glances))
	}
}

// panics is an experiment that ends by a panic once the view is on the terminal.
type panics struct{}

func (panics) Name() string            { return "panics" }
func (panics) Metrics() []bench.Metric { return nil }
func (panics) Arms() []bench.Arm {
	return []bench.Arm{{Test: "panic", Open: func(context.Context) (bench.Run, error) {
		time.Sleep(time.Second)
		panic("a mistake")
	}}}
}

// benchPanics is a command that carries it out.
func benchPanics() {
	cmd := newExperimentCmd(experimentCmd{name: "panics", build: func(context.Context, *benchRun) (bench.Experiment, error) { return panics{}, nil }})
	cmd.SetArgs([]string{"--watch"})
	cmd.Execute() //nolint:errcheck // it does not return
}
