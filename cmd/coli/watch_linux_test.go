package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// watched is an experiment that takes long enough to be looked at, in a terminal, and keeps its samples in dir.
func watched(t *testing.T, dir string) *pty {
	return inTerminal(t, coli(t, "bench", "decode", "-n", "2", "--n-warmup", "0", "-r", "50000", "--watch", "--resume", dir))
}

// measures waits until the experiment has a sample, however long a busy machine takes for it.
func (p *pty) measures(dir string) {
	p.t.Helper()
	p.until("a repetition has been measured", func() bool {
		samples, err := os.Stat(filepath.Join(dir, "samples.jsonl"))
		return err == nil && samples.Size() > 0
	})
}

// exits checks how the command ended.
func (p *pty) exits(code int) {
	p.t.Helper()
	var exit *exec.ExitError
	if err := p.ended(); !errors.As(err, &exit) || exit.ExitCode() != code {
		p.t.Errorf("ended with %v, want exit code %d", err, code)
	}
}

// Ctrl+C in the view is Ctrl+C: the experiment ends with what it has, can go on, and the terminal is as it was.
func TestWatchIsInterrupted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	p := watched(t, dir)
	p.expect("coli bench decode")
	p.expect("/s decoded")
	p.expect("tier")
	p.expect("ends it, to be resumed")
	p.measures(dir)
	p.keys(ctrlC)
	p.expect("| tg2 ")
	p.expect("the same command goes on from there")
	p.exits(exitInterrupted)
	if _, err := os.Stat(filepath.Join(dir, "manifest.json")); err != nil {
		t.Error(err)
	}
}

// A closed view leaves the experiment alone, and the terminal to Ctrl+C as it was before.
func TestWatchIsClosed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	p := watched(t, dir)
	p.expect("/s decoded")
	p.keys("q")
	p.expect("the view is closed, and the experiment goes on")
	p.until("the terminal has its mode back", func() bool { return p.mode() == p.found })
	p.measures(dir)
	p.keys(ctrlC)
	p.expect("| tg2 ")
	p.exits(exitInterrupted)
}

func TestWatchIsTerminated(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	p := watched(t, dir)
	p.expect("/s decoded")
	p.measures(dir)
	p.check(p.cmd.Process.Signal(unix.SIGTERM))
	p.expect("| tg2 ")
	p.exits(exitInterrupted)
}

// A mistake of the program is seen on a terminal that works.
func TestWatchAndAPanic(t *testing.T) {
	cmd := coli(t)
	cmd.Args[0] = "bench-panics"
	p := inTerminal(t, cmd)
	p.expect("opening")
	p.expect("panic: a mistake")
	p.exits(2)
}

// redirected is a command whose standard output goes to a file.
func redirected(t *testing.T, cmd *exec.Cmd, file string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(cmd.Path, filepath.Join(dir, "coli")); err != nil { // the name makes the test binary the command
		t.Fatal(err)
	}
	sh := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `out=$1; shift; exec "$0" "$@" >"$out"`, filepath.Join(dir, "coli"), file}, cmd.Args[1:]...)...)
	sh.Env = cmd.Env
	return sh
}

// The result goes to standard output without a trace of the view.
func TestWatchLeavesStdoutAlone(t *testing.T) {
	cmd := coli(t, "bench", "decode", "-n", "16", "--n-warmup", "0", "-r", "200", "--watch", "-o", "jsonl")
	out := filepath.Join(t.TempDir(), "out")
	p := inTerminal(t, redirected(t, cmd, out))
	p.expect("/s decoded")
	p.check(p.ended())
	data, err := os.ReadFile(out)
	p.check(err)
	if text := string(data); !strings.HasPrefix(text, `{"experiment":"decode"`) || strings.Count(text, "\n") != 1 || strings.Contains(text, "\x1b") {
		t.Errorf("standard output has %q", text)
	}
}
