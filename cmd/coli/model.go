package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/embedded"
	"github.com/coli-moe/coli/weights/container"
)

// modelPath returns the model a command works on: the one given, the one COLI_MODEL names, or the one that ships with coli, which is then
// said in a line on stderr unless the command has a flag --quiet that is set.
func modelPath(cmd *cobra.Command, given string) (string, error) {
	if given == "" {
		given = os.Getenv(twin("model"))
	}
	if given != "" {
		return given, nil
	}
	if quiet, err := cmd.Flags().GetBool("quiet"); err != nil || !quiet {
		note(cmd.ErrOrStderr(), "no model given: this is the built-in %s", embedded.Name)
	}
	ctx, stop := endable(cmd.Context())
	defer stop()
	return embedded.Path(ctx, func(line string) { note(cmd.ErrOrStderr(), "%s", line) })
}

// isModel reports whether a word is the path of a model rather than part of a prompt.
func isModel(word string) bool {
	switch filepath.Ext(word) {
	case ".gguf", ".safetensors", filepath.Ext(container.Name):
		return !strings.ContainsAny(word, " \n")
	}
	for _, name := range []string{"config.json", container.Name} {
		if _, err := os.Stat(filepath.Join(word, name)); err == nil && word != "" {
			return true
		}
	}
	return false
}

// noWords is the check of a command's arguments where all that it needs has a flag.
func noWords(hint string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("what is %q? %s", args[0], hint)
		}
		return nil
	}
}

// patience is how long a load may take before a progress bar is shown.
const patience = 300 * time.Millisecond

// loadModel loads a model, with a progress bar where someone can see it and it takes long.
func loadModel(ctx context.Context, path string, opt engine.Options, quiet bool) (*engine.Model, error) {
	if !quiet && term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
		opt.Progress = progress(os.Stderr, time.Now)
	}
	m, err := engine.Load(ctx, path, opt)
	return m, loadError(err)
}

// loadError is the error of loading a model, or of planning to, marked where the mistake is the command line's.
func loadError(err error) error {
	if errors.Is(err, device.ErrNoMatch) {
		return usageError{err}
	}
	return err
}

// progress returns a function that draws a bar, from the time that patience ends, and erases it in the end.
func progress(w io.Writer, now func() time.Time) func(done, total int64) {
	start := now()
	var bar *progressbar.ProgressBar
	return func(done, total int64) {
		if bar == nil {
			if done >= total || now().Sub(start) < patience {
				return
			}
			bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription("loading"),
				progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(patience/3),
				progressbar.OptionClearOnFinish())
		}
		bar.Set64(done) //nolint:errcheck // a bar that cannot be drawn is no reason to stop
	}
}
