package router

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

var small = Identity{Layers: 2, Experts: 3, Engine: "olmoe"}

// The FNV-1a hash of "olmoe", computed apart: from 2166136261, for each byte exclusive or, then times 16777619, modulo 2^32.
const header = "-1 2 3\n-2 1 3841822045\n"

func TestHistoryRead(t *testing.T) {
	for _, c := range []struct {
		name, text string
		id         Identity
		want       []uint64
		err        string
	}{
		{"empty", "", small, []uint64{0, 0, 0, 0, 0, 0}, ""},
		{"headers only", header, small, []uint64{0, 0, 0, 0, 0, 0}, ""},
		{"counts", header + "0 0 5\n1 2 18446744073709551615\n", small, []uint64{5, 0, 0, 0, 0, math.MaxUint64}, ""},
		{"no headers", "0 1 5\n1 1 7", small, []uint64{0, 5, 0, 0, 7, 0}, ""},
		{"carriage returns", "0 1 5\r\n1 1 7\r\n", small, []uint64{0, 5, 0, 0, 7, 0}, ""},
		{"unknown headers", header + "-3 17 4\n0 0 1\n", small, []uint64{1, 0, 0, 0, 0, 0}, ""},
		{"twice the same", "0 1 5\n0 1 18446744073709551615\n", small, []uint64{0, math.MaxUint64, 0, 0, 0, 0}, ""},
		{
			"a hash as a signed number", "-2 1 -2\n",
			Identity{Layers: 1, Experts: 1, Explicit: true},
			[]uint64{0},
			"",
		},
		{"another model", "-1 2 4\n", small, nil, "line 1: it is about a model of 2 layers of 4 experts, and this one has 2 of 3"},
		{"another model, named", "-1 3 3\n", Identity{2, 3, "olmoe", true}, nil, "3 layers of 3 experts"},
		{"another version", "-1 2 3\n-2 2 3841822045\n", small, nil, "line 2: it has version 2 of the format; 1 is understood"},
		{"another version, named", "-2 2 3841822045\n", Identity{2, 3, "olmoe", true}, nil, "version 2"},
		{"another engine", header, Identity{2, 3, "mixtral", false}, nil, "line 2: another engine than mixtral wrote it"},
		{"another engine, named", header + "0 2 1\n", Identity{2, 3, "mixtral", true}, []uint64{0, 0, 1, 0, 0, 0}, ""},
		{"two fields", header + "0 1\n", small, nil, `line 3: "0 1" has 2 fields; three numbers are expected`},
		{"an empty line", "0 1 2\n\n", small, nil, "line 2"},
		{"four fields", "0 1 2 3\n", small, nil, "line 1"},
		{"no number", "0 x 2\n", small, nil, `"x" is not a number`},
		{"a negative count", "0 1 -2\n", small, nil, `"-2" is not a count`},
		{"a fraction", "0 1 2.5\n", small, nil, `"2.5" is not a count`},
		{"a layer too many", "2 0 1\n", small, nil, "expert 0 of layer 2"},
		{"an expert too many", "0 3 1\n", small, nil, "expert 3 of layer 0"},
		{"a negative expert", "0 -1 1\n", small, nil, "expert -1 of layer 0"},
		{"an endless line", "0 1 " + strings.Repeat("9", 1000), small, nil, "line 1: bufio.Scanner: token too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			counts, err := read(strings.NewReader(c.text), c.id)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("%v, want %q", err, c.err)
			}
			if !slices.Equal(counts, c.want) {
				t.Errorf("%d, want %d", counts, c.want)
			}
		})
	}
}

// history loads a history that must be without fault.
func history(t *testing.T, paths ...string) *History {
	t.Helper()
	h, err := LoadHistory(paths, small)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func save(t *testing.T, h *History, want string, paths ...string) {
	t.Helper()
	if path, err := h.Save(paths); err != nil || path != want {
		t.Fatalf("saved in %s: %v", filepath.Base(path), err)
	}
}

func TestHistorySave(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, HistoryName)
	h := history(t, path)
	save(t, h, "", path)
	if _, err := os.Stat(path); err == nil {
		t.Error("a file was made for nothing")
	}
	h.Add(0, 1, 3)
	h.Add(1, 2, 1)
	save(t, h, path, path)
	if data, _ := os.ReadFile(path); string(data) != header+"0 1 3\n1 2 1\n" {
		t.Errorf("the file is %q", data)
	}
	save(t, h, "", path) // nothing new

	other := history(t, path)
	if want := []uint64{0, 3, 0, 0, 0, 1}; !slices.Equal(other.Counts(), want) {
		t.Errorf("loaded %d, want %d", other.Counts(), want)
	}
	other.Add(0, 0, 1)
	h.Add(0, 1, 1)
	save(t, other, path, path)
	save(t, h, path, path)
	if got, want := history(t, path).Counts(), []uint64{1, 4, 0, 0, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("two writers made %d, want %d", got, want)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("the folder has %v", names)
	}
}

// TestHistoryProcesses: writers at the same moment lose nothing.
func TestHistoryProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), HistoryName)
	const writers, saves = 4, 8
	var done sync.WaitGroup
	for w := range writers {
		done.Go(func() {
			h, err := LoadHistory([]string{path}, small)
			if err != nil {
				t.Error(err)
				return
			}
			for range saves {
				h.Add(0, w%small.Experts, 1)
				if _, err := h.Save([]string{path}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	var sum uint64
	for _, n := range history(t, path).Counts() {
		sum += n
	}
	if sum != writers*saves {
		t.Errorf("%d counts of %d were kept", sum, writers*saves)
	}
}

// TestHistoryReadOnlyModel: the cache takes the counts, and both files count.
func TestHistoryReadOnlyModel(t *testing.T) {
	dir := t.TempDir()
	model, cache := filepath.Join(dir, "model", HistoryName), filepath.Join(dir, "cache", "usage", HistoryName)
	if err := os.Mkdir(filepath.Dir(model), 0o777); err != nil {
		t.Fatal(err)
	}
	h := history(t, model, cache)
	h.Add(0, 0, 2)
	save(t, h, model, model, cache)
	// The superuser may write to a read-only folder, but not to one that is not there.
	gone := filepath.Join(dir, "model", "gone", HistoryName)
	h.Add(0, 1, 1)
	save(t, h, cache, gone, cache)
	h.Add(0, 1, 1)
	save(t, h, cache, gone, cache)
	if got, want := history(t, model, gone, cache).Counts(), []uint64{2, 2, 0, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("loaded %d, want %d", got, want)
	}
	if os.Getuid() > 0 {
		if err := os.Chmod(filepath.Dir(model), 0o555); err != nil {
			t.Fatal(err)
		}
		h.Add(1, 0, 1)
		save(t, h, cache, model, cache)
		if err := os.Chmod(filepath.Dir(model), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHistoryRefused: a file that is not this model's is neither taken nor written over; the counts go elsewhere.
func TestHistoryRefused(t *testing.T) {
	dir := t.TempDir()
	path, cache := filepath.Join(dir, HistoryName), filepath.Join(dir, "cache", HistoryName)
	if err := os.WriteFile(path, []byte("-1 9 9\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	h, err := LoadHistory([]string{path, cache}, small)
	if err == nil || !strings.Contains(err.Error(), HistoryName+": line 1") {
		t.Errorf("%v", err)
	}
	h.Add(1, 1, 4)
	if where, err := h.Save([]string{path}); err == nil || where != "" {
		t.Errorf("saved in %q", where)
	}
	save(t, h, cache, path, cache)
	if data, _ := os.ReadFile(path); string(data) != "-1 9 9\n" {
		t.Errorf("the file is %q", data)
	}
	if got := history(t, cache).Counts()[4]; got != 4 {
		t.Errorf("%d counts", got)
	}
}

// TestHistoryIsNoFile: what is no regular file is refused without waiting for what it might say.
func TestHistoryIsNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), HistoryName)
	if err := os.Mkdir(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadHistory([]string{path, os.DevNull}, small); err == nil || strings.Count(err.Error(), "not a regular file") != 2 {
		t.Errorf("%v", err)
	}
}

func TestHistoryPaths(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "model.gguf")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	of, in := HistoryPaths(file, "cache"), HistoryPaths(dir, "cache")
	if len(of) != 2 || of[0] != filepath.Join(dir, HistoryName) || !slices.Equal(of, in) {
		t.Errorf("of a file %q, of its folder %q", of, in)
	}
	if !strings.HasPrefix(of[1], filepath.Join("cache", "usage")) || !strings.HasSuffix(of[1], HistoryName) {
		t.Errorf("in the cache: %q", of[1])
	}
	if other := HistoryPaths(filepath.Join(dir, "other"), "cache"); other[1] == of[1] {
		t.Errorf("two models share %s", filepath.Base(of[1]))
	}
	if p := HistoryPaths(dir, ""); len(p) != 1 {
		t.Errorf("without a cache: %q", p)
	}
}

// FuzzHistory: any file is read or refused, and what was read is what is read again after it was written.
func FuzzHistory(f *testing.F) {
	for _, s := range []string{"", header + "0 1 5\n1 2 1\n", "0 1 5", "-1 2 4\n", "-2 1 -5\n", "0 1\n", "-9 -9 -9", "1 1 99999999999999999999"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		counts, err := read(bytes.NewReader(data), small)
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := write(&b, counts, small); err != nil {
			t.Fatal(err)
		}
		if again, err := read(&b, small); err != nil || !slices.Equal(again, counts) {
			t.Fatalf("%v; %d, want %d", err, again, counts)
		}
	})
}
