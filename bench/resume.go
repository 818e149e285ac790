package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coli-moe/coli/internal/atomicfile"
)

// Names of the files in a directory that a run is resumed from.
const (
	manifestName = "manifest.json"
	journalName  = "samples.jsonl"
)

// manifest pins what a directory of samples belongs to. Samples of two manifests cannot be compared. The number of repetitions is not part
// of it: more may be asked for later.
type manifest struct {
	Version    int      `json:"version"`
	Experiment string   `json:"experiment"`
	Arms       []string `json:"arms"` // test and settings of each
	State      State    `json:"state,omitempty"`
	Warmup     bool     `json:"warmup"`
	Seed       uint64   `json:"seed"`
	Files      []File   `json:"files,omitempty"`
	Env        Env      `json:"env"`
}

const manifestVersion = 1

func (x *execution) manifest() manifest {
	m := manifest{
		Version: manifestVersion, Experiment: x.experiment.Name(), State: x.State, Warmup: x.warms(), Seed: x.Seed, Files: x.files, Env: x.Env,
	}
	for _, a := range x.arms {
		m.Arms = append(m.Arms, a.key())
	}
	return m
}

// differ says in what a run differs from the one that m belongs to, "" if in nothing that matters.
func (m *manifest) differ(run *manifest) string {
	then, now := flatten(m), flatten(run)
	for _, field := range []string{"version", "experiment", "state", "warmup", "seed", "arms", "files", "env"} {
		if !bytes.Equal(then[field], now[field]) {
			switch field {
			case "arms":
				return differArms(m.Arms, run.Arms)
			case "files":
				return differFiles(m.Files, run.Files)
			case "env":
				return differEnv(&m.Env, &run.Env)
			}
			return fmt.Sprintf("%s was %s there and is %s now", field, then[field], now[field])
		}
	}
	return ""
}

// flatten returns the fields of v as JSON, without the date.
func flatten(v any) map[string]json.RawMessage {
	data, err := json.Marshal(v)
	var fields map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(data, &fields)
	}
	if err != nil {
		panic(fmt.Sprintf("bench: %T as JSON: %v", v, err)) // a type of this package
	}
	if env, ok := fields["env"]; ok {
		var e map[string]json.RawMessage
		if json.Unmarshal(env, &e) == nil {
			delete(e, "date")
			fields["env"], _ = json.Marshal(e) //nolint:errcheck // it was JSON
		}
	}
	return fields
}

func differArms(then, now []string) string {
	for _, a := range now {
		if !slices.Contains(then, a) {
			return fmt.Sprintf("%q is not among the %d measured there (%q)", a, len(then), then[0])
		}
	}
	return fmt.Sprintf("%d combinations of settings were measured there, now there are %d", len(then), len(now))
}

func differFiles(then, now []File) string {
	for i := range min(len(then), len(now)) {
		if a, b := then[i], now[i]; a.Name != b.Name || a.Bytes != b.Bytes || a.Header != b.Header || !a.Time.Equal(b.Time) {
			return fmt.Sprintf("it read %s, this would read %s", a.describe(), b.describe())
		}
	}
	return fmt.Sprintf("it read %d files, this would read %d", len(then), len(now))
}

func (f *File) describe() string {
	return fmt.Sprintf("%s (%d bytes, changed %s, header %s)", f.Name, f.Bytes, f.Time.Format("2006-01-02 15:04:05"), f.Header)
}

func differEnv(then, now *Env) string {
	a, b := flatten(then), flatten(now)
	var all []string
	for _, field := range slices.Sorted(keysOf(a, b)) {
		if field != "date" && !bytes.Equal(a[field], b[field]) {
			all = append(all, fmt.Sprintf("%s was %s there and is %s now", field, orNothing(a[field]), orNothing(b[field])))
		}
	}
	return strings.Join(all, ", ")
}

func orNothing(v json.RawMessage) string {
	if v == nil {
		return "unknown"
	}
	return string(v)
}

func keysOf(maps ...map[string]json.RawMessage) func(func(string) bool) {
	all := map[string]bool{}
	for _, m := range maps {
		for k := range m {
			all[k] = true
		}
	}
	return func(yield func(string) bool) {
		for k := range all {
			if !yield(k) {
				return
			}
		}
	}
}

// journalLine is a sample as it is kept.
type journalLine struct {
	Arm    string `json:"arm"`
	Rep    int    `json:"rep"`
	Sample Sample `json:"sample"`
}

// journal is the open file of samples.
type journal struct {
	file  *os.File
	lines []journalLine // what was there
}

// openJournal makes dir, or opens one that a run with the same manifest has made.
func openJournal(dir string, run manifest) (j *journal, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot resume from %s: %w", dir, err)
		}
	}()
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := ofRun(dir); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, journalName), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if err = lock(file); err != nil { // before the manifest is looked at: it may be about to be written
		err = fmt.Errorf("%s: %w; is coli bench running with this folder already?", journalName, err)
	} else {
		err = pin(dir, &run)
	}
	var lines []journalLine
	if err == nil {
		lines, err = readSamples(file, run.Arms)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &journal{file, lines}, nil
}

// ofRun is an error if a folder holds something else than a run: without a manifest, there is at most what a run had begun with when it was
// ended.
func ofRun(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var other string
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case e.Name() == manifestName:
			return nil
		case err == nil && e.Name() == journalName && info.Size() == 0, strings.HasPrefix(e.Name(), "."+manifestName): // atomicfile's
		default:
			other = cmp.Or(other, e.Name())
		}
	}
	if other != "" {
		return fmt.Errorf("it has no %s, but holds %s; name a new or empty folder", manifestName, other)
	}
	return nil
}

// pin writes the manifest of a new folder; of another it is an error if the run differs from the manifest's.
func pin(dir string, run *manifest) error {
	path := filepath.Join(dir, manifestName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = json.MarshalIndent(run, "", "  "); err != nil {
			return err
		}
		return atomicfile.Write(path, 0o644, func(w io.Writer) error {
			_, err := w.Write(append(data, '\n'))
			return err
		})
	}
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("%s: %w", manifestName, err)
	}
	if why := m.differ(run); why != "" {
		return fmt.Errorf("it is of another run: %s; name another folder, or give the flags of that run", why)
	}
	return nil
}

// readSamples reads the file of samples and leaves it open for more. What a crash has left of a line at its end is cut off.
func readSamples(file *os.File, arms []string) ([]journalLine, error) {
	lines, whole, err := readJournal(file, arms)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", journalName, err)
	}
	if err := file.Truncate(whole); err != nil {
		return nil, err
	}
	_, err = file.Seek(whole, io.SeekStart)
	return lines, err
}

// readJournal reads samples of the given arms, and returns the length of the lines that are whole.
func readJournal(r io.Reader, arms []string) (lines []journalLine, whole int64, err error) {
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return lines, whole, nil
		}
		if err != nil {
			return nil, 0, err
		}
		var l journalLine
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w; remove the line to have its repetition made again", n, err)
		}
		if !slices.Contains(arms, l.Arm) || l.Rep < 0 {
			return nil, 0, fmt.Errorf("line %d: repetition %d of %q, which is not in the manifest", n, l.Rep, l.Arm)
		}
		lines, whole = append(lines, l), whole+int64(len(text))
	}
}

// append keeps a sample; when it returns without an error, the sample is on the disk.
func (j *journal) append(l journalLine) error {
	data, err := json.Marshal(l)
	if err == nil {
		_, err = j.file.Write(append(data, '\n'))
	}
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("keeping a sample: %w", err)
	}
	return nil
}

func (j *journal) Close() error { return j.file.Close() }
