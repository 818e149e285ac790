package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/bench/plots"
)

// plotter is the observer that draws the records when an experiment has ended.
type plotter struct {
	dir string
	run *benchRun
}

func (p *plotter) flags(f *pflag.FlagSet) {
	f.StringVar(&p.dir, "plot", "", "write pictures of the result to the folder `DIR`, as SVG and PNG")
}

func (p *plotter) wanted() bool { return p.dir != "" }

// start makes sure of the folder: an experiment of an hour should not end at a missing permission.
func (p *plotter) start(_ context.Context, b *benchRun) error {
	p.run = b
	return plotDir(p.dir)
}

func (*plotter) event(bench.Event) {}

func (p *plotter) stop(records []bench.Record) error {
	if len(records) == 0 {
		return nil
	}
	return draw(p.dir, records, p.run.say)
}

func (*plotter) measures() bool { return false }

func (*plotter) screen() bool { return false }

// plotDir makes the folder and tries to write into it.
func plotDir(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	var f *os.File
	if err == nil {
		f, err = os.CreateTemp(dir, ".coli-*")
	}
	if err == nil {
		err = errors.Join(f.Close(), os.Remove(f.Name()))
	}
	if err != nil {
		return usageError{fmt.Errorf("--plot %s: no pictures can be written there: %w", dir, err)}
	}
	return nil
}

// draw writes pictures and says where.
func draw(dir string, records []bench.Record, say func(string)) error {
	files, err := plots.Write(dir, records)
	if len(files) > 0 {
		var names []string
		for _, f := range files {
			if name, ok := strings.CutSuffix(filepath.Base(f), ".svg"); ok {
				names = append(names, name)
			}
		}
		say(fmt.Sprintf("pictures in %s, as SVG and PNG: %s", dir, strings.Join(names, ", ")))
	}
	if errors.Is(err, plots.ErrNothing) {
		say(err.Error())
		return nil
	}
	return err
}

// newPlotCmd returns `coli bench plot`, a few lines over package bench/plots.
func newPlotCmd() *cobra.Command {
	var dir string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "plot RECORDS...",
		Short: "Draw the records of earlier experiments",
		Long: "Draw what experiments wrote with -o json or -o jsonl: the pictures that --plot of the experiment draws. Records of several files are\n" +
			"drawn together, those of one experiment in one picture. \"-\" reads standard input. The same records give the same bytes.",
		Example: "  coli bench stream -m model.coli -o jsonl > stream.jsonl\n  coli bench plot stream.jsonl --plot plots/\n" +
			"  coli bench plot before.jsonl after.jsonl --plot compared/   # commits and machines become part of the labels",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("which records? Name the file that an experiment's -o jsonl was written to, or -")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var all []bench.Record
			for _, path := range args {
				records, err := readRecords(cmd.InOrStdin(), path)
				if err != nil {
					return err
				}
				all = append(all, records...)
			}
			if err := plotDir(dir); err != nil {
				return err
			}
			files, err := plots.Write(dir, all)
			for _, f := range files {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), f); err != nil {
					return outputError(err)
				}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "plot", ".", "the folder `DIR` for the pictures")
	f.BoolVar(&quiet, "quiet", false, "nothing on standard error but errors")
	return cmd
}

// readRecords reads an array of records, or one after the other.
func readRecords(stdin io.Reader, path string) (records []bench.Record, err error) {
	in, name := stdin, "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // it was only read
		in, name = f, path
	}
	data, err := io.ReadAll(bufio.NewReader(in))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	array := bytes.HasPrefix(bytes.TrimSpace(data), []byte("["))
	for n := 1; ; n++ {
		var part []bench.Record
		if array {
			err = d.Decode(&part)
		} else {
			part = make([]bench.Record, 1)
			err = d.Decode(&part[0])
		}
		switch {
		case errors.Is(err, io.EOF) && n > 1:
			return records, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%s: no records: it is empty", name)
		case err != nil:
			return nil, fmt.Errorf("%s: byte %d: %w; what is drawn are records, as -o json and -o jsonl write them", name, d.InputOffset(), err)
		}
		for _, r := range part {
			if r.Experiment == "" || r.Metrics == nil && r.Skipped == "" {
				return nil, fmt.Errorf("%s: byte %d: a value without experiment and metrics; what is drawn are records, as -o json and -o jsonl write them",
					name, d.InputOffset())
			}
		}
		records = append(records, part...)
	}
}
