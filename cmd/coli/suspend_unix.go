//go:build linux || darwin || freebsd

package main

import (
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/peterh/liner"
	"golang.org/x/sys/unix"
)

// suspender makes Ctrl+Z work at liner's prompt and keeps the terminal sane across it. liner turns all signal keys off while it prompts;
// the suspender turns Ctrl+Z on again, and on its signal gives the shell the terminal as it was and stops the process; when that goes on,
// it restores the prompt's mode and has liner draw its line again. A signal to end restores the mode before it ends the process.
type suspender struct {
	cooked  liner.ModeApplier
	signals chan os.Signal

	mu     sync.Mutex
	prompt *unix.Termios // the mode to return to; nil while no prompt is shown
}

// start begins to watch signals. cooked is the mode that the shell expects.
func (s *suspender) start(cooked liner.ModeApplier) {
	s.cooked, s.signals = cooked, make(chan os.Signal, 1)
	signal.Notify(s.signals, unix.SIGTSTP, unix.SIGCONT, unix.SIGTERM, unix.SIGHUP)
	go func() {
		for sig := range s.signals {
			s.handle(sig.(unix.Signal))
		}
	}()
}

func (s *suspender) stop() {
	signal.Stop(s.signals)
	close(s.signals)
}

func (s *suspender) handle(sig unix.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	self := unix.Getpid()
	switch {
	case sig == unix.SIGCONT && s.prompt != nil:
		unix.IoctlSetTermios(unix.Stdin, setTermios, s.prompt) //nolint:errcheck // a terminal that is gone needs no mode
		unix.Kill(self, unix.SIGWINCH)                         //nolint:errcheck // liner draws its line again
		return
	case sig == unix.SIGCONT:
		return
	case s.prompt != nil:
		s.cooked.ApplyMode() //nolint:errcheck
	}
	if sig == unix.SIGTSTP {
		unix.Kill(self, unix.SIGSTOP) //nolint:errcheck // other threads may run on for a moment, so what follows waits for SIGCONT
		return
	}
	signal.Reset(sig)
	unix.Kill(self, sig) //nolint:errcheck
}

// prompting is called just before liner prompts; done, just after.
func (s *suspender) prompting() (done func()) {
	finished, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		// liner sets its mode inside Prompt and has no hook there, so the change is waited for.
		for {
			select {
			case <-finished:
				return
			case <-time.After(2 * time.Millisecond):
			}
			mode, err := unix.IoctlGetTermios(unix.Stdin, getTermios)
			if err != nil {
				return
			}
			if mode.Lflag&unix.ISIG != 0 {
				continue
			}
			mode.Lflag |= unix.ISIG
			mode.Cc[unix.VINTR], mode.Cc[unix.VQUIT] = disabled, disabled
			s.mu.Lock()
			defer s.mu.Unlock()
			if unix.IoctlSetTermios(unix.Stdin, setTermios, mode) == nil {
				s.prompt = mode
			}
			return
		}
	}()
	return func() {
		close(finished)
		<-stopped
		s.mu.Lock()
		defer s.mu.Unlock()
		s.prompt = nil
	}
}
