package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/coli-moe/coli/device"
)

// newDevicesCmd returns `coli devices`, a few lines over package device.
func newDevicesCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the Vulkan devices of this machine",
		Long: "List the devices that layers can run on, in the order --device counts them. Where there is none, one line on standard error says\n" +
			"what to try, and the exit code is 0: that is an answer, too.",
		Example: "  coli devices\n  coli devices --json",
		Args:    noWords("coli devices lists all there are"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := device.List(device.Options{})
			none := errors.Is(err, device.ErrNoLoader) || errors.Is(err, device.ErrNoDevice)
			switch {
			case none:
				note(cmd.ErrOrStderr(), "%v", err)
			case err != nil:
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), newReportDevices(all))
			}
			if none {
				return nil
			}
			if all[0].Type != device.Discrete {
				note(cmd.ErrOrStderr(), "none is a card of its own: the CPU runs all layers unless --device asks for one of these")
			}
			return printDevices(cmd.OutOrStdout(), all)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array, which is empty where there is no device")
	return cmd
}

func printDevices(w io.Writer, all []device.Info) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "device\tname\ttype\tdriver\tVulkan\tmemory\tfree\tfeatures")
	for _, d := range all {
		free := "unknown"
		if d.Free > 0 {
			free = size(d.Free)
		}
		features := d.Features.String()
		if d.Missing != "" {
			features = "cannot be used: it has no " + d.Missing
		}
		fmt.Fprintf(tab, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Index, d.Name, d.Type, d.Driver, d.API, size(d.Memory), free, features)
	}
	return tab.Flush()
}

// reportDevice is an element of the array that --json prints.
type reportDevice struct {
	Index    int      `json:"index"`
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	Driver   string   `json:"driver"`
	API      string   `json:"api"`
	Memory   int64    `json:"memory_bytes"`
	Free     *int64   `json:"free_bytes"` // null where the driver does not tell
	Subgroup int      `json:"subgroup_size"`
	Smallest int      `json:"min_subgroup_size"`
	Largest  int      `json:"max_subgroup_size"`
	Features []string `json:"features"`
	Missing  string   `json:"missing,omitempty"` // why coli cannot use it
}

func newReportDevices(all []device.Info) []reportDevice {
	out := []reportDevice{}
	for _, d := range all {
		r := reportDevice{
			Index: d.Index, Name: d.Name, Type: d.Type.String(), Driver: d.Driver, API: d.API, Memory: d.Memory,
			Subgroup: d.Subgroup, Smallest: d.MinSubgroup, Largest: d.MaxSubgroup, Features: strings.Fields(d.Features.String()), Missing: d.Missing,
		}
		if d.Free > 0 {
			r.Free = &d.Free
		}
		out = append(out, r)
	}
	return out
}
