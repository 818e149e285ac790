package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/coli-moe/coli/doctor"
)

const doctorLong = `Look this machine over: processor and kernels, cores, memory and its limits, huge pages, the drive, permission to probe block I/O, Vulkan
devices. Each check says ok, no or unknown, what was found, and what can be done. Nothing is changed.

A no costs speed, or a way of running; the exit code is 0 unless one stops coli from running, and 1 then.`

// newDoctorCmd returns `coli doctor`, a few lines over package doctor.
func newDoctorCmd() *cobra.Command {
	var path string
	var asJSON bool
	var o doctor.Options
	cmd := &cobra.Command{
		Use:     "doctor",
		Short:   "Look this machine over for what makes coli slow",
		Long:    doctorLong,
		Example: "  coli doctor\n  coli doctor -m model.gguf --json",
		Args:    noWords("a model to look at is named with -m"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := endable(cmd.Context())
			defer stop()
			checks := doctor.Run(ctx, doctor.Machine(path), o)
			if err := ctx.Err(); err != nil {
				return err
			}
			stopped := doctor.Stopped(checks)
			var err error
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), reportDoctor{!stopped, checks})
			} else {
				err = printChecks(cmd.OutOrStdout(), checks)
			}
			if err != nil {
				return outputError(err)
			}
			if stopped {
				return exitError(exitFailed)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&path, "model", "m", "", "look at this model and its drive: `PATH` of a file or a directory")
	cmd.Flags().BoolVar(&o.Quick, "quick", false, "measure no rates")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// reportDoctor is what --json prints.
type reportDoctor struct {
	Runs   bool           `json:"runs"` // nothing stops coli from running
	Checks []doctor.Check `json:"checks"`
}

func printChecks(w io.Writer, checks []doctor.Check) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		status := string(c.Status)
		if c.Stops {
			status += "!"
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\n", status, c.Name, c.Found)
		if c.Todo != "" {
			fmt.Fprintf(tab, "\t\t→ %s\n", c.Todo)
		}
	}
	return tab.Flush()
}
