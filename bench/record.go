package bench

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/coli-moe/coli/internal/loghist"
	"github.com/coli-moe/coli/ledger"
)

// State says what the caches hold when a repetition begins.
type State string

// The states. An experiment says in its help what they mean for it.
const (
	Warm     State = "warm"     // what an earlier repetition of the same work left
	Cold     State = "cold"     // nothing: files are evicted from the page cache, and an arm is opened anew for each repetition, without warm-up
	Rotating State = "rotating" // what earlier repetitions of other work left: each makes another one
)

// Summary describes the samples of a metric.
type Summary struct {
	Unit    string    `json:"unit"`
	Help    string    `json:"help,omitempty"` // what it is
	Better  int       `json:"better"`         // 1: more is, -1: less is, 0: neither
	Mean    float64   `json:"mean"`
	SD      float64   `json:"sd"` // of the samples, with n-1 in the denominator; 0 for one
	Median  float64   `json:"median"`
	Min     float64   `json:"min"`
	Max     float64   `json:"max"`
	Samples []float64 `json:"samples"` // in the order of the repetitions
}

// summarize describes samples, of which there is one at least.
func summarize(m Metric, samples []float64) Summary {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	s := Summary{Unit: m.Unit, Help: m.Help, Better: m.Better, Min: sorted[0], Max: sorted[n-1], Samples: samples}
	s.Median = sorted[n/2]
	if n%2 == 0 {
		s.Median = sorted[n/2-1]/2 + sorted[n/2]/2
	}
	for _, v := range samples {
		s.Mean += v / float64(n)
	}
	if n > 1 {
		for _, v := range samples {
			s.SD += (v - s.Mean) * (v - s.Mean) / float64(n-1)
		}
		s.SD = math.Sqrt(s.SD)
	}
	return s
}

// Record is what was measured of an arm, on what machine and how. Its JSON form is described in docs/bench.md.
type Record struct {
	Experiment string             `json:"experiment"`
	Test       string             `json:"test"`
	Params     []Param            `json:"params"`
	State      State              `json:"state,omitempty"` // empty where caches play no part
	Warmup     bool               `json:"warmup"`          // whether the arm was warmed up when it had been opened
	Kept       bool               `json:"kept"`            // whether it stayed open from one repetition to the next
	Reps       int                `json:"reps"`            // repetitions made
	Seed       uint64             `json:"seed"`
	Metrics    map[string]Summary `json:"metrics"`
	// Histograms of all repetitions, added up.
	Histograms map[string]loghist.Hist `json:"histograms,omitempty"`
	Parts      []Part                  `json:"parts,omitempty"`   // the mean of the repetitions
	Notes      []string                `json:"notes,omitempty"`   // each line once
	Skipped    string                  `json:"skipped,omitempty"` // why the arm could not be measured here
	Files      []File                  `json:"files,omitempty"`   // what was read: the model
	Env        Env                     `json:"env"`
}

// Param returns the value of a setting, "" for one that the record does not have.
func (r *Record) Param(name string) string {
	for _, p := range r.Params {
		if p.Name == name {
			return p.Value
		}
	}
	return ""
}

// add puts samples, by repetition, into the record.
func (r *Record) add(metrics []Metric, samples []Sample) {
	r.Reps, r.Metrics = len(samples), map[string]Summary{}
	values := map[string][]float64{}
	var warm int
	var stayed int64
	for _, s := range samples {
		if s.Stayed > 0 {
			warm, stayed = warm+1, max(stayed, s.Stayed)
		}
		for name, v := range s.Values {
			values[name] = append(values[name], v)
		}
		for name, h := range s.Histograms {
			if r.Histograms == nil {
				r.Histograms = map[string]loghist.Hist{}
			}
			sum := r.Histograms[name]
			sum.Merge(&h)
			r.Histograms[name] = sum
		}
		for _, p := range s.Parts {
			i := slices.IndexFunc(r.Parts, func(q Part) bool { return q.Name == p.Name })
			if i < 0 {
				i = len(r.Parts)
				r.Parts = append(r.Parts, Part{Name: p.Name})
			}
			r.Parts[i].Seconds += p.Seconds / float64(len(samples))
		}
		for _, line := range s.Notes {
			if !slices.Contains(r.Notes, line) {
				r.Notes = append(r.Notes, line)
			}
		}
	}
	if warm > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("not cold: in %d of %d repetitions up to %s of the files stayed in the page cache",
			warm, len(samples), ledger.FormatSize(stayed)))
	}
	for _, m := range metrics {
		if v := values[m.Name]; v != nil {
			r.Metrics[m.Name] = summarize(m, v)
		}
	}
}

// check is an error if a sample cannot be recorded: a figure that the experiment has not declared, or one that is no number.
func (s *Sample) check(metrics []Metric) error {
	if len(s.Values) == 0 {
		return fmt.Errorf("nothing was measured")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Values)) {
		if !slices.ContainsFunc(metrics, func(m Metric) bool { return m.Name == name }) {
			return fmt.Errorf("a figure %q that is none of the experiment's metrics", name)
		}
		if v := s.Values[name]; math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%s came out as %v", name, v)
		}
	}
	return nil
}

// figures are those that a table shows.
func (s *Sample) figures(metrics []Metric) (all []string) {
	for _, m := range metrics {
		if v, ok := s.Values[m.Name]; ok && m.Table {
			all = append(all, fmt.Sprintf("%s %.*f", m.withUnit(" "), m.Digits, v))
		}
	}
	return all
}

// key tells an arm from the others of its experiment.
func (a *Arm) key() string {
	var b strings.Builder
	b.WriteString(a.Test)
	for _, p := range a.Params {
		if p.Value != "" {
			fmt.Fprintf(&b, " %s=%s", p.Name, p.Value)
		}
	}
	return b.String()
}

// String is how messages call the arm.
func (a *Arm) String() string { return a.key() }
