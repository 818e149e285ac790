package main

import (
	"strings"
	"testing"
)

func TestCheckEnv(t *testing.T) {
	for entry, want := range map[string]string{
		"COLI_TEMP=1":           "",
		"COLI_OUTPUT=x":         "", // of another command
		"COLI_CACHE_DIR=/x":     "",
		"COLI_CI=1":             "",
		"COLI_VK_CAP_MB=":       "",
		"COLI_VK_CAP_MB=512":    "",
		"COLI_VK_CAP_MB=0":      "COLI_VK_CAP_MB=0: want a whole number of MiB, 1 or more",
		"COLI_VK_CAP_MB=1GiB":   "COLI_VK_CAP_MB=1GiB: want",
		"COLI_VK_WINDOW_MB=-1":  "COLI_VK_WINDOW_MB=-1: want",
		"COLI_VK_FAULT=lost=3":  "",
		"COLI_VK_FAULT=fire=3":  `COLI_VK_FAULT=fire=3: "fire=3" is no fault: alloc`,
		"COLLIE=1":              "",
		"PATH=/bin":             "",
		"COLI_TOPK=1":           "unknown environment variable COLI_TOPK; did you mean COLI_TOP_K?",
		"COLI_NOTHING_OF_IT=1":  "unknown environment variable COLI_NOTHING_OF_IT; COLI_<FLAG>",
		"COLI_=1":               "unknown environment variable COLI_;",
		"COLI_TEMPERATURE=0.5 ": "unknown environment variable COLI_TEMPERATURE",
	} {
		err := checkEnv(newRoot(), []string{"HOME=/", entry})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", entry, err, want)
		}
	}
}

func TestApplyEnv(t *testing.T) {
	flags := newRunCmd().Flags()
	if err := flags.Parse([]string{"--temp", "0.1"}); err != nil {
		t.Fatal(err)
	}
	env := []string{"COLI_TEMP=0.9", "COLI_TOP_K=7", "COLI_RAW=1", "COLI_STOP=THE END", "COLI_MIN_P="}
	if err := applyEnv(flags, env); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"temp": "0.1", "top-k": "7", "raw": "true", "stop": "[THE END]", "min-p": "0.05"} {
		f := flags.Lookup(name)
		if got := f.Value.String(); got != want {
			t.Errorf("--%s is %s, want %s", name, got, want)
		}
		if f.Changed != (name != "min-p") {
			t.Errorf("--%s changed: %v", name, f.Changed)
		}
	}
}

func TestBadValues(t *testing.T) {
	for entry, want := range map[string]string{
		"COLI_TOP_K=many":  "COLI_TOP_K=many: want a whole number",
		"COLI_TEMP=hot":    "COLI_TEMP=hot: want a number",
		"COLI_RAW=perhaps": "COLI_RAW=perhaps: want true or false",
		"COLI_THINK=hard":  "COLI_THINK=hard: want auto, on or off",
	} {
		if err := applyEnv(newRunCmd().Flags(), []string{entry}); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", entry, err, want)
		}
	}
	for args, want := range map[string]string{
		"--top-k=many": "--top-k many: want a whole number",
		"--temp=hot":   "--temp hot: want a number",
		"--think=hard": "--think hard: want auto, on or off",
		"--stop":       "--stop needs a value",
	} {
		if err := flagError(newRunCmd().Flags().Parse([]string{args})); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
