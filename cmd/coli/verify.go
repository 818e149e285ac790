package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/engine/oracle"
)

// errMismatch ends `coli verify` after its report was printed.
var errMismatch = errors.New("the model does not reproduce its oracle")

// newVerifyCmd returns `coli verify`, a few lines over package engine/oracle.
func newVerifyCmd() *cobra.Command {
	var opt engine.Options
	var place placement
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Compare a model with the stored outputs of a reference implementation",
		Long: "Run every prompt of DIR/oracle.json on the checkpoint in DIR and compare greedy ids, logits, hidden states and routing with the\n" +
			"reference's. The exit code is 1 when something differs; the first value that does is named. --chunk and --threads change how the\n" +
			"work is cut up, --ram and what follows it where experts come from, --device and --gpu-layers what computes; none must change the\n" +
			"result. Where a device was asked for, or has layers, the exit code is 1 too if it computed nothing or failed.",
		Example: "  coli verify testdata/oracles/olmoe\n  coli verify --chunk 3 --threads 1 --json testdata/oracles/qwen3_moe\n" +
			"  coli verify --ram 100KiB --readers 1 testdata/oracles/olmoe\n  coli verify --device llvmpipe --gpu-layers all testdata/oracles/olmoe",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("which model? Give the one folder that holds it and its oracle.json, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := place.check(); err != nil {
				return usageError{err}
			}
			ref, err := oracle.Open(args[0])
			if err != nil {
				return err
			}
			var report verifyReport
			var unproven error
			err = place.with(cmd, args[0], opt, func(ctx context.Context, m *engine.Model) (err error) {
				if report.Report, err = ref.Check(ctx, m); err == nil {
					report.Device, unproven = newDeviceWork(m), place.device.proven(m)
				}
				return err
			})
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				err = printReport(cmd.OutOrStdout(), filepath.Base(ref.Dir), report)
			}
			if err == nil && report.First != nil {
				err = errMismatch
			}
			return errors.Join(err, unproven)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&opt.Chunk, "chunk", engine.DefaultChunk, "rows of a prefill step")
	flags.IntVarP(&opt.Threads, "threads", "t", 0, "CPU threads, 0 for the physical cores this process may use")
	flags.BoolVar(&asJSON, "json", false, "print the report as JSON")
	place.flags(cmd)
	return cmd
}

// verifyReport is what --json prints.
type verifyReport struct {
	*oracle.Report
	Device *deviceWork `json:"device,omitempty"`
}

func printReport(w io.Writer, name string, r verifyReport) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "prompt\tgreedy ids\tlargest logit difference\tallowed\tlogits compared")
	for _, p := range r.Prompts {
		fmt.Fprintf(tab, "%d tokens\t%d/%d\t%.2g\t%.2g\t%d\n", p.Tokens, p.Matched, p.Greedy, p.Difference, p.Allowed, p.Logits)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	for _, g := range []struct {
		what string
		oracle.Group
	}{{"hidden states", r.Hidden}, {"routing", r.Routing}} {
		if g.Tensors == 0 {
			fmt.Fprintf(w, "%s: not in the oracle\n", g.what)
			continue
		}
		fmt.Fprintf(w, "%s: %d of %d tensors agree (%d values, largest difference %.2g of what is allowed)\n",
			g.what, g.Tensors-g.Differ, g.Tensors, g.Values, g.OfAllowed)
	}
	if r.Device != nil {
		fmt.Fprintln(w, "device:", r.Device)
	}
	verdict := "ok"
	if r.First != nil {
		verdict = "first difference: " + r.First.String()
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", name, verdict)
	return err
}
