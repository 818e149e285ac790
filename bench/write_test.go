package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// recorded are records of fake with one arm that was skipped.
func recorded(t *testing.T) ([]Metric, []Record) {
	t.Helper()
	f := newFake(1, "A", "B", "C|D")
	f.fail["open C|D"] = ErrSkip
	records, err := Execute(t.Context(), f, Options{Reps: 2, Memory: 9, State: Warm, Seed: 3, Env: Env{
		Coli: "v1.2.3", Commit: "abc", Dirty: true, Go: "go1.26", OS: "linux", Arch: "amd64", Kernel: "6.1", CPU: "A Processor", Cores: 4,
		ISA: "avx2", RAM: 16 << 30, RAMLimit: 8 << 30, Drive: "A Drive", DriveIs: "rotating", FS: "ext4", Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return f.Metrics(), records
}

// inFormat is how recorded are written.
func inFormat(t *testing.T, f Format) string {
	t.Helper()
	metrics, records := recorded(t)
	var out strings.Builder
	if err := Write(&out, f, metrics, records); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A table has the columns that vary; what does not stands above it, the machine below.
func TestMarkdown(t *testing.T) {
	const want = `fake, threads 2, warm, 2 repetitions, seed 3

| ram   | test |      tok/s |   hit % |
|-------|------|-----------:|--------:|
| A%    | A    | 10.5 ± 0.7 |  50 ± 0 |
| B%    | B    | 10.5 ± 0.7 |  50 ± 0 |
| C\|D% | C\|D |    skipped | skipped |

ms of a token, and the share of it, by what they were spent on:

| ram | test |         attention |          experts |      all |
|-----|------|------------------:|-----------------:|---------:|
| A%  | A    | 1000.000 (66.7 %) | 500.000 (33.3 %) | 1500.000 |
| B%  | B    | 1000.000 (66.7 %) | 500.000 (33.3 %) | 1500.000 |

- A ram=A%: the same
- B ram=B%: the same
- C|D ram=C|D%: skipped

> A Processor, 4 cores, avx2, 16.0 GiB RAM of which a control group allows 8.0 GiB  
> device a card, drive A Drive rotating, ext4  
> coli v1.2.3, commit abc with changes, go1.26, linux/amd64, kernel 6.1, 2026-01-02T03:04:05Z  
`
	if diff := cmp.Diff(want, inFormat(t, Markdown)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A part that an arm did not spend time on is left empty, and what has no name of its own comes last.
func TestMarkdownParts(t *testing.T) {
	records := []Record{
		{Experiment: "decode", Test: "tg8", Reps: 1, Parts: []Part{{"other", 0.0005}, {"attention", 0.0015}}},
		{Experiment: "decode", Test: "tg9", Reps: 1, Parts: []Part{{"attention", 0.002}}},
	}
	var out strings.Builder
	if err := Write(&out, Markdown, nil, records); err != nil {
		t.Fatal(err)
	}
	const want = `
| test |       attention |          other |   all |
|------|----------------:|---------------:|------:|
| tg8  |  1.500 (75.0 %) | 0.500 (25.0 %) | 2.000 |
| tg9  | 2.000 (100.0 %) |                | 2.000 |

>`
	if !strings.Contains(out.String(), want) {
		t.Errorf("%s\nlacks %s", out.String(), want)
	}
}

func TestMarkdownOfOneRecord(t *testing.T) {
	metrics, records := recorded(t)
	r := records[:1]
	r[0].Files = []File{{Name: "model.gguf", Bytes: 1 << 20}}
	var out strings.Builder
	if err := Write(&out, Markdown, metrics, r); err != nil {
		t.Fatal(err)
	}
	const want = "fake, model.gguf (1.0 MiB), ram A%, threads 2, warm, 2 repetitions, seed 3\n\n| test |      tok/s |  hit % |\n"
	if got := out.String(); !strings.HasPrefix(got, want) || !strings.Contains(got, "\n\n- the same\n\n>") {
		t.Errorf("%s", got)
	}
	if err := Write(&out, Markdown, metrics, nil); err != nil {
		t.Error(err)
	}
}

func TestJSON(t *testing.T) {
	_, want := recorded(t)
	var array []Record
	if err := json.Unmarshal([]byte(inFormat(t, JSON)), &array); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, array, cmpopts.IgnoreUnexported(File{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	lines := strings.Split(strings.TrimSpace(inFormat(t, JSONL)), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines of JSONL, want %d", len(lines), len(want))
	}
	for i, line := range lines {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want[i], r, cmpopts.IgnoreUnexported(File{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("line %d (-want +got):\n%s", i+1, diff)
		}
	}
	var none bytes.Buffer
	if err := Write(&none, JSON, nil, nil); err != nil || strings.TrimSpace(none.String()) != "[]" {
		t.Errorf("no records: %q, %v", none.String(), err)
	}
	// The names of the fields are what others' programs read.
	const first = `{"experiment":"fake","test":"A","params":[{"name":"ram","value":"A%"},{"name":"threads","value":"2"}],"state":"warm","warmup":true,` +
		`"kept":true,"reps":2,"seed":3,"metrics":{"hit %":{"unit":"%","better":1,"mean":50,"sd":0,"median":50,"min":50,"max":50,"samples":[50,50]},`
	if !strings.HasPrefix(lines[0], first) {
		t.Errorf("fields\ngot  %s\nwant %s", lines[0], first)
	}
}

func TestCSV(t *testing.T) {
	rows, err := csv.NewReader(strings.NewReader(inFormat(t, CSV))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	row := map[string]string{}
	for i, name := range rows[0] {
		if _, twice := row[name]; twice {
			t.Errorf("column %s is there twice", name)
		}
		row[name] = rows[2][i]
	}
	for name, want := range map[string]string{
		"experiment": "fake", "test": "B", "ram": "B%", "threads": "2", "reps": "2", "seed": "3", "tok/s": "10.5", "tok/s sd": "0.7071067811865476",
		"tok/s samples": "10 11", "recall %": "", "env_cpu": "A Processor", "env_commit": "abc", "env_date": "2026-01-02T03:04:05Z", "env_ram": "17179869184", "env_gpu": "a card",
		"attention s": "1", "env_dirty": "true", "env_drive_is": "rotating", "env_turbo": "",
	} {
		if got, ok := row[name]; !ok || got != want {
			t.Errorf("%s is %q (%v), want %q", name, got, ok, want)
		}
	}
	if len(rows) != 4 || rows[3][1] != "C|D" {
		t.Errorf("%d rows", len(rows))
	}
}

// The syntax is that of golang.org/x/perf/benchfmt: configuration lines of a key in lower case and a value, lines of units, and results of a
// name without blanks, a count, and pairs of a value and a unit.
func TestGoBench(t *testing.T) {
	got := inFormat(t, GoBench)
	config := regexp.MustCompile(`^[a-z][^ \tA-Z]*: .+$`)
	unit := regexp.MustCompile(`^Unit \S+ better=(higher|lower)$`)
	result := regexp.MustCompile(`^Benchmark[^a-z\s]\S*-\d+ 1( [0-9.e+-]+ \S+)+$`)
	var results []string
	for line := range strings.Lines(got) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case result.MatchString(line):
			results = append(results, line)
		case !config.MatchString(line) && !unit.MatchString(line):
			t.Errorf("line %q", line)
		}
	}
	want := []string{
		"BenchmarkFake/A/ram=A%/threads=2-4 1 10 tok/s 50 hit_%",
		"BenchmarkFake/A/ram=A%/threads=2-4 1 11 tok/s 50 hit_%",
		"BenchmarkFake/B/ram=B%/threads=2-4 1 10 tok/s 50 hit_%",
		"BenchmarkFake/B/ram=B%/threads=2-4 1 11 tok/s 50 hit_%",
	}
	if diff := cmp.Diff(want, results); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, line := range []string{"goos: linux", "goarch: amd64", "cpu: A Processor", "state: warm", "Unit tok/s better=higher"} {
		if !strings.Contains(got, line+"\n") {
			t.Errorf("no line %q in\n%s", line, got)
		}
	}
}

func TestWord(t *testing.T) {
	for s, want := range map[string]string{"tg128 @ d512": "tg128_@_d512", "a\tb\n": "ab", "25%": "25%", "read/write": "read:write"} {
		got := word(s)
		if got != want || strings.ContainsFunc(got, unicode.IsSpace) {
			t.Errorf("word(%q) = %q, want %q", s, got, want)
		}
	}
}

func TestWithUnit(t *testing.T) {
	for _, c := range [][3]string{{"tok/s", "tok/s", "tok/s"}, {"hit %", "%", "hit %"}, {"p50", "ms", "p50 ms"}, {"ratio", "", "ratio"}} {
		if got := (&Metric{Name: c[0], Unit: c[1]}).withUnit(" "); got != c[2] {
			t.Errorf("%q in %q: %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

func TestUnknownFormat(t *testing.T) {
	if err := Write(&strings.Builder{}, "sql", nil, nil); err == nil || !strings.Contains(err.Error(), `"sql"`) {
		t.Error(err)
	}
}

func TestLegend(t *testing.T) {
	if got := (&Metric{Name: "p50", Unit: "ms", Help: "time of a token"}).Legend(); got != "p50 ms: time of a token" {
		t.Error(got)
	}
}

// brokenWriter fails from its n-th byte on.
type brokenWriter int

var errBroken = errors.New("no space left")

func (w *brokenWriter) Write(p []byte) (int, error) {
	if n := int(*w); len(p) > n {
		*w = 0
		return n, errBroken
	}
	*w -= brokenWriter(len(p))
	return len(p), nil
}

func TestFullDisk(t *testing.T) {
	metrics, records := recorded(t)
	for _, f := range Formats() {
		for _, room := range []brokenWriter{0, 10, 300} {
			if err := Write(&room, f, metrics, records); !errors.Is(err, errBroken) {
				t.Errorf("%s: %v", f, err)
			}
		}
	}
}
