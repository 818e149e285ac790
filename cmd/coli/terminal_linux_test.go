package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/coli-moe/coli/internal/embedded"
)

// pty is a terminal with coli in it.
type pty struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	slave  *os.File
	found  unix.Termios // the mode coli found

	mu     sync.Mutex
	screen strings.Builder // all that was written to the terminal
	seen   int             // how much of it was expected already
}

// inTerminal starts a command in a terminal of its own.
func inTerminal(t *testing.T, cmd *exec.Cmd) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		if os.Getenv("COLI_CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("no terminals: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	p := &pty{t: t, cmd: cmd, master: master}
	var n int
	control, err := master.SyscallConn()
	p.check(err)
	p.check(control.Control(func(fd uintptr) {
		p.check(unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0))
		p.check(unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
		n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		p.check(err)
	}))
	p.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	p.check(err)
	t.Cleanup(func() { p.slave.Close() })
	p.found = p.mode()

	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.slave, p.slave, p.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	cmd.Env = append(cmd.Env, "TERM=xterm")
	p.check(cmd.Start())
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			p.mu.Lock()
			p.screen.Write(buf[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *pty) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pty) mode() unix.Termios {
	p.t.Helper()
	mode, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	p.check(err)
	return *mode
}

// expect waits until text has been written after what was expected before.
func (p *pty) expect(text string) {
	p.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		p.mu.Lock()
		i := strings.Index(p.screen.String()[p.seen:], text)
		if i >= 0 {
			p.seen += i + len(text)
		}
		p.mu.Unlock()
		if i >= 0 {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.t.Fatalf("%q was not written; the terminal has %q", text, p.screen.String())
}

// at waits for a prompt that takes keys.
func (p *pty) at(prompt string) {
	p.t.Helper()
	p.expect(prompt)
	p.until("the prompt takes keys", func() bool { return p.mode().Cc[unix.VINTR] == disabled })
}

func (p *pty) until(what string, ok func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("not true in time: %s", what)
		}
	}
}

func (p *pty) keys(s string) {
	p.t.Helper()
	_, err := io.WriteString(p.master, s)
	p.check(err)
}

// ended waits for the command's end and checks that the terminal is as it was found.
func (p *pty) ended() error {
	p.t.Helper()
	err := p.cmd.Wait()
	if diff := cmp.Diff(p.found, p.mode()); diff != "" {
		p.t.Errorf("the terminal's mode (-found +left):\n%s", diff)
	}
	return err
}

const (
	ctrlC = "\x03"
	ctrlD = "\x04"
	ctrlZ = "\x1a"
)

func TestTalkInATerminal(t *testing.T) {
	cmd := coli(t, "run", "--temp", "0")
	dir := t.TempDir()
	cmd.Env = append(cmd.Env, embedded.CacheDirEnv+"="+dir)
	p := inTerminal(t, cmd)
	p.at(">>> ")
	p.keys("Hello\r")
	p.expect("storyteller")
	p.at(">>> ")
	p.keys("Once upon a time\r")
	p.expect("\r\nOnce upon a time")
	if diff := cmp.Diff(p.found, p.mode()); diff != "" {
		t.Errorf("the terminal's mode during an answer (-found +now):\n%s", diff)
	}
	p.keys(ctrlC)
	p.expect("interrupted")
	p.at(">>> ")
	p.keys(ctrlC)
	p.expect("leaves")
	p.at(">>> ")
	p.keys(ctrlD)
	p.check(p.ended())
	history, err := os.ReadFile(filepath.Join(dir, "history"))
	p.check(err)
	if diff := cmp.Diff("Hello\nOnce upon a time\n", string(history)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

// TestDeviceInATerminal: a conversation on a device is interrupted, goes on in another context and with another system message, and says
// where its layers are.
func TestDeviceInATerminal(t *testing.T) {
	if ok, err := llvmpipe(); !ok {
		if err != nil {
			t.Fatal(err)
		}
		t.Skip("no llvmpipe among the Vulkan devices; mesa-vulkan-drivers has it")
	}
	p := inTerminal(t, coli(t, "run", "--temp", "0", "--device", "llvmpipe", "-c", "64"))
	p.expect("layers on llvmpipe")
	p.at(">>> ")
	p.keys("Once upon a time\r")
	p.expect("\r\nOnce upon a time")
	p.keys(ctrlC)
	p.expect("interrupted")
	p.at(">>> ")
	p.keys("/set parameter ctx_size 500\r")
	p.at(">>> ")
	p.keys("/set parameter predict 70\r")
	p.at(">>> ")
	p.keys("Who was it?\r")
	p.expect("stopped at --predict 70")
	p.at(">>> ")
	p.keys("/show info\r")
	p.expect("of 500 tokens used")
	p.expect("device        layers on llvmpipe")
	p.expect("8 of 8 and the head")
	p.at(">>> ")
	p.keys("/set parameter predict 2\r")
	p.at(">>> ")
	p.keys("/set system You are a hen.\r")
	p.at(">>> ")
	p.keys("Hello\r")
	p.expect("stopped at --predict 2")
	p.at(">>> ")
	p.keys(ctrlD)
	p.check(p.ended())
	p.mu.Lock()
	defer p.mu.Unlock()
	if said := p.screen.String(); strings.Contains(said, "failed") {
		t.Errorf("the device failed:\n%s", said)
	}
}

// TestMetricsAtThePrompt: metrics are served while nobody asks anything, and the terminal is left as it was.
func TestMetricsAtThePrompt(t *testing.T) {
	p := inTerminal(t, coli(t, "run", "--metrics", "0", "--temp", "0", "-n", "40"))
	p.at(">>> ")
	p.mu.Lock()
	m := metricsLine.FindStringSubmatch(p.screen.String())
	p.mu.Unlock()
	if m == nil {
		t.Fatalf("it does not say where the metrics are: %s", p.screen.String())
	}
	s := served{t: t, url: m[1]}
	s.until("coli_model_resident_bytes")
	p.keys("Hello\r")
	p.expect("storyteller")
	p.at(">>> ")
	s.until(`coli_tokens_total{phase="decode"}`)
	p.keys(ctrlD)
	p.check(p.ended())
	if got := s.get("/metrics"); got != "" {
		t.Errorf("somebody still answers: %s", got)
	}
}

func TestSuspendAtThePrompt(t *testing.T) {
	p := inTerminal(t, coli(t, "run"))
	pid := p.cmd.Process.Pid
	p.at(">>> ")
	p.keys("half a line")
	p.expect("half a line")
	p.keys(ctrlZ)
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("not stopped: %v, status %v", err, status)
	}
	if diff := cmp.Diff(p.found, p.mode()); diff != "" {
		t.Errorf("the terminal's mode while suspended (-found +now):\n%s", diff)
	}
	p.check(unix.Kill(pid, unix.SIGCONT))
	p.at(">>> ")
	p.expect("half a line")
	p.keys(ctrlC)
	p.at(">>> ")
	p.keys("/bye\r")
	p.check(p.ended())
}

func TestTerminationAtThePromptRestoresTheTerminal(t *testing.T) {
	p := inTerminal(t, coli(t, "run"))
	p.at(">>> ")
	p.check(p.cmd.Process.Signal(unix.SIGTERM))
	var exit *exec.ExitError
	if err := p.ended(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGTERM {
		t.Errorf("ended with %v, want SIGTERM", err)
	}
}

func TestInterruptedAnswer(t *testing.T) {
	cmd := coli(t, "run", "--temp", "0", "Once upon a time")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1)
	if _, err := io.ReadFull(out, first); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Wait() //nolint:errcheck // the code is looked at
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("exit code %d, want %d", code, exitInterrupted)
	}
	if !strings.HasSuffix(string(rest), "\n") || !strings.HasSuffix(stderr.String(), "; interrupted\n") {
		t.Errorf("stdout ends %q, stderr is %q", rest, stderr.String())
	}
}

// Whoever ends a program that writes gigabytes finds no half of them on the disk.
func TestEndedSynthLeavesNothing(t *testing.T) {
	signals := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // under nohup it is, by the command as well
		signals = append(signals, unix.SIGHUP)
	}
	for _, signal := range signals {
		dir := t.TempDir()
		cmd := coli(t, "synth", "--like", "olmoe-1b-7b", "-o", filepath.Join(dir, "model.gguf"))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		files := func() int {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			return len(entries)
		}
		for deadline := time.Now().Add(10 * time.Second); files() == 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if files() != 1 {
			t.Error("nothing was being written")
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		cmd.Wait() //nolint:errcheck // the code is looked at
		if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || files() != 0 {
			t.Errorf("%v: exit code %d, want %d; %d files are left", signal, code, exitInterrupted, files())
		}
	}
}

func TestReaderThatLeavesEndsTheAnswerQuietly(t *testing.T) {
	cmd := coli(t, "run", "--quiet", "--temp", "0", "Once upon a time")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	cmd.Wait() //nolint:errcheck // how it ended is looked at
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signal() != unix.SIGPIPE && status.ExitStatus() != exitPipe || stderr.String() != "" {
		t.Errorf("ended with %v, stderr %q", cmd.ProcessState, stderr.String())
	}
}

func TestFullDisk(t *testing.T) {
	disk, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer disk.Close()
	cmd := coli(t, "run", "-n", "1", "Hello")
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = disk, &stderr
	cmd.Run() //nolint:errcheck // the code is looked at
	if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(stderr.String(), "coli: writing the answer: ") {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
}
