package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/internal/embedded"
	"github.com/coli-moe/coli/internal/sharedtest"
)

// cache is where the tests have the embedded model unpacked.
var cache string

// tests runs the tests with a cache directory of their own.
type tests struct{ *testing.M }

func (m tests) Run() int {
	var err error
	if cache, err = os.MkdirTemp("", "coli-cache-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(cache)
	return m.M.Run()
}

// TestMain lets the test binary be coli: called by that name, it is the command; and one that panics.
func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){"coli": main, "bench-panics": benchPanics})
}

// coli returns the command, with an environment that holds nothing of the caller's COLI_ variables.
func coli(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Args[0] = "coli"
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, envPrefix) {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, embedded.CacheDirEnv+"="+cache)
	return cmd
}

func TestScripts(t *testing.T) {
	t.Setenv(embedded.CacheDirEnv, cache)
	model, err := embedded.Path(t.Context(), func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			env.Setenv(embedded.CacheDirEnv, cache)
			env.Setenv("ORACLES", sharedtest.Testdata("oracles"))
			env.Setenv("MODEL", model)
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name != "llvmpipe" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return llvmpipe()
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits, "json": jsonField, "same": same},
	})
}

// llvmpipe says whether this machine has the device that the scripts ask for by that name. Where tests must have their material, one that
// has not is an error.
func llvmpipe() (bool, error) {
	all, err := device.List(device.Options{})
	for _, d := range all {
		if strings.Contains(d.Name, "llvmpipe") {
			return true, nil
		}
	}
	if os.Getenv("COLI_CI") == "1" {
		return false, errors.Join(errors.New("no llvmpipe among the Vulkan devices; install mesa-vulkan-drivers"), err)
	}
	return false, nil
}

// exits runs a command that must end with an exit code: exits CODE COMMAND ARGS...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d; stderr: %s", got, want, ts.ReadFile("stderr"))
	}
}

// jsonField puts a field of the JSON object on the last command's stdout into an environment variable: json VARIABLE FIELD[.FIELD]
func jsonField(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: json VARIABLE FIELD[.FIELD]")
	}
	var v any
	d := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	d.UseNumber()
	ts.Check(d.Decode(&v))
	if d.More() {
		ts.Fatalf("more than one JSON value on stdout")
	}
	for key := range strings.SplitSeq(args[1], ".") {
		object, ok := v.(map[string]any)
		if !ok {
			ts.Fatalf("%q is not in an object", key)
		}
		if v, ok = object[key]; !ok {
			ts.Fatalf("no field %q", key)
		}
	}
	ts.Setenv(args[0], fmt.Sprint(v))
}

// same compares two texts.
func same(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] same TEXT TEXT")
	}
	if equal := args[0] == args[1]; equal == neg {
		ts.Fatalf("%q and %q: the same %v", args[0], args[1], equal)
	}
}

// The words of a greedy run on the float checkpoint are those of the reference implementation.
func TestGreedyRunReproducesTheOracle(t *testing.T) {
	shared, dir := sharedtest.Dir(t, "models", "tiny-moe"), t.TempDir() // where the usage history may be written
	entries, err := os.ReadDir(shared)
	for _, e := range entries {
		err = errors.Join(err, os.Symlink(filepath.Join(shared, e.Name()), filepath.Join(dir, e.Name())))
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "oracle.json"))
	if err != nil {
		t.Fatal(err)
	}
	var oracle struct {
		Greedy []struct {
			Kind, Prompt string
			GreedyIDs    []int32 `json:"greedy_ids"`
			GreedyText   string  `json:"greedy_text"`
		}
	}
	if err := json.Unmarshal(data, &oracle); err != nil {
		t.Fatal(err)
	}
	if len(oracle.Greedy) == 0 {
		t.Fatal("the oracle has no continuations")
	}
	for _, g := range oracle.Greedy {
		t.Run(g.Kind+" "+g.Prompt, func(t *testing.T) {
			cmd := coli(t, "run", "-m", dir, "--temp", "0", "-n", strconv.Itoa(len(g.GreedyIDs)), "--quiet", "--raw="+strconv.FormatBool(g.Kind == "raw"), g.Prompt)
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			want := strings.TrimSuffix(g.GreedyText, "<|endoftext|>")
			if got := strings.TrimSuffix(string(out), "\n"); got != strings.TrimSuffix(want, "\n") {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}
