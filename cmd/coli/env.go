package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/internal/embedded"
)

const envPrefix = "COLI_"

// plainEnv are the variables that are no flag's twin.
var plainEnv = []string{
	embedded.CacheDirEnv,   // where the embedded model and the history of the conversation's lines go
	"COLI_CPU",             // limits the instruction set the kernels use
	"COLI_VK_LOADER",       // the Vulkan loader to open
	device.CapEnv,          // the most device memory to use
	device.WindowEnv,       // plays a device whose memory the host sees through a window
	device.FaultEnv,        // makes the device fail
	"COLI_TEST_DEVICE",     // the device of the tests
	"COLI_TEST_VALIDATION", // 0: tests without the validation layer
	"COLI_CI",              // makes tests fail, instead of skip, without their material
}

// twin is the environment variable that sets a flag: COLI_TOP_K for --top-k.
func twin(flag string) string { return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }

// checkEnv refuses a COLI_ variable that no command knows: a misspelt one would otherwise be ignored without a word. So it does with what
// a device would refuse, whether one is looked for or not.
func checkEnv(root *cobra.Command, environ []string) error {
	known := slices.Clone(plainEnv)
	for cmd := range descendants(root) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, twin(f.Name)) })
	}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		if slices.Contains(known, name) {
			if err := checkValue(name, value); err != nil {
				return fmt.Errorf("%s: %w", entry, err)
			}
			continue
		}
		if near := nearest(name, known); near != "" {
			return fmt.Errorf("unknown environment variable %s; did you mean %s?", name, near)
		}
		return fmt.Errorf("unknown environment variable %s; COLI_<FLAG> sets a flag, as COLI_TOP_K sets --top-k", name)
	}
	return nil
}

// checkValue is an error if a variable of the device cannot have a value. Empty counts as absent.
func checkValue(name, value string) (err error) {
	switch {
	case value == "":
	case name == device.CapEnv || name == device.WindowEnv:
		if n, err := strconv.ParseInt(value, 10, 32); err != nil || n <= 0 {
			return errors.New("want a whole number of MiB, 1 or more")
		}
	case name == device.FaultEnv:
		_, err = device.ParseFaults(value)
	}
	return err
}

// applyEnv gives the flags that the command line left alone the values of their twins. An empty variable counts as absent.
func applyEnv(flags *pflag.FlagSet, environ []string) error {
	values := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		value := values[twin(f.Name)]
		if f.Changed || value == "" || f.Name == "help" {
			return
		}
		if err := f.Value.Set(value); err != nil {
			errs = append(errs, valueError(twin(f.Name)+"="+value, f, err))
			return
		}
		f.Changed = true
	})
	return errors.Join(errs...)
}

// flagError puts pflag's errors in coli's words.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	var absent *pflag.ValueRequiredError
	switch {
	case errors.As(err, &invalid):
		return valueError("--"+invalid.GetFlag().Name+" "+invalid.GetValue(), invalid.GetFlag(), invalid.Unwrap())
	case errors.As(err, &absent):
		return fmt.Errorf("--%s needs a value", absent.GetFlag().Name)
	}
	return err
}

// valueError says what a flag's value should have been; said is the setting as the user wrote it.
func valueError(said string, f *pflag.Flag, err error) error {
	switch f.Value.Type() {
	case "int", "int64":
		return fmt.Errorf("%s: want a whole number", said)
	case "uint64":
		return fmt.Errorf("%s: want a whole number of 0 or more", said)
	case "float32":
		return fmt.Errorf("%s: want a number", said)
	case "bool":
		return fmt.Errorf("%s: want true or false", said)
	}
	return fmt.Errorf("%s: %w", said, err)
}
