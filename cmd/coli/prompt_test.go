package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pipe returns the reading end of a pipe that holds text.
func pipe(t *testing.T, text string) *os.File {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		io.WriteString(w, text) //nolint:errcheck // the test may not read it
		w.Close()
	}()
	t.Cleanup(func() { r.Close() })
	return r
}

func TestPromptSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := write("report", "\ufeffthe report\r\n")
	for _, c := range []struct {
		name   string
		source promptSource
		stdin  string // "" is the null device
		want   string
		err    string
	}{
		{name: "words", source: promptSource{args: []string{"Once", "upon a time"}}, want: "Once upon a time"},
		{name: "flag", source: promptSource{prompt: "Once"}, want: "Once"},
		{name: "both", source: promptSource{args: []string{"Once"}, prompt: "Twice"}, err: "two prompts"},
		{name: "pipe", stdin: "Once upon\na time\n\n", want: "Once upon\na time\n"},
		{name: "words and pipe", source: promptSource{args: []string{"Sum up:"}}, stdin: "a\n", want: "Sum up:\n\na"},
		{name: "words and file", source: promptSource{args: []string{"Sum up:"}, file: file}, want: "Sum up:\n\nthe report"},
		{name: "dash", source: promptSource{args: []string{"-"}}, stdin: "a", want: "a"},
		{name: "file dash", source: promptSource{prompt: "Sum up:", file: "-"}, stdin: "a", want: "Sum up:\n\na"},
		{name: "nothing", err: "no prompt"},
		{name: "empty word", source: promptSource{args: []string{""}}, err: "no prompt"},
		{name: "empty pipe", stdin: "\n", err: "no prompt"},
		{name: "no such file", source: promptSource{file: filepath.Join(dir, "none")}, err: "--file: open "},
		{name: "not text", source: promptSource{args: []string{"a\xff"}}, err: "not UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.source.notes = io.Discard
			if c.stdin != "" {
				c.source.stdin = pipe(t, c.stdin)
			} else {
				null, err := os.Open(os.DevNull)
				if err != nil {
					t.Fatal(err)
				}
				defer null.Close()
				c.source.stdin = null
			}
			got, err := c.source.read()
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) || c.err == "" && err != nil {
				t.Fatalf("error %v, want %q", err, c.err)
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			var usage usageError
			if c.err == "no prompt" && !errors.As(err, &usage) {
				t.Errorf("%v is not an error of usage", err)
			}
		})
	}
}

func TestPromptIsBounded(t *testing.T) {
	r := io.LimitReader(zeros{}, maxPrompt+2)
	if _, err := readText(r, "standard input"); err == nil || !strings.Contains(err.Error(), "more than 64 MB") {
		t.Errorf("got %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
