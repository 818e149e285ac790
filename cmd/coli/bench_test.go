package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coli-moe/coli/bench"
)

// An experiment that Ctrl+C ends shows what there is, and goes on where it stopped.
func TestBenchGoesOnAfterCtrlC(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGINT to send")
	}
	dir := filepath.Join(t.TempDir(), "kept")
	args := []string{"bench", "decode", "-n", "24", "-r", "40", "-t", "1,2", "-o", "jsonl", "--resume", dir, "--verbose"}
	cmd := coli(t, args...)
	var out bytes.Buffer
	cmd.Stdout = &out
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		if said = append(said, lines.Text()); strings.HasPrefix(lines.Text(), "coli: 3/80 ") {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Fatalf("%v; %q", err, said)
	}
	if last := said[len(said)-1]; !strings.HasPrefix(last, "coli: interrupted; ") || !strings.HasSuffix(last, "and the same command goes on from there") {
		t.Errorf("the last line is %q", last)
	}
	part := benchRecords(t, out.Bytes())
	made := part[0].Reps + part[1].Reps
	if made < 3 || made > 60 {
		t.Fatalf("%d repetitions were made", made)
	}

	args[slices.Index(args, "40")] = "41"
	cmd = coli(t, args...)
	var rest bytes.Buffer
	cmd.Stderr = &rest
	whole, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v; %s", err, rest.Bytes())
	}
	if n := strings.Count(rest.String(), ", repetition "); n != 82-made {
		t.Errorf("%d repetitions were made again or for the first time, want %d", n, 82-made)
	}
	for i, r := range benchRecords(t, whole) {
		before := part[i].Metrics["tok/s"].Samples
		if now := r.Metrics["tok/s"].Samples; len(now) != 41 || !slices.Equal(now[:len(before)], before) {
			t.Errorf("%s: %d samples; before %v, now %v", r.Test, len(now), before, now)
		}
	}
}

func benchRecords(t *testing.T, lines []byte) (records []bench.Record) {
	t.Helper()
	for line := range bytes.Lines(lines) {
		var r bench.Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	if len(records) != 2 {
		t.Fatalf("%d records: %s", len(records), lines)
	}
	return records
}

// tick is an experiment of one arm and one figure.
type tick struct{}

func (tick) Name() string { return "tick" }
func (tick) Metrics() []bench.Metric {
	return []bench.Metric{{Name: "ticks", Help: "one each time", Table: true}, {Name: "tocks", Table: true}}
}

func (tick) Arms() []bench.Arm {
	return []bench.Arm{{Test: "one", Open: func(context.Context) (bench.Run, error) { return tick{}, nil }}}
}
func (tick) Warm(context.Context) error { return nil }
func (tick) Close() error               { return nil }
func (tick) Measure(context.Context, int) (bench.Sample, error) {
	return bench.Sample{Values: map[string]float64{"ticks": 1}}, nil
}

// An experiment's own flags stand before those that all have, which do what they say.
func TestExperimentCommand(t *testing.T) {
	var own int
	var seen benchRun
	cmd := newExperimentCmd(experimentCmd{
		name: "tick", short: "Count", long: "Count ticks.",
		define: func(cmd *cobra.Command) { cmd.Flags().IntVar(&own, "own", 0, "of the experiment") },
		build: func(_ context.Context, b *benchRun) (bench.Experiment, error) {
			seen = *b
			return tick{}, nil
		},
	})
	var out, stderr strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&stderr)
	cmd.SetArgs([]string{"--own", "7", "-r", "3", "--seed", "9", "--verbose", "-o", "csv"})
	cmd.SetContext(t.Context())
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if own != 7 || seen.reps != 3 || seen.seed != 9 || seen.state != "" || seen.measure() {
		t.Errorf("%d, %+v", own, seen)
	}
	if got := out.String(); !strings.Contains(got, "\ntick,one,,true,true,3,9,1,0,1,1,1,1 1 1,,,,,,,") {
		t.Errorf("stdout %q", got)
	}
	if got := stderr.String(); got != "coli: 1/3 one, repetition 1: ticks 1\ncoli: 2/3 one, repetition 2: ticks 1\ncoli: 3/3 one, repetition 3: ticks 1\n"+
		"coli: ticks: one each time\n" {
		t.Errorf("stderr %q", got)
	}
	if cmd.Flags().Lookup("state") != nil {
		t.Error("an experiment without states has a flag for them")
	}
}

// The bar leaves the line empty before anything else is written there.
func TestBenchBar(t *testing.T) {
	var out strings.Builder
	b := newBenchBar(&out)
	arm := &bench.Arm{Test: "tg128", Params: []bench.Param{{Name: "ram", Value: strings.Repeat("9", 80)}}}
	b.event(bench.Event{Phase: bench.Measuring, Arm: arm, Done: 1, Total: 4})
	b.event(bench.Event{Phase: bench.Measuring, Arm: arm, Done: 2, Total: 4})
	if got := out.String(); !strings.Contains(got, "tg128 ram=99") || !strings.Contains(got, "measuring") || !strings.Contains(got, "(2/4)") ||
		strings.Contains(got, strings.Repeat("9", 60)) {
		t.Errorf("%q", got)
	}
	drawn := out.Len()
	b.event(bench.Event{Phase: bench.Measured, Arm: arm, Done: 3, Total: 4})
	if left := out.String()[drawn:]; !strings.HasSuffix(left, "\r") || strings.TrimSpace(left) != "" {
		t.Errorf("after the measurement: %q", left)
	}
}
