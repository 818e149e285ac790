package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of a flag and a command that shape the help text.
const (
	groupKey  = "group"  // of a flag: the heading it stands under
	footerKey = "footer" // of a command: the last paragraph
)

// group defines flags of cmd under a heading of its help.
func group(cmd *cobra.Command, heading string, define func(*pflag.FlagSet)) {
	flags := pflag.NewFlagSet(heading, pflag.ContinueOnError)
	flags.SortFlags = false
	define(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		f.Annotations = map[string][]string{groupKey: {heading}}
		cmd.Flags().AddFlag(f)
	})
}

// printUsage prints how a command is called: usage lines, examples, subcommands and, in the order they were defined, its flags.
func printUsage(w io.Writer, cmd *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\nCommands:\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() && c.Name() != "help" {
				fmt.Fprintf(&b, "  %-*s  %s\n", cmd.NamePadding(), c.Name(), c.Short)
			}
		}
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	width := 0
	cmd.Flags().SortFlags = false
	cmd.Flags().VisitAll(func(f *pflag.Flag) { width = max(width, len(flagName(f))) })
	heading := ""
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		h := "Flags"
		if g := f.Annotations[groupKey]; g != nil {
			h = g[0]
		}
		if f.Name == "help" || f.Name == "version" {
			h = cmp.Or(heading, h) // cobra's own stand where the last flag stands
		}
		if h != heading {
			heading = h
			fmt.Fprintf(&b, "\n%s:\n", h)
		}
		_, usage := pflag.UnquoteUsage(f)
		def := f.DefValue
		if def == "" || def == "0" || def == "false" || def == "[]" || strings.Contains(usage, "default") {
			def = ""
		} else {
			def = " (default " + def + ")"
		}
		fmt.Fprintf(&b, "  %-*s  %s%s\n", width, flagName(f), usage, def)
	})
	b.WriteString(cmd.Annotations[footerKey])
	_, err := io.WriteString(w, b.String())
	return err
}

// flagName is a flag as it is typed, with a word for its value.
func flagName(f *pflag.Flag) string {
	name := "    --" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", --" + f.Name
	}
	value, _ := pflag.UnquoteUsage(f)
	switch f.Value.Type() {
	case "bool":
		value = ""
	case "int", "int64", "uint64":
		value = "N"
	case "float32":
		value = "X"
	case "string", "stringArray":
		if value == f.Value.Type() || value == "string" {
			value = "TEXT"
		}
	}
	return strings.TrimRight(name+" "+value, " ")
}
