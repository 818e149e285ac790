package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/peterh/liner"

	"github.com/coli-moe/coli/internal/embedded"
)

// terminal reads lines with editing and history. The terminal is in liner's raw mode only while a prompt is shown, so that Ctrl+C,
// Ctrl+Z and a crash find it as the user left it.
type terminal struct {
	state   *liner.State
	cooked  liner.ModeApplier // the mode the terminal was found in; nil where it cannot be read
	raw     liner.ModeApplier
	suspend suspender
	history string // file; "" keeps none
}

func newTerminal() (*terminal, error) {
	cooked, err := liner.TerminalMode()
	if err != nil {
		return nil, err
	}
	t := &terminal{cooked: cooked, state: liner.NewLiner()}
	if t.raw, err = liner.TerminalMode(); err != nil {
		return nil, errors.Join(err, t.state.Close())
	}
	t.state.SetCtrlCAborts(true)
	t.state.SetMultiLineMode(true)
	t.state.SetBeep(false)
	if dir, err := embedded.CacheDir(); err == nil {
		t.history = filepath.Join(dir, "history")
		if data, err := os.ReadFile(t.history); err == nil {
			t.state.ReadHistory(bytes.NewReader(data)) //nolint:errcheck // a damaged history is a shorter one
		}
	}
	t.suspend.start(cooked)
	return t, cooked.ApplyMode()
}

// ReadLine shows the prompt and returns the line typed, without its end.
func (t *terminal) ReadLine(prompt string) (string, error) {
	if err := t.raw.ApplyMode(); err != nil {
		return "", err
	}
	done := t.suspend.prompting()
	line, err := t.state.Prompt(prompt)
	done()
	if err := t.cooked.ApplyMode(); err != nil {
		return "", err
	}
	switch {
	case errors.Is(err, liner.ErrPromptAborted):
		return "", errInterrupted
	case errors.Is(err, io.EOF):
		fmt.Println() // the shell's prompt begins a line
	case err == nil && line != "":
		t.state.AppendHistory(line)
	}
	return line, err
}

// Close gives the terminal back and keeps the history. A history that cannot be written is not worth an error.
func (t *terminal) Close() {
	t.suspend.stop()
	t.state.Close() //nolint:errcheck
	var lines bytes.Buffer
	if _, err := t.state.WriteHistory(&lines); err != nil || t.history == "" || lines.Len() == 0 {
		return
	}
	if err := os.MkdirAll(filepath.Dir(t.history), 0o700); err == nil {
		writeFile(t.history, lines.Bytes()) //nolint:errcheck
	}
}
