package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/engine/perplexity"
)

// newPerplexityCmd returns `coli perplexity`, a few lines over package engine/perplexity.
func newPerplexityCmd() *cobra.Command {
	var model, text string
	var load engine.Options
	var place placement
	var opt perplexity.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "perplexity [-m MODEL] -f TEXT",
		Short: "Measure how well a model predicts a text",
		Long: "Measure perplexity by llama.cpp's convention: the text is tokenized once without BOS, cut into windows of --ctx-size tokens, and the\n" +
			"second half of each window is scored. Lower is better. The running value goes to stderr, the result to stdout.",
		Example: "  coli perplexity -m model.gguf -f text.txt -c 512 --chunks 60",
		Args:    noWords("the model is named by -m, the text by -f"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if text == "" {
				return usageError{errors.New("which text? Give --file FILE")}
			}
			if err := place.check(); err != nil {
				return usageError{err}
			}
			data, err := os.ReadFile(text)
			if err != nil {
				return fmt.Errorf("--file: %w", err)
			}
			path, err := modelPath(cmd, model)
			if err != nil {
				return err
			}
			progress := cmd.ErrOrStderr()
			opt.Progress = func(window int, ppl float64) { fmt.Fprintf(progress, "[%d]%.4f,", window, ppl) }
			var res perplexity.Result
			load.Context = max(opt.Context, 0)
			err = place.with(cmd, path, load, func(ctx context.Context, m *engine.Model) error {
				tok, err := m.Tokenizer()
				if err != nil {
					return err
				}
				res, err = perplexity.Measure(ctx, m, tok.Encode(string(data)), opt)
				if err == nil {
					fmt.Fprintln(progress)
				}
				return err
			})
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), res)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "PPL = %.4f ± %.4f\n", res.Perplexity, res.Error)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&model, "model", "m", "", "`PATH` of a GGUF, safetensors or coli file or a directory (default: the built-in model)")
	flags.StringVarP(&text, "file", "f", "", "`FILE` with the text to predict")
	flags.IntVarP(&opt.Context, "ctx-size", "c", perplexity.DefaultContext, "tokens of a window, 0 for llama.cpp's 512")
	flags.IntVar(&opt.Windows, "chunks", 0, "windows to score, 0 for all that the text has")
	flags.IntVarP(&load.Threads, "threads", "t", 0, "CPU threads, 0 for the physical cores this process may use")
	flags.BoolVar(&asJSON, "json", false, "print the result as JSON")
	place.flags(cmd)
	return cmd
}
