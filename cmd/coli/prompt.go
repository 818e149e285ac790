package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// maxPrompt bounds a prompt's bytes; no context holds as much.
const maxPrompt = 64 << 20

// errNoPrompt says that there is nothing to answer.
var errNoPrompt = errors.New("no prompt: give one as an argument, with --prompt or --file, or through a pipe")

// promptSource is where a prompt's text may come from.
type promptSource struct {
	args   []string // positional words; "-" stands for standard input
	prompt string   // --prompt
	file   string   // --file; "-" stands for standard input
	stdin  *os.File
	notes  io.Writer
}

// read returns the prompt: the words given, then the text of the file, then what is piped in, an empty line between them. Without any of
// these it returns "" if standard input is a terminal, and errNoPrompt if not.
func (s promptSource) read() (string, error) {
	var words []string
	dash := s.file == "-"
	for _, w := range s.args {
		if w == "-" {
			dash = true
			continue
		}
		words = append(words, w)
	}
	if s.prompt != "" && words != nil {
		return "", usageError{errors.New("two prompts: give it as an argument or with --prompt, not both")}
	}
	if s.prompt != "" {
		words = []string{s.prompt}
	}
	parts := []string{strings.Join(words, " ")}
	if s.file != "" && s.file != "-" {
		f, err := os.Open(s.file)
		if err != nil {
			return "", fmt.Errorf("--file: %w", err)
		}
		defer f.Close()
		text, err := readText(f, s.file)
		if err != nil {
			return "", err
		}
		parts = append(parts, text)
	}
	terminal := term.IsTerminal(int(s.stdin.Fd()))
	if dash || !terminal && hasText(s.stdin) {
		if !dash {
			waiting := time.AfterFunc(2*time.Second, func() {
				note(s.notes, "waiting for the end of standard input, which is part of the prompt; </dev/null leaves it out")
			})
			defer waiting.Stop()
		}
		text, err := readText(s.stdin, "standard input")
		if err != nil {
			return "", err
		}
		parts = append(parts, text)
	}
	given := parts[:0]
	for _, p := range parts {
		if p != "" {
			given = append(given, p)
		}
	}
	if len(given) == 0 && (!terminal || dash || len(parts) > 1 || len(s.args) > 0) {
		return "", usageError{errNoPrompt}
	}
	text := strings.Join(given, "\n\n")
	if !utf8.ValidString(text) {
		return "", errors.New("the prompt is not UTF-8 text; convert it first, for example with iconv -t UTF-8")
	}
	return text, nil
}

// hasText tells a pipe, a file or a socket, which is read to its end, from a device such as /dev/null and from a closed descriptor.
func hasText(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice == 0
}

// readText reads a text without its byte order mark and its last line break.
func readText(r io.Reader, name string) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPrompt+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("reading the prompt: %w", err)
	case len(data) > maxPrompt:
		return "", fmt.Errorf("%s has more than %d MB, which no context holds", name, maxPrompt>>20)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	return string(bytes.TrimSuffix(bytes.TrimSuffix(data, []byte("\n")), []byte("\r"))), nil
}
