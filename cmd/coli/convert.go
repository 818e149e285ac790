package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coli-moe/coli/convert"
)

// newConvertCmd returns `coli convert`, a few lines over package convert.
func newConvertCmd() *cobra.Command {
	var o convert.Options
	var output, experts, dense string
	var check bool
	cmd := &cobra.Command{
		Use:   "convert SOURCE -o DIR",
		Short: "Convert a model to a coli container, or check one",
		Long: "Write the model SOURCE (safetensors, GGUF or a container) as a coli container into the new folder DIR, its routed experts as int4\n" +
			"unless they are that small already. An expert lies in one piece there, so that it is read from disk with one request.\n\n" +
			"A conversion that was interrupted goes on where it stopped when the same command is given again; until it is complete its output\n" +
			"lies in DIR.partial. With --check, nothing is written: the checksums of the container SOURCE are compared with its contents.",
		Example: "  coli convert olmoe/ -o olmoe.coli\n  coli convert model.gguf --experts keep -o model.coli\n  coli convert --check olmoe.coli",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("which model? Give one, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := endable(cmd.Context())
			defer stop()
			if term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
				what := map[bool]string{false: "converting", true: "checking"}[check]
				bar := progressbar.NewOptions64(1, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription(what),
					progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(patience/3),
					progressbar.OptionClearOnFinish())
				defer bar.Exit() //nolint:errcheck // a bar that cannot be drawn is no reason to stop
				o.Progress = func(done, total int64) {
					bar.ChangeMax64(total)
					bar.Set64(done) //nolint:errcheck // likewise
				}
			}
			start := time.Now()
			if check {
				if output != "" || experts != "" || dense != "" {
					return usageError{errors.New("--check writes nothing: leave --output, --experts and --dense away")}
				}
				n, err := convert.Check(ctx, args[0], o.Threads, o.Progress)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: all checksums agree (%s, %.1f s)\n", args[0], size(n), time.Since(start).Seconds())
				return err
			}
			if output == "" {
				return usageError{errors.New("--output is missing: name the folder to write, as in -o model.coli")}
			}
			var err1, err2 error
			o.Experts, err1 = convert.ParseTarget(experts)
			o.Dense, err2 = convert.ParseTarget(dense)
			if err := errors.Join(err1, err2); err != nil {
				return usageError{err}
			}
			o.Note = func(line string) { note(cmd.ErrOrStderr(), "%s", line) }
			r, err := convert.Run(ctx, args[0], output, o)
			if err != nil {
				if ctx.Err() != nil { // run is silent about interruptions
					note(cmd.ErrOrStderr(), "%v", err)
				}
				return err
			}
			note(cmd.ErrOrStderr(), "%s: %s of tensors became %s, %.2f bits a weight (routed experts %.2f), in %.1f s", filepath.Clean(output),
				size(r.SourceBytes), size(r.Bytes), r.BitsPerWeight, r.ExpertBitsPerWeight, r.Elapsed.Seconds())
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&output, "output", "o", "", "`DIR` to write, new or empty")
	flags.StringVar(&experts, "experts", "", "`FORMAT` of routed experts: int4-g64, int8, keep (default: int4-g64, as stored if that is no larger)")
	flags.StringVar(&dense, "dense", "", "`FORMAT` of other matrices: keep, int8, …; norms and routers stay as stored (default: keep)")
	flags.IntVarP(&o.Threads, "threads", "t", 0, "CPU threads, 0 for all that this process may use")
	flags.BoolVar(&check, "check", false, "compare a container's checksums with its contents")
	return cmd
}
