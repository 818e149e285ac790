package bench

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/ops"
)

// Format is how records are written.
type Format string

// The formats.
const (
	Markdown Format = "md"    // a table of what varies, for people
	CSV      Format = "csv"   // a row per record: mean, standard deviation and samples of every metric, seconds of every part
	JSON     Format = "json"  // an array of records
	JSONL    Format = "jsonl" // a record per line
	GoBench  Format = "bench" // lines of Go benchmarks, one per repetition, for benchstat
)

// Formats are all there are.
func Formats() []Format { return []Format{Markdown, CSV, JSON, JSONL, GoBench} }

// Write writes records of one experiment with the given metrics.
func Write(w io.Writer, f Format, metrics []Metric, records []Record) error {
	switch f {
	case Markdown:
		return writeMarkdown(w, metrics, records)
	case CSV:
		return writeCSV(w, metrics, records)
	case JSON:
		if records == nil {
			records = []Record{}
		}
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(records)
	case JSONL:
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		for i := range records {
			if err := enc.Encode(&records[i]); err != nil {
				return err
			}
		}
		return nil
	case GoBench:
		return writeGoBench(w, metrics, records)
	}
	return fmt.Errorf("format %q: want one of %q", f, Formats())
}

// paramNames are the settings that records have, in their order.
func paramNames(records []Record) (names []string) {
	for _, r := range records {
		for _, p := range r.Params {
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
		}
	}
	return names
}

// table is one in Markdown that is legible as it stands, too.
type table struct {
	head  []string
	right []bool // alignment
	rows  [][]string
}

func (t *table) column(head string, right bool) {
	t.head, t.right = append(t.head, head), append(t.right, right)
}

func (t *table) write(b *strings.Builder) {
	width := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			row[i] = strings.NewReplacer("|", `\|`, "\n", " ").Replace(cell)
			width[i] = max(width[i], utf8.RuneCountInString(row[i]), 3)
		}
	}
	line := func(row []string) {
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if t.right[i] {
				cell = pad + cell
			} else {
				cell += pad
			}
			b.WriteString("| " + cell + " ")
		}
		b.WriteString("|\n")
	}
	line(t.head)
	for i, right := range t.right {
		if right {
			b.WriteString("|" + strings.Repeat("-", width[i]+1) + ":")
		} else {
			b.WriteString("|" + strings.Repeat("-", width[i]+2))
		}
	}
	b.WriteString("|\n")
	for _, row := range t.rows {
		line(row)
	}
}

// writeMarkdown writes what all records share, a table of what varies, another one of what the time went into where that was asked for, the
// notes and the machine.
func writeMarkdown(w io.Writer, metrics []Metric, records []Record) error {
	if len(records) == 0 {
		return nil
	}
	first := &records[0]
	var t table
	var constant []string
	varies := t.arms(records)
	for _, name := range paramNames(records) {
		if v := first.Param(name); v != "" && !slices.Contains(varies, name) {
			constant = append(constant, name+" "+v)
		}
	}
	var shown []Metric
	for _, m := range metrics {
		if m.Table && slices.ContainsFunc(records, func(r Record) bool { _, ok := r.Metrics[m.Name]; return ok }) {
			shown = append(shown, m)
			t.column(m.withUnit(" "), true)
		}
	}
	for i := range records {
		r := &records[i]
		row := r.arm(varies)
		for _, m := range shown {
			row = append(row, cell(m, r))
		}
		t.rows = append(t.rows, row)
	}

	var b strings.Builder
	head := []string{first.Experiment}
	if len(first.Files) > 0 {
		head = append(head, fileNames(first.Files))
	}
	head = append(head, constant...)
	if first.State != "" {
		head = append(head, string(first.State))
	}
	fmt.Fprintf(&b, "%s, %s, seed %d\n\n", strings.Join(head, ", "), repetitions(records), first.Seed)
	t.write(&b)
	if parts := partsTable(records); parts != nil {
		b.WriteString("\nms of a token, and the share of it, by what they were spent on:\n\n")
		parts.write(&b)
	}
	for _, line := range notes(records) {
		fmt.Fprintf(&b, "\n- %s", line)
	}
	if len(notes(records)) > 0 {
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, line := range first.Env.lines() {
		fmt.Fprintf(&b, "> %s  \n", line) // two blanks end a line in Markdown
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// arms makes the columns that tell records apart: the settings that vary, which it returns, and the test.
func (t *table) arms(records []Record) (varies []string) {
	for _, name := range paramNames(records) {
		if slices.ContainsFunc(records, func(r Record) bool { return r.Param(name) != records[0].Param(name) }) {
			varies = append(varies, name)
			t.column(name, numeric(records, name))
		}
	}
	t.column("test", false)
	return varies
}

// arm is the beginning of a record's row in a table with these columns.
func (r *Record) arm(varies []string) (row []string) {
	for _, name := range varies {
		row = append(row, r.Param(name))
	}
	return append(row, r.Test)
}

// partNames are what records spent time on, in their order but for what has no name of its own, which comes last.
func partNames(records []Record) (names []string) {
	for _, r := range records {
		for _, p := range r.Parts {
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
		}
	}
	if i := slices.Index(names, ops.PartOther.String()); i >= 0 {
		names = append(slices.Delete(names, i, i+1), ops.PartOther.String())
	}
	return names
}

// part is what a record's part took, in seconds; ok is false if it has none of that name.
func (r *Record) part(name string) (seconds float64, ok bool) {
	i := slices.IndexFunc(r.Parts, func(p Part) bool { return p.Name == name })
	if i < 0 {
		return 0, false
	}
	return r.Parts[i].Seconds, true
}

// partsTable has a row for each record that tells what its time went into; it is nil if none does.
func partsTable(records []Record) *table {
	names := partNames(records)
	if len(names) == 0 {
		return nil
	}
	var t table
	varies := t.arms(records)
	for _, name := range names {
		t.column(name, true)
	}
	t.column("all", true)
	for i := range records {
		r := &records[i]
		if len(r.Parts) == 0 {
			continue
		}
		row, all := r.arm(varies), 0.0
		for _, p := range r.Parts {
			all += p.Seconds
		}
		for _, name := range names {
			cell := ""
			if s, ok := r.part(name); ok {
				cell = fmt.Sprintf("%.3f (%.1f %%)", 1e3*s, 100*s/all)
			}
			row = append(row, cell)
		}
		t.rows = append(t.rows, append(row, fmt.Sprintf("%.3f", 1e3*all)))
	}
	return &t
}

// numeric says whether a column reads better with its values to the right.
func numeric(records []Record, param string) bool {
	return !slices.ContainsFunc(records, func(r Record) bool {
		v := r.Param(param)
		return v != "" && !unicode.IsDigit(rune(v[0])) && v[0] != '-'
	})
}

func cell(m Metric, r *Record) string {
	s, ok := r.Metrics[m.Name]
	switch {
	case !ok && r.Skipped != "":
		return "skipped"
	case !ok:
		return ""
	case r.Reps < 2:
		return fmt.Sprintf("%.*f", m.Digits, s.Mean)
	}
	return fmt.Sprintf("%.*f ± %.*f", m.Digits, s.Mean, m.Digits, s.SD)
}

func fileNames(files []File) string {
	var bytes int64
	for _, f := range files {
		bytes += f.Bytes
	}
	name := files[0].Name
	if len(files) > 1 {
		name = fmt.Sprintf("%s and %d more", name, len(files)-1)
	}
	return fmt.Sprintf("%s (%s)", name, ledger.FormatSize(bytes))
}

func repetitions(records []Record) string {
	low, high := records[0].Reps, records[0].Reps
	for _, r := range records {
		if r.Skipped == "" {
			low, high = min(low, r.Reps), max(high, r.Reps)
		}
	}
	switch {
	case low != high:
		return fmt.Sprintf("%d to %d repetitions", low, high)
	case high == 1:
		return "1 repetition"
	}
	return fmt.Sprintf("%d repetitions", high)
}

// notes are the lines of all records; one that not every record has says whose it is.
func notes(records []Record) (lines []string) {
	for _, r := range records {
		own := r.Notes
		if r.Skipped != "" {
			own = append(slices.Clone(own), r.Skipped)
		}
		for _, line := range own {
			if !slices.ContainsFunc(records, func(o Record) bool { return !slices.Contains(o.Notes, line) }) {
				if !slices.Contains(lines, line) {
					lines = append(lines, line)
				}
				continue
			}
			a := Arm{Test: r.Test}
			for _, p := range r.Params {
				if slices.ContainsFunc(records, func(o Record) bool { return o.Param(p.Name) != p.Value }) {
					a.Params = append(a.Params, p)
				}
			}
			lines = append(lines, a.String()+": "+line)
		}
	}
	return lines
}

// lines are the environment for people.
func (e *Env) lines() (lines []string) {
	add := func(parts ...string) {
		if parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" }); len(parts) > 0 {
			lines = append(lines, strings.Join(parts, ", "))
		}
	}
	if1 := func(prefix, s string) string {
		if s == "" {
			return ""
		}
		return prefix + s
	}
	ram := ""
	if e.RAM > 0 {
		ram = ledger.FormatSize(e.RAM) + " RAM"
	}
	if e.RAMLimit > 0 {
		ram += " of which a control group allows " + ledger.FormatSize(e.RAMLimit)
	}
	add(e.CPU, fmt.Sprintf("%d %s", e.Cores, "cores"), e.ISA, if1("governor ", e.Governor), if1("turbo ", e.Turbo), ram)
	add(if1("device ", e.GPU), if1("drive ", strings.Join(slices.DeleteFunc([]string{e.Drive, e.DriveIs}, func(s string) bool { return s == "" }), " ")), e.FS)
	commit := if1("commit ", e.Commit)
	if e.Dirty {
		commit += " with changes"
	}
	add("coli "+e.Coli, commit, e.Go, e.OS+"/"+e.Arch, if1("kernel ", e.Kernel), e.Date.UTC().Format(time.RFC3339))
	return lines
}

// Legend says what a metric is, in a line.
func (m *Metric) Legend() string { return m.withUnit(" ") + ": " + m.Help }

// withUnit is the metric's name with its unit, which many names end in: "tok/s", "hit %", "p50 ms".
func (m *Metric) withUnit(between string) string {
	if m.Unit == "" || strings.Contains(m.Name, m.Unit) {
		return m.Name
	}
	return m.Name + between + m.Unit
}

func writeCSV(w io.Writer, metrics []Metric, records []Record) error {
	out := csv.NewWriter(w)
	params := paramNames(records)
	var env []string
	for f := range reflect.TypeFor[Env]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		env = append(env, name)
	}
	head := append([]string{"experiment", "test"}, params...)
	head = append(head, "state", "warmup", "kept", "reps", "seed")
	for _, m := range metrics {
		name := m.withUnit(" ")
		head = append(head, name, name+" sd", name+" median", name+" min", name+" max", name+" samples")
	}
	parts := partNames(records)
	for _, name := range parts {
		head = append(head, name+" s") // a part of the time
	}
	head = append(head, "skipped", "files")
	for _, name := range env {
		head = append(head, "env_"+name) // a flag may be called the same
	}
	out.Write(head) //nolint:errcheck // out.Error tells
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	for _, r := range records {
		row := []string{r.Experiment, r.Test}
		for _, name := range params {
			row = append(row, r.Param(name))
		}
		row = append(row, string(r.State), strconv.FormatBool(r.Warmup), strconv.FormatBool(r.Kept), strconv.Itoa(r.Reps), strconv.FormatUint(r.Seed, 10))
		for _, m := range metrics {
			s, ok := r.Metrics[m.Name]
			if !ok {
				row = append(row, "", "", "", "", "", "")
				continue
			}
			var samples []string
			for _, v := range s.Samples {
				samples = append(samples, number(v))
			}
			row = append(row, number(s.Mean), number(s.SD), number(s.Median), number(s.Min), number(s.Max), strings.Join(samples, " "))
		}
		for _, name := range parts {
			cell := ""
			if s, ok := r.part(name); ok {
				cell = number(s)
			}
			row = append(row, cell)
		}
		var files []string
		for _, f := range r.Files {
			files = append(files, f.Name)
		}
		row = append(row, r.Skipped, strings.Join(files, " "))
		fields := flatten(r.Env)
		for _, name := range env {
			var text string
			if json.Unmarshal(fields[name], &text) != nil { // a number
				text = string(fields[name])
			}
			row = append(row, text)
		}
		out.Write(row) //nolint:errcheck // out.Error tells
	}
	out.Flush()
	return out.Error()
}

// writeGoBench writes the format of Go's benchmarks (https://go.dev/design/14313-benchmark-format), a line per repetition.
func writeGoBench(w io.Writer, metrics []Metric, records []Record) error {
	if len(records) == 0 {
		return nil
	}
	var b strings.Builder
	first := &records[0]
	e := &first.Env
	config := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s: %s\n", key, strings.ReplaceAll(value, "\n", " "))
		}
	}
	config("goos", e.OS)
	config("goarch", e.Arch)
	config("pkg", "github.com/coli-moe/coli/bench")
	config("cpu", e.CPU)
	config("isa", e.ISA)
	config("kernel", e.Kernel)
	config("device", e.GPU)
	config("drive", e.Drive)
	config("coli", e.Coli)
	config("commit", e.Commit)
	config("state", string(first.State))
	if len(first.Files) > 0 {
		config("files", fileNames(first.Files))
	}
	blanks := strings.NewReplacer(" ", "_").Replace
	unit := func(m Metric) string { return blanks(m.withUnit("_")) } // by their units alone, metrics could not be told apart
	for _, m := range metrics {
		switch m.Better {
		case 1:
			fmt.Fprintf(&b, "Unit %s better=higher\n", unit(m))
		case -1:
			fmt.Fprintf(&b, "Unit %s better=lower\n", unit(m))
		}
	}
	for _, r := range records {
		name := "Benchmark" + strings.ToUpper(r.Experiment[:1]) + r.Experiment[1:] + "/" + word(r.Test)
		for _, p := range r.Params {
			if p.Value != "" {
				name += "/" + word(p.Name) + "=" + word(p.Value)
			}
		}
		for rep := range r.Reps {
			line := fmt.Sprintf("%s-%d 1", name, max(r.Env.Cores, 1))
			for _, m := range metrics {
				if s, ok := r.Metrics[m.Name]; ok && rep < len(s.Samples) {
					line += fmt.Sprintf(" %s %s", strconv.FormatFloat(s.Samples[rep], 'g', -1, 64), unit(m))
				}
			}
			b.WriteString(line + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// word is s as a part of a benchmark's name: without blanks, and with no slash but those that part names.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '_'
		case r == '/':
			return ':'
		case unicode.IsSpace(r) || unicode.IsControl(r):
			return -1
		}
		return r
	}, s)
}
