package router

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/coli-moe/coli/internal/atomicfile"
)

// HistoryName is the name of the usage history's file in a model's folder.
const HistoryName = ".coli_usage"

// The history is a text file of lines of three numbers. Those that begin with a negative number say what the file is about:
//
//	-1 <layers> <experts>       of the model
//	-2 <version> <identity>     identity is the FNV-1a hash (32 bits) of the name of the program that counted
//	<layer> <expert> <count>    for each count that is not 0
//
// Readers skip negative numbers they do not know. Files older than these headers have only the last kind of line.
const (
	historyShape    = -1
	historyIdentity = -2
	historyVersion  = 1
)

// Identity says whose history it is: counts of one model mean nothing to another.
type Identity struct {
	Layers, Experts int    // of the model; experts of a layer
	Engine          string // name of what counted, "olmoe"
	// Explicit is set where the user named the file: then another engine's counts are taken.
	Explicit bool
}

// History is how often each expert was routed to. It is not safe for concurrent use.
type History struct {
	id     Identity
	counts []uint64 // layers outermost: all that is known
	added  []uint64 // of these, what is in no file yet
}

// HistoryPaths returns where the history of a model is kept, in the order of preference: beside the model, which is a folder or a
// file, and, for models that cannot be written to, in cacheDir, if that is not "".
func HistoryPaths(model, cacheDir string) []string {
	dir := model
	if info, err := os.Stat(model); err == nil && !info.IsDir() {
		dir = filepath.Dir(model)
	}
	paths := []string{filepath.Join(dir, HistoryName)}
	if cacheDir == "" {
		return paths
	}
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return append(paths, filepath.Join(cacheDir, "usage", fmt.Sprintf("%x", sha256.Sum256([]byte(dir)))[:16]+HistoryName))
}

// LoadHistory returns the sum of the histories in those of the files that exist. Since Save writes a count to one of them only, no pair is
// counted twice. The history can be used whatever the error, which names each file that was not taken, and why.
func LoadHistory(paths []string, id Identity) (*History, error) {
	n := id.Layers * id.Experts
	h := &History{id: id, counts: make([]uint64, n), added: make([]uint64, n)}
	var errs []error
	for _, path := range paths {
		counts, err := readFile(path, id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		sum(h.counts, counts)
	}
	return h, errors.Join(errs...)
}

// Counts returns the counts by layer and expert, layers outermost. They are the history's own.
func (h *History) Counts() []uint64 { return h.counts }

// Add counts n pairs routed to an expert.
func (h *History) Add(layer, expert int, n uint64) {
	i := layer*h.id.Experts + expert
	h.counts[i] = plus(h.counts[i], n)
	h.added[i] = plus(h.added[i], n)
}

// Save adds what was counted since the last Save to the first of the files that can be written, and returns that file's path; with nothing
// counted it writes nothing and returns "". What another process saved meanwhile is kept. A file that LoadHistory would not take is
// left as it is. On failure the error names each file and why, and the counts remain to be saved.
func (h *History) Save(paths []string) (path string, err error) {
	nothing := true
	for _, n := range h.added {
		nothing = nothing && n == 0
	}
	if nothing {
		return "", nil
	}
	var errs []error
	for i, path := range paths {
		if i > 0 { // not the model's folder
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if err := h.addTo(path); err != nil {
			errs = append(errs, err)
			continue
		}
		clear(h.added)
		return path, nil
	}
	return "", fmt.Errorf("saving the usage history: %w", errors.Join(errs...))
}

// addTo adds what was counted to one file.
func (h *History) addTo(path string) error {
	unlock, err := lock(path)
	if err != nil {
		return err
	}
	defer unlock()
	total, err := readFile(path, h.id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		total = make([]uint64, len(h.added))
	case err != nil:
		return err
	}
	sum(total, h.added)
	return atomicfile.Write(path, 0o644, func(w io.Writer) error { return write(w, total, h.id) })
}

func sum(dst, src []uint64) {
	for i, n := range src {
		dst[i] = plus(dst[i], n)
	}
}

// plus adds without overflow.
func plus(a, b uint64) uint64 { return a + min(b, math.MaxUint64-a) }

func identity(engine string) uint32 {
	h := fnv.New32a()
	io.WriteString(h, engine) //nolint:errcheck // never fails
	return h.Sum32()
}

func write(w io.Writer, counts []uint64, id Identity) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%d %d %d\n%d %d %d\n", historyShape, id.Layers, id.Experts, historyIdentity, historyVersion, identity(id.Engine))
	for i, n := range counts {
		if n > 0 {
			fmt.Fprintf(b, "%d %d %d\n", i/id.Experts, i%id.Experts, n)
		}
	}
	return b.Flush()
}

func readFile(path string, id Identity) ([]uint64, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // opening a pipe would wait for a writer
		return nil, fmt.Errorf("usage history %s: not a regular file; remove it to begin another", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	counts, err := read(f, id)
	if err != nil {
		return nil, fmt.Errorf("usage history %s: %w; remove the file to begin another", path, err)
	}
	return counts, nil
}

// read returns a file's counts.
func read(r io.Reader, id Identity) ([]uint64, error) {
	counts := make([]uint64, id.Layers*id.Experts)
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 256), 256) // three numbers are shorter
	n := 0
	for lines.Scan() {
		n++
		if err := readLine(lines.Text(), counts, id); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	return counts, nil
}

func readLine(line string, counts []uint64, id Identity) error {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return fmt.Errorf("%q has %d fields; three numbers are expected", line, len(fields))
	}
	var head [2]int64
	for i := range head {
		var err error
		if head[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return fmt.Errorf("%q is not a number", fields[i])
		}
	}
	// A 32-bit hash may have been printed as a signed number.
	count, err := strconv.ParseUint(fields[2], 10, 64)
	if signed, serr := strconv.ParseInt(fields[2], 10, 32); err != nil && serr == nil && head[0] < 0 {
		count, err = uint64(uint32(signed)), nil
	}
	if err != nil {
		return fmt.Errorf("%q is not a count", fields[2])
	}
	switch layer, expert := head[0], head[1]; {
	case layer == historyShape && (expert != int64(id.Layers) || count != uint64(id.Experts)):
		return fmt.Errorf("it is about a model of %d layers of %d experts, and this one has %d of %d", expert, count, id.Layers, id.Experts)
	case layer == historyIdentity && expert != historyVersion:
		return fmt.Errorf("it has version %d of the format; %d is understood", expert, historyVersion)
	case layer == historyIdentity && count != uint64(identity(id.Engine)) && !id.Explicit:
		return fmt.Errorf("another engine than %s wrote it", id.Engine)
	case layer < 0:
	case layer >= int64(id.Layers) || expert < 0 || expert >= int64(id.Experts):
		return fmt.Errorf("expert %d of layer %d in a model of %d layers of %d experts", expert, layer, id.Layers, id.Experts)
	default:
		i := layer*int64(id.Experts) + expert
		counts[i] = plus(counts[i], count)
	}
	return nil
}
