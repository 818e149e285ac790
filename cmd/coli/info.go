package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/coli-moe/coli/engine/inspect"
	"github.com/coli-moe/coli/weights"
)

// newInfoCmd returns `coli info`, a few lines over package engine/inspect.
func newInfoCmd() *cobra.Command {
	var path string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info [MODEL]",
		Short: "Describe a model: sizes, formats, experts, kernels",
		Long: "Describe a model file or directory without running it. MODEL defaults to $COLI_MODEL, then to the built-in one.\n" +
			"Models of architectures that coli cannot run yet are described too.",
		Example: "  coli info\n  coli info --json model.gguf",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("which model? Give one, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				path = args[0]
			}
			path, err := modelPath(cmd, path)
			if err != nil {
				return err
			}
			c, err := weights.Open(path)
			if err != nil {
				return err
			}
			defer c.Close()
			info, err := inspect.Checkpoint(c)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), info)
			}
			return printInfo(cmd.OutOrStdout(), info)
		},
	}
	cmd.Flags().StringVarP(&path, "model", "m", "", "the same as MODEL, by `PATH`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the description as JSON")
	return cmd
}

func printInfo(w io.Writer, in *inspect.Info) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(key, format string, args ...any) { fmt.Fprintf(tab, key+"\t"+format+"\n", args...) }
	orNone := func(n int) string {
		if n == 0 {
			return "not given"
		}
		return fmt.Sprint(n)
	}
	row("name", "%s", in.Name)
	architecture := in.Architecture
	if !in.Runs {
		architecture += " (coli cannot run it yet)"
	}
	row("architecture", "%s", architecture)
	active := ""
	if in.Active > 0 {
		active = fmt.Sprintf(", %s active for a token", count(in.Active))
	}
	row("parameters", "%s%s", count(in.Parameters), active)
	row("tensors", "%s in %d file(s)", size(in.Bytes), in.Files)
	row("layers", "%s", orNone(in.Layers))
	if e := in.Experts; e.Count > 0 {
		row("experts", "%d in each of %d layers, top %d, %s", e.Count, e.Layers, e.TopK, sizes(e.MinBytes, e.MaxBytes))
	}
	row("context", "%s", orNone(in.Context))
	row("vocabulary", "%s", orNone(in.Vocabulary))
	tokenizer := in.Tokenizer
	if tokenizer == "" {
		tokenizer = "none"
	}
	row("tokenizer", "%s", tokenizer)
	row("chat template", "%s", map[bool]string{true: "yes", false: "no"}[in.ChatTemplate])
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(tab, "\nrole\tformat\tbits/weight\ttensors\tparameters\tsize\tkernel")
	for _, c := range in.Classes {
		kernel := c.Kernel
		switch {
		case kernel == "":
			kernel = "-"
		case !c.Direct:
			kernel += ", row by row"
		}
		fmt.Fprintf(tab, "%s\t%s\t%.2f\t%d\t%s\t%s\t%s\n", c.Role, c.Format, c.BitsPerWeight, c.Tensors, count(c.Parameters), size(c.Bytes), kernel)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	for _, text := range in.Warnings {
		fmt.Fprintln(w, "warning:", text)
	}
	return nil
}

// count prints a number of parameters.
func count(n int64) string {
	switch f := float64(n); {
	case n < 1e4:
		return fmt.Sprint(n)
	case n < 1e6:
		return fmt.Sprintf("%.1fK", f/1e3)
	case n < 1e9:
		return fmt.Sprintf("%.1fM", f/1e6)
	default:
		return fmt.Sprintf("%.1fB", f/1e9)
	}
}

// size prints a number of bytes.
func size(n int64) string {
	switch f := float64(n); {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", f/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", f/(1<<20))
	default:
		return fmt.Sprintf("%.1f GiB", f/(1<<30))
	}
}

// sizes prints the size of an expert.
func sizes(from, to int64) string {
	switch {
	case to == 0:
		return "of unknown size"
	case from == to:
		return size(from) + " each"
	}
	return size(from) + " to " + size(to) + " each"
}

// writeJSON prints v for a program to read.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
