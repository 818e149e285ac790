package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// interrupted starts an experiment of two arms and three repetitions in dir and cancels it at a line of its log.
func interrupted(t *testing.T, dir, at string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := newFake(1, "A", "B")
	f.fail[at] = context.Canceled
	f.then = func(line string) {
		if line == at {
			cancel()
		}
	}
	if _, err := Execute(ctx, f, Options{Reps: 3, Memory: 9, Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// What an interrupted run has measured is not measured again, and the records are those of a run in one piece.
func TestResume(t *testing.T) {
	whole, err := Execute(t.Context(), newFake(1, "A", "B"), Options{Reps: 3, Memory: 9})
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{
		"A0": "open A, warm A, A0, open B, warm B, B0, B1, A1, A2, close A, B2, close B",
		"B1": "open B, warm B, B1, open A, warm A, A1, A2, close A, B2, close B",
		"B2": "open B, warm B, B2, close B",
	} {
		t.Run(at, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			interrupted(t, dir, at)
			f := newFake(1, "A", "B")
			var before int
			records, err := Execute(t.Context(), f, Options{Reps: 3, Memory: 9, Dir: dir, Watch: func(e Event) {
				if len(f.log) == 0 {
					before = e.Done
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(f.log, ", "); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if made := 6 - strings.Count(want, "A0") - strings.Count(want, "B0") - strings.Count(want, "A1") - strings.Count(want, "B1") -
				strings.Count(want, "A2") - strings.Count(want, "B2"); before != made {
				t.Errorf("%d repetitions counted as done, want %d", before, made)
			}
			if diff := cmp.Diff(whole, records, cmpopts.IgnoreUnexported(File{})); diff != "" {
				t.Errorf("records (-whole +resumed):\n%s", diff)
			}
			f = newFake(1, "A", "B")
			if _, err := Execute(t.Context(), f, Options{Reps: 3, Memory: 9, Dir: dir}); err != nil || len(f.log) > 0 {
				t.Errorf("a finished run: %v, %v", f.log, err)
			}
			if records, err := Execute(t.Context(), f, Options{Reps: 4, Memory: 9, Dir: dir}); err != nil || records[0].Reps != 4 ||
				strings.Join(f.log, ", ") != "open B, warm B, B3, close B, open A, warm A, A3, close A" {
				t.Errorf("one more repetition: %v, %v", f.log, err)
			}
			if records, err := Execute(t.Context(), newFake(1, "A", "B"), Options{Reps: 1, Memory: 9, Dir: dir}); err != nil || records[0].Reps != 1 {
				t.Errorf("fewer repetitions: %+v, %v", records, err)
			}
		})
	}
}

// A crash leaves a part of a line, which is made again.
func TestTornLine(t *testing.T) {
	dir := t.TempDir()
	interrupted(t, dir, "B1")
	path := filepath.Join(dir, journalName)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	second := strings.Index(string(data), "\n") + 1
	for cut := second; cut < len(data); cut += 7 {
		if err := os.WriteFile(path, data[:cut], 0o666); err != nil {
			t.Fatal(err)
		}
		f := newFake(1, "A", "B")
		if _, err := Execute(t.Context(), f, Options{Reps: 1, Memory: 9, Dir: dir}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(f.log, ", "); got != "open B, warm B, B0, close B" {
			t.Fatalf("cut at %d of %d: %s", cut, len(data), got)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != string(data) {
			t.Fatalf("cut at %d: %q, %v", cut, after, err)
		}
	}
}

func TestOtherRunsAreRefused(t *testing.T) {
	files := t.TempDir()
	model := filepath.Join(files, "model.gguf")
	when := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	write := func(path, text string, at time.Time) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o666), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	write(model, "GGUF, of a kind", when)
	experiment := func() *fake {
		f := newFake(1, "A", "B")
		f.files = []string{model}
		return f
	}
	opt := Options{Reps: 1, State: Rotating, Seed: 1, Env: Env{CPU: "one", Cores: 2}, Dir: filepath.Join(t.TempDir(), "run")}
	if _, err := Execute(t.Context(), experiment(), opt); err != nil {
		t.Fatal(err)
	}
	later := opt
	later.Env.Date = when // a record's date is no difference
	if _, err := Execute(t.Context(), experiment(), later); err != nil {
		t.Error(err)
	}

	for want, change := range map[string]func(*fake, *Options){
		`state was "rotating" there and is "warm" now`:                              func(_ *fake, o *Options) { o.State = Warm },
		"warmup was true there and is false now":                                    func(_ *fake, o *Options) { o.NoWarmup = true },
		"seed was 1 there and is 2 now":                                             func(_ *fake, o *Options) { o.Seed = 2 },
		`cpu was "one" there and is "other" now`:                                    func(_ *fake, o *Options) { o.Env.CPU = "other" },
		`cores was 2 there and is 4 now, kernel was unknown there and is "6.1" now`: func(_ *fake, o *Options) { o.Env.Cores, o.Env.Kernel = 4, "6.1" },
		`"C ram=C% threads=2" is not among the 2 measured there ("A ram=A% threads=2")`: func(f *fake, _ *Options) {
			f.arms = append(f.arms, newFake(1, "C").arms...)
		},
		"2 combinations of settings were measured there, now there are 1": func(f *fake, _ *Options) { f.arms = f.arms[:1] },
		"it read 1 files, this would read 2": func(f *fake, _ *Options) {
			f.files = append(f.files, filepath.Join(files, "other"))
			write(f.files[1], "", when)
		},
		"this would read model.gguf (16 bytes, changed 2026-01-02 03:04:05, header ": func(*fake, *Options) {
			write(model, "GGUF, of a kind.", when)
		},
		"this would read model.gguf (15 bytes, changed 2026-01-02 03:04:06, header ": func(*fake, *Options) { write(model, "GGUF, of a kind", when.Add(time.Second)) },
		"(15 bytes, changed 2026-01-02 03:04:05, header 8b266f895f0711f6":            func(*fake, *Options) { write(model, "GGUF, of b kind", when) },
	} {
		t.Run(want, func(t *testing.T) {
			f, o := experiment(), opt
			change(f, &o)
			_, err := Execute(t.Context(), f, o)
			if err == nil || !strings.HasPrefix(err.Error(), "cannot resume from "+opt.Dir+": it is of another run: ") || !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %q", err, want)
			}
			if len(f.log) > 0 {
				t.Errorf("%v", f.log)
			}
		})
		write(model, "GGUF, of a kind", when)
	}
}

// A run that was ended before its manifest was there begins anew.
func TestFolderThatWasHardlyBegun(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{journalName, "." + manifestName + ".123"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if records, err := Execute(t.Context(), newFake(1, "A"), Options{Reps: 1, Dir: dir}); err != nil || len(records) != 1 {
			t.Fatalf("%v, %v", records, err)
		}
	}
}

func TestUnusableFolders(t *testing.T) {
	for want, prepare := range map[string]func(dir string) error{
		"it has no manifest.json, but holds notes.txt": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o777), os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o666))
		},
		"it has no manifest.json, but holds samples.jsonl": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o777), os.WriteFile(filepath.Join(dir, journalName), []byte("{}\n"), 0o666))
		},
		"manifest.json: unexpected end": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o777), os.WriteFile(filepath.Join(dir, manifestName), nil, 0o666))
		},
		"not a directory":                  func(dir string) error { return os.WriteFile(dir, nil, 0o666) },
		"no such file or directory":        func(dir string) error { return os.Mkdir(filepath.Dir(dir)+"2", 0o777) },
		`version was 9 there and is 1 now`: func(dir string) error { return manifestOf(dir, 9) },
		"samples.jsonl: line 1: ": func(dir string) error {
			return errors.Join(manifestOf(dir, 1), os.WriteFile(filepath.Join(dir, journalName), []byte("x\n"), 0o666))
		},
		"which is not in the manifest": func(dir string) error {
			return errors.Join(manifestOf(dir, 1), os.WriteFile(filepath.Join(dir, journalName), []byte(`{"arm":"C"}`+"\n"), 0o666))
		},
		"samples.jsonl: is a directory": func(dir string) error {
			return errors.Join(manifestOf(dir, 1), os.Mkdir(filepath.Join(dir, journalName), 0o777))
		},
	} {
		t.Run(want, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			o := Options{Reps: 1, Dir: dir}
			if want == "no such file or directory" {
				o.Dir = filepath.Join(dir, "below")
			}
			if err := prepare(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := Execute(t.Context(), newFake(1, "A"), o); err == nil || !strings.Contains(err.Error(), want) ||
				!strings.HasPrefix(err.Error(), "cannot resume from "+o.Dir) {
				t.Errorf("%v; want %q", err, want)
			}
		})
	}
}

// manifestOf makes a folder of a run of newFake(1, "A").
func manifestOf(dir string, version int) error {
	text := fmt.Sprintf(`{"version":%d,"experiment":"fake","arms":["A ram=A%% threads=2"],"warmup":true,"seed":0,"env":%s}`, version,
		`{"coli":"","go":"","os":"","arch":"","cores":0,"isa":"","gpu":"a card"}`)
	return errors.Join(os.Mkdir(dir, 0o777), os.WriteFile(filepath.Join(dir, manifestName), []byte(text), 0o666))
}

// A folder that cannot be written to is an error before anything is measured.
func TestUnwritableFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	if f, err := os.Create(filepath.Join(dir, "try")); err == nil {
		f.Close()
		t.Skip("this user may write anywhere")
	}
	f := newFake(1, "A")
	if _, err := Execute(t.Context(), f, Options{Reps: 1, Dir: dir}); !errors.Is(err, fs.ErrPermission) || len(f.log) > 0 {
		t.Errorf("%v, %v", f.log, err)
	}
}

// One folder is for one process at a time.
func TestFolderIsLocked(t *testing.T) {
	dir := t.TempDir()
	f := newFake(1, "A")
	var second error
	f.then = func(line string) {
		if line == "A0" {
			_, second = Execute(t.Context(), newFake(1, "A"), Options{Reps: 1, Dir: dir})
		}
	}
	if _, err := Execute(t.Context(), f, Options{Reps: 1, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if second == nil || !strings.Contains(second.Error(), "running with this folder already?") {
		t.Errorf("%v", second)
	}
}

// A sample that cannot be kept ends the run: to go on would lose it.
func TestJournalCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), journalName)
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	j := journal{file: file}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.append(journalLine{}); err == nil || !strings.HasPrefix(err.Error(), "keeping a sample: ") || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}

func FuzzReadJournal(f *testing.F) {
	f.Add(`{"arm":"A","rep":0,"sample":{"values":{"tok/s":1}}}` + "\n")
	f.Add(`{"arm":"A","rep":0}` + "\n" + `{"arm":"A","re`)
	f.Add(`{"arm":"A","rep":-1}` + "\n")
	f.Add("\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		lines, whole, err := readJournal(strings.NewReader(text), []string{"A"})
		if err != nil {
			return
		}
		if whole != int64(strings.LastIndexByte(text, '\n')+1) {
			t.Errorf("%d bytes are whole lines of %q", whole, text)
		}
		for _, l := range lines {
			if l.Arm != "A" || l.Rep < 0 {
				t.Errorf("%+v", l)
			}
		}
		again, same, err := readJournal(io.LimitReader(strings.NewReader(text), whole), []string{"A"})
		if err != nil || same != whole || len(again) != len(lines) {
			t.Errorf("%d lines of the whole ones, want %d; %v", len(again), len(lines), err)
		}
	})
}
