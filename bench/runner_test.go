package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/internal/loghist"
)

// fake is an experiment whose arms write down what is done to them.
type fake struct {
	arms  []Arm
	files []string
	log   []string
	fail  map[string]error // by a line of the log
	then  func(line string)
}

// newFake has arms of the given names and sizes.
func newFake(bytes int64, names ...string) *fake {
	f := &fake{fail: map[string]error{}}
	for _, name := range names {
		f.arms = append(f.arms, Arm{
			Test: name, Params: []Param{{"ram", name + "%"}, {"threads", "2"}}, Bytes: bytes,
			Open: func(context.Context) (Run, error) {
				if err := f.did("open " + name); err != nil {
					return nil, err
				}
				return &fakeRun{f, name}, nil
			},
		})
	}
	return f
}

func (f *fake) did(line string) error {
	f.log = append(f.log, line)
	if f.then != nil {
		f.then(line)
	}
	return f.fail[line]
}

func (f *fake) Name() string    { return "fake" }
func (f *fake) Arms() []Arm     { return slices.Clone(f.arms) }
func (f *fake) Files() []string { return f.files }
func (f *fake) Metrics() []Metric {
	return []Metric{
		{Name: "tok/s", Unit: "tok/s", Help: "tokens a second", Better: 1, Table: true, Digits: 1},
		{Name: "hit %", Unit: "%", Better: 1, Table: true},
		{Name: "recall", Unit: "%"},
	}
}
func (f *fake) Describe(e *Env) { e.GPU = "a card" }

type fakeRun struct {
	*fake
	name string
}

func (r *fakeRun) Warm(context.Context) error { return r.did("warm " + r.name) }
func (r *fakeRun) Close() error               { return r.did("close " + r.name) }

func (r *fakeRun) Measure(_ context.Context, rep int) (Sample, error) {
	var h loghist.Hist
	h.Add(time.Millisecond)
	return Sample{
		Values: map[string]float64{"tok/s": float64(10 + rep), "hit %": 50}, Histograms: map[string]loghist.Hist{"read": h},
		Parts: []Part{{"attention", 1}, {"experts", float64(rep)}}, Notes: []string{"the same"},
	}, r.did(fmt.Sprintf("%s%d", r.name, rep))
}

func TestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		opt   Options
		fresh string // arms that are
		want  string
	}{
		"all fit": {
			Options{Reps: 3, Memory: 20},
			"",
			"open A, warm A, A0, open B, warm B, B0, B1, A1, A2, close A, B2, close B",
		},
		"all fit but a byte": {
			Options{Reps: 2, Memory: 19},
			"",
			"open A, warm A, A0, close A, open B, warm B, B0, close B, open B, warm B, B1, close B, open A, warm A, A1, close A",
		},
		"a fresh one": {
			Options{Reps: 2, Memory: 20},
			"A",
			"open A, warm A, A0, close A, open B, warm B, B0, B1, close B, open A, warm A, A1, close A",
		},
		"no warm-up":     {Options{Reps: 1, Memory: 20, NoWarmup: true}, "", "open A, A0, close A, open B, B0, close B"},
		"cold":           {Options{Reps: 1, Memory: 20, State: Cold}, "", "open A, A0, close A, open B, B0, close B"},
		"one repetition": {Options{Reps: 1}, "", "open A, warm A, A0, close A, open B, warm B, B0, close B"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(10, "A", "B")
			for i := range f.arms {
				f.arms[i].Fresh = strings.Contains(c.fresh, f.arms[i].Test)
			}
			records, err := Execute(t.Context(), f, c.opt)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(c.want, ", "), f.log); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(records) != 2 || records[0].Reps != c.opt.Reps || records[1].Reps != c.opt.Reps {
				t.Errorf("records %+v", records)
			}
		})
	}
}

// A lone arm has nobody to be treated like.
func TestLoneArmStaysOpen(t *testing.T) {
	f := newFake(1<<60, "A")
	if _, err := Execute(t.Context(), f, Options{Reps: 2, Memory: 1}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(f.log, ", "); got != "open A, warm A, A0, A1, close A" {
		t.Error(got)
	}
}

// Sizes that sum up to more than 64 bits are too much.
func TestArmsOfAnySize(t *testing.T) {
	f := newFake(1<<62, "A", "B", "C", "D")
	if _, err := Execute(t.Context(), f, Options{Reps: 1, Memory: 1 << 62, NoWarmup: true}); err != nil {
		t.Fatal(err)
	}
	if got := f.log[2]; got != "close A" {
		t.Errorf("after %v: %s", f.log[:2], got)
	}
}

func TestRecord(t *testing.T) {
	f := newFake(1, "A", "B")
	records, err := Execute(t.Context(), f, Options{Reps: 4, State: Rotating, Seed: 7, Memory: 1 << 20, Env: Env{CPU: "a processor"}})
	if err != nil {
		t.Fatal(err)
	}
	r := records[1]
	if r.Experiment != "fake" || r.Test != "B" || r.Param("ram") != "B%" || r.Param("none") != "" || r.State != Rotating || r.Seed != 7 || !r.Warmup ||
		!r.Kept || r.Env.GPU != "a card" || r.Env.CPU != "a processor" {
		t.Errorf("%+v", r)
	}
	want := Summary{Unit: "tok/s", Help: "tokens a second", Better: 1, Mean: 11.5, SD: 1.2909944487358056, Median: 11.5, Min: 10, Max: 13, Samples: []float64{10, 11, 12, 13}}
	if diff := cmp.Diff(want, r.Metrics["tok/s"]); diff != "" {
		t.Errorf("tok/s (-want +got):\n%s", diff)
	}
	if _, there := r.Metrics["recall"]; there {
		t.Error("a figure that was not measured is in the record")
	}
	if h := r.Histograms["read"]; h.Count != 4 || h.Mean() != time.Millisecond {
		t.Errorf("histogram %+v", h)
	}
	if diff := cmp.Diff([]Part{{"attention", 1}, {"experts", 1.5}}, r.Parts); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"the same"}, r.Notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestSummary(t *testing.T) {
	for _, c := range []struct {
		samples          []float64
		mean, sd, median float64
	}{
		{[]float64{3}, 3, 0, 3},
		{[]float64{9, 1, 2}, 4, 4.358898943540674, 2},
		{[]float64{4, 1, 3, 2}, 2.5, 1.2909944487358056, 2.5},
		{[]float64{0, 0}, 0, 0, 0},
	} {
		given := slices.Clone(c.samples)
		s := summarize(Metric{}, c.samples)
		if s.Mean != c.mean || s.SD != c.sd || s.Median != c.median || s.Min != slices.Min(given) || s.Max != slices.Max(given) {
			t.Errorf("%v: %+v", given, s)
		}
		if !slices.Equal(s.Samples, given) {
			t.Errorf("samples are not in their order: %v", s.Samples)
		}
	}
}

func TestEvents(t *testing.T) {
	f := newFake(1, "A", "B")
	f.fail["open B"] = fmt.Errorf("%w: no such drive", ErrSkip)
	var got []string
	watch := func(e Event) {
		got = append(got, fmt.Sprintf("%v %s %d of %d, run %v %s", e.Phase, e.Arm.Test, e.Done, e.Total, e.Run != nil, strings.Join(e.Figures, ", ")))
	}
	records, err := Execute(t.Context(), f, Options{Reps: 2, Memory: 9, Watch: watch})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"opening A 0 of 4, run false ", "warming up A 0 of 4, run true ", "measuring A 0 of 4, run true ",
		"measured A 1 of 4, run true tok/s 10.0, hit % 50", "opening B 1 of 4, run false ", "skipped B 3 of 4, run false ",
		"measuring A 3 of 4, run true ", "measured A 4 of 4, run true tok/s 11.0, hit % 50", "closing A 4 of 4, run true ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(records) != 2 || records[1].Skipped != "skipped: no such drive" || records[1].Reps != 0 {
		t.Errorf("%+v", records)
	}
}

// Without a single arm that can be measured there is an error, and the records say why of each.
func TestNothingCanBeMeasured(t *testing.T) {
	f := newFake(1, "A", "B")
	f.fail["open A"], f.fail["open B"] = fmt.Errorf("%w: no such drive", ErrSkip), ErrSkip
	records, err := Execute(t.Context(), f, Options{Reps: 2, Memory: 9})
	if err == nil || len(records) != 2 || records[0].Skipped != "skipped: no such drive" {
		t.Errorf("%v, %+v", err, records)
	}
}

// A failure ends the run, closes what is open, and loses nothing that was measured.
func TestFailures(t *testing.T) {
	boom := errors.New("boom")
	for at, want := range map[string]string{
		"open B":  "B ram=B% threads=2: boom",
		"warm B":  "B ram=B% threads=2: warming up: boom",
		"B0":      "B ram=B% threads=2: repetition 1: boom",
		"close A": "A ram=A% threads=2: closing: boom",
	} {
		t.Run(at, func(t *testing.T) {
			f := newFake(1, "A", "B")
			f.fail[at] = boom
			records, err := Execute(t.Context(), f, Options{Reps: 2, Memory: 9})
			if err == nil || !errors.Is(err, boom) || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
			if len(records) == 0 || records[0].Test != "A" {
				t.Errorf("records %+v", records)
			}
			f.closed(t)
		})
	}
}

// closed checks that whatever was opened was closed.
func (f *fake) closed(t *testing.T) {
	t.Helper()
	open := 0
	for _, line := range f.log {
		switch {
		case strings.HasPrefix(line, "open ") && f.fail[line] == nil:
			open++
		case strings.HasPrefix(line, "close "):
			open--
		}
	}
	if open != 0 {
		t.Errorf("%d runs are left open: %v", open, f.log)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := newFake(1, "A", "B")
	f.then = func(line string) {
		if line == "B0" {
			cancel()
		}
	}
	f.fail["B0"] = errors.New("whatever comes of being cancelled")
	records, err := Execute(ctx, f, Options{Reps: 3, Memory: 9})
	if !errors.Is(err, context.Canceled) || err.Error() != context.Canceled.Error() {
		t.Errorf("error %v", err)
	}
	if len(records) != 1 || records[0].Test != "A" || records[0].Reps != 1 {
		t.Errorf("records %+v", records)
	}
	f.closed(t)
}

func TestBadExperiments(t *testing.T) {
	twice := newFake(1, "A", "A")
	noNumber := newFake(1, "A")
	noNumber.arms[0].Open = func(context.Context) (Run, error) {
		return constRun{Values: map[string]float64{"tok/s": 1 / zero}}, nil
	}
	unknown := newFake(1, "A")
	unknown.arms[0].Open = func(context.Context) (Run, error) { return constRun{Values: map[string]float64{"tok/m": 1}}, nil }
	nothing := newFake(1, "A")
	nothing.arms[0].Open = func(context.Context) (Run, error) { return constRun{}, nil }
	missing := newFake(1, "A")
	missing.files = []string{filepath.Join(t.TempDir(), "none.gguf")}
	for want, c := range map[string]struct {
		e    Experiment
		reps int
	}{
		"the matrix is empty":          {newFake(1), 1},
		"A ram=A% threads=2 is there":  {twice, 1},
		"0 repetitions":                {newFake(1, "A"), 0},
		"tok/s came out as +Inf":       {noNumber, 1},
		`a figure "tok/m" that`:        {unknown, 1},
		"nothing was measured":         {nothing, 1},
		"none.gguf: no such file or d": {missing, 1},
	} {
		if records, err := Execute(t.Context(), c.e, Options{Reps: c.reps}); err == nil || !strings.Contains(err.Error(), want) || len(records) > 0 {
			t.Errorf("%v, %+v; want %q", err, records, want)
		}
	}
}

var zero float64

// constRun measures the same each time.
type constRun Sample

func (constRun) Warm(context.Context) error                     { return nil }
func (r constRun) Measure(context.Context, int) (Sample, error) { return Sample(r), nil }
func (constRun) Close() error                                   { return nil }
