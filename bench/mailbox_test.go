package bench

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coli-moe/coli/synth"
	"github.com/coli-moe/coli/weights/format"
)

// tinyModel writes a model of 3 layers with 8 experts each.
func tinyModel(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	err := synth.Write(t.Context(), path, synth.Options{
		Arch: "olmoe", Layers: 3, Vocab: 300, NumExperts: 8, TopK: 2, ExpertFFN: 32, Experts: format.Q8_0, Seed: 1,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Every test, with and without measuring and tracing, gives the figures it is for, and messages allocate next to nothing.
func TestMailbox(t *testing.T) {
	e, err := NewMailbox(MailboxConfig{
		Tests: MailboxTests, Model: tinyModel(t), Threads: []int{1, 2}, Memory: 100 << 20, Measure: []bool{false, true}, Trace: []bool{false, true},
		Time: 3 * time.Millisecond, Seed: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	has := map[string][]string{
		"message, sender waits":      {"wait p50", "wait p99", "round p50", "round p99", "ns/op", "ops/s", "allocs/op"},
		"message, sender computes":   {"wait p50", "wait p99", "allocs/op"},
		"messages in a row":          {"ns/op", "ops/s", "allocs/op"},
		"MoE step, experts mapped":   {"step p50", "step p99", "over direct", "ns/op", "ops/s", "allocs/op"},
		"MoE step, experts in slots": {"step p50", "step p99", "over direct", "ns/op", "ops/s", "allocs/op"},
	}
	arms := e.Arms()
	if want := 4 * (2*2 + 1 + 2*2); len(arms) != want {
		t.Fatalf("%d arms, want %d", len(arms), want)
	}
	for _, a := range arms {
		for rep, s := range measure(t, e, a, 2) {
			for _, name := range has[a.Test] {
				v, there := s.Values[name]
				if !there || v <= 0 && name != "over direct" && name != "allocs/op" {
					t.Errorf("%s %v: %s is %g", a.Test, a.Params, name, v)
				}
			}
			if len(s.Values) != len(has[a.Test]) {
				t.Errorf("%s %v: %v", a.Test, a.Params, s.Values)
			}
			// Of the others there are too few in this time for what the rest of the program allocates.
			if n := s.Values["allocs/op"]; rep > 0 && a.Test == "messages in a row" && param(a, "trace") == "off" && n > 0.5 {
				t.Errorf("%s %v: %g allocations", a.Test, a.Params, n)
			}
			if len(s.Notes) > 0 {
				t.Errorf("%s %v: %q", a.Test, a.Params, s.Notes)
			}
		}
	}
}

func TestMailboxRefuses(t *testing.T) {
	if _, err := NewMailbox(MailboxConfig{Tests: []string{"speed"}}); err == nil || !strings.Contains(err.Error(), `"speed"`) {
		t.Error(err)
	}
	step := MailboxConfig{
		Tests: []string{"step"}, Model: filepath.Join(t.TempDir(), "none.gguf"), Threads: []int{1}, Memory: 1, Measure: []bool{false}, Trace: []bool{false},
	}
	if _, err := NewMailbox(step); err == nil || !strings.Contains(err.Error(), "none.gguf") {
		t.Error(err)
	}
	step.Model = tinyModel(t)
	e, err := NewMailbox(step)
	if err != nil {
		t.Fatal(err)
	}
	arms := e.Arms()
	if i := slices.IndexFunc(arms, func(a Arm) bool { return a.Test == "MoE step, experts in slots" }); i != 1 {
		t.Fatal(arms)
	}
	if _, err := arms[1].Open(t.Context()); !errors.Is(err, ErrSkip) || !strings.Contains(err.Error(), "all experts of tiny.gguf need") {
		t.Error(err)
	}
}
