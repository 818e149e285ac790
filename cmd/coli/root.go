package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coli-moe/coli/kernels"
)

// Exit codes. The last two are a shell's for a program ended by SIGINT and by SIGPIPE.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
	exitPipe        = 141
)

// usageError marks a mistake in how the command was called that only the command itself can notice.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitError ends the program with a code and without a message: what there was to say has been said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// run executes a command line and returns the exit code.
func run(args, environ []string) int {
	root := newRoot()
	started := false   // whether a command's own work began: an error before that is one of usage
	var notes []string // shown unless --quiet is given
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		err := errors.Join(checkEnv(root, environ), applyEnv(cmd.Flags(), environ), kernels.Err())
		if quiet, _ := cmd.Flags().GetBool("quiet"); err == nil && !quiet {
			for _, line := range notes {
				note(cmd.ErrOrStderr(), "%s", line)
			}
		}
		return err
	}
	for cmd := range descendants(root) {
		if work := cmd.RunE; work != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				started = true
				return work(cmd, args)
			}
		}
	}
	var err error
	if notes, err = parse(root, args); err == nil {
		err = root.ExecuteContext(context.Background())
	}
	var usage usageError
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	for line := range strings.Lines(err.Error()) {
		note(os.Stderr, "%s", strings.TrimSpace(line))
	}
	if !started || errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// note writes one of coli's own lines.
func note(w interface{ Write([]byte) (int, error) }, format string, args ...any) {
	fmt.Fprintf(w, "coli: "+format+"\n", args...) //nolint:errcheck // there is nowhere left to report it
}

// parse prepares the arguments of the subcommand, whose name comes first, for pflag. It returns lines to be shown on stderr.
func parse(root *cobra.Command, args []string) (notes []string, err error) {
	root.InitDefaultHelpCmd()
	cmd, path := root, []string{}
	for len(args) > 0 && cmd.HasSubCommands() && !strings.HasPrefix(args[0], "-") {
		next := child(cmd, args[0])
		if next == nil {
			return nil, unknownCommand(cmd, args[0])
		}
		cmd, path, args = next, append(path, args[0]), args[1:]
		if cmd.Name() == "help" {
			break
		}
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	rest, notes, err := normalize(cmd.Flags(), args)
	if err != nil {
		if c := knower(cmd, args); c != nil {
			err = fmt.Errorf("%s comes behind the command's name: %s %[1]s", args[0], c.CommandPath())
		}
		return nil, err
	}
	root.SetArgs(append(path, rest...))
	return notes, nil
}

// knower is the subcommand of cmd, the one named among args if one is, that has the flag that args begin with; nil if none has.
func knower(cmd *cobra.Command, args []string) (found *cobra.Command) {
	name, _, _ := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
	for _, c := range cmd.Commands() {
		if known := c.Flags().Lookup(name) != nil || len(name) == 1 && c.Flags().ShorthandLookup(name) != nil; known &&
			(found == nil || slices.Contains(args, c.Name())) {
			found = c
		}
	}
	return found
}

// child is the subcommand of that name, nil if there is none.
func child(cmd *cobra.Command, name string) *cobra.Command {
	for _, c := range cmd.Commands() {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// descendants are the commands below one, at every depth.
func descendants(cmd *cobra.Command) iter.Seq[*cobra.Command] {
	return func(yield func(*cobra.Command) bool) {
		for _, c := range cmd.Commands() {
			if !yield(c) {
				return
			}
			for d := range descendants(c) {
				if !yield(d) {
					return
				}
			}
		}
	}
}

// unknownCommand is the error about a word where the name of one of cmd's subcommands is expected, with a guess at what was meant.
func unknownCommand(cmd *cobra.Command, word string) error {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	if cmd.HasParent() {
		hint := "it has " + strings.Join(names, ", ")
		if near := nearest(word, names); near != "" {
			hint = fmt.Sprintf("did you mean %s %s?", cmd.CommandPath(), near)
		}
		return fmt.Errorf("%s has no %q; %s", cmd.CommandPath(), word, hint)
	}
	hint := fmt.Sprintf("to answer a prompt: coli run %q", word)
	if near := nearest(word, append(names, "version")); near == "version" {
		hint = "did you mean coli --version?"
	} else if near != "" {
		hint = "did you mean coli " + near + "?"
	} else if isModel(word) {
		hint = fmt.Sprintf("to run a model: coli run -m %q", word)
	} else if parent := parentOf(cmd, word); parent != nil {
		hint = fmt.Sprintf("did you mean %s %s?", parent.CommandPath(), word)
	}
	return fmt.Errorf("unknown command %q; %s", word, hint)
}

// parentOf is the command below root that has a subcommand of that name, nil if none has.
func parentOf(root *cobra.Command, name string) *cobra.Command {
	for c := range descendants(root) {
		if child(c, name) != nil {
			return c
		}
	}
	return nil
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "coli COMMAND",
		Short: "Run Mixture-of-Experts language models",
		Long: "coli runs Mixture-of-Experts language models on this machine. A small one, which tells fairy tales, is built in:\n\n" +
			"  coli run \"Once upon a time\"",
		Version:               version(),
		Args:                  cobra.NoArgs,
		SilenceErrors:         true,
		SilenceUsage:          true,
		DisableFlagsInUseLine: true,
		CompletionOptions:     cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetVersionTemplate("coli {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.SetUsageFunc(func(cmd *cobra.Command) error { return printUsage(cmd.OutOrStderr(), cmd) })
	root.AddCommand(newRunCmd(), newInfoCmd(), newPlanCmd(), newDoctorCmd(), newDevicesCmd(), newPerplexityCmd(), newVerifyCmd(), newConvertCmd(), newSynthCmd(), newBenchCmd())
	return root
}

// version is the module's version and, where the build recorded it, the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "of unknown version"
	}
	var commit, modified string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = ", commit " + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " with changes"
		}
	}
	return fmt.Sprintf("%s (%s/%s%s%s)", strings.Trim(info.Main.Version, "()"), runtime.GOOS, runtime.GOARCH, commit, modified)
}
