package convert

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/coli-moe/coli/internal/disk"
	"github.com/coli-moe/coli/weights/container"
)

const journalName = "journal"

// partial is an output in the making: the directory DIR.partial with the model file, whose header is missing, and the journal. The
// journal's first line identifies source and options; each other one is the number of a unit and its checksum, in hexadecimal.
type partial struct {
	dir, final string
	file       *os.File
	journal    *os.File // locked
	claimed    map[int]uint32

	mu          sync.Mutex
	done, total int64 // bytes of tensors that are complete, and all
}

// openPartial continues the partial output of the same source and options, or begins a new one.
func openPartial(dir string, p *plan, note func(string)) (*partial, error) {
	out := &partial{final: filepath.Clean(dir), claimed: map[int]uint32{}}
	out.dir = out.final + ".partial"
	for i := range p.units {
		out.total += p.units[i].size
	}
	id, err := p.identity()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(out.dir, journalName)
	if entries, err := os.ReadDir(out.dir); err == nil && len(entries) > 0 {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("%s: the folder is in the way and no unfinished conversion; remove or rename it", out.dir)
		}
	}
	if err := checkSpace(out, p.file.Size); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(out.dir, 0o755); err != nil {
		return nil, err
	}
	if out.journal, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, err
	}
	if err = lock(out.journal); err != nil {
		err = fmt.Errorf("%s: another conversion writes there; wait for it or choose another folder", out.dir)
	}
	if err == nil {
		out.file, err = os.OpenFile(filepath.Join(out.dir, container.Name), os.O_RDWR|os.O_CREATE, 0o644)
	}
	if err == nil {
		err = out.begin(id, p, note)
	}
	if err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
}

// identity names source and options: the output's header and what the source's files look like from outside.
func (p *plan) identity() (string, error) {
	h := sha256.New()
	h.Write(p.file.Header(p.metadata))
	h.Write(p.metadata)
	for _, path := range p.c.Files() {
		st, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d %d\n", filepath.Base(path), st.Size(), st.ModTime().UnixNano())
	}
	return fmt.Sprintf("coli convert %x", h.Sum(nil)), nil
}

// begin reads the journal and empties what does not belong to this conversion.
func (out *partial) begin(id string, p *plan, note func(string)) error {
	lines := bufio.NewScanner(out.journal)
	same := lines.Scan() && lines.Text() == id
	started := len(lines.Bytes()) > 0
	end := int64(len(id) + 1)
	for same && lines.Scan() {
		var i int
		var sum uint32
		// A line that an interruption cut short ends the list; the rest is done again.
		if _, err := fmt.Sscanf(lines.Text(), "%x %08x", &i, &sum); err != nil || i < 0 || i >= len(p.units) || lines.Text() != entry(i, sum) {
			break
		}
		out.claimed[i] = sum
		end += int64(len(lines.Bytes()) + 1)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if same {
		note(fmt.Sprintf("continuing %s: %d of %d parts are there", out.dir, len(out.claimed), len(p.units)))
		if err := out.journal.Truncate(end); err != nil {
			return err
		}
		_, err := out.journal.Seek(0, io.SeekEnd)
		return err
	}
	if started {
		note(fmt.Sprintf("starting over: %s is of another source or other options", out.dir))
	}
	for _, f := range []*os.File{out.journal, out.file} {
		if err := f.Truncate(0); err != nil {
			return err
		}
	}
	if _, err := out.journal.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := out.journal.WriteString(id + "\n")
	return err
}

func entry(i int, sum uint32) string { return fmt.Sprintf("%x %08x", i, sum) }

// kept returns the checksum of a unit that an earlier run wrote, nil if it did not or its bytes are not those it wrote. Any number of
// workers may call it.
func (out *partial) kept(i int, u *unit) (*uint32, error) {
	want, ok := out.claimed[i]
	if !ok {
		return nil, nil
	}
	sum, err := sumOf(out.file, u.offset, u.size)
	if errors.Is(err, io.ErrUnexpectedEOF) || err == nil && sum != want {
		return nil, nil
	}
	return &sum, err
}

// complete notes that a unit is written.
func (out *partial) complete(i int, u *unit, progress func(done, total int64)) error {
	out.mu.Lock()
	defer out.mu.Unlock()
	out.done += u.size
	if progress != nil {
		progress(out.done, out.total)
	}
	if sum, ok := out.claimed[i]; ok && sum == *u.sum {
		return nil
	}
	_, err := out.journal.WriteString(entry(i, *u.sum) + "\n")
	return err
}

// finish writes the header, copies the files beside the model and gives the directory its name.
func (out *partial) finish(p *plan, side []string) error {
	if err := out.file.Truncate(p.file.Size); err != nil { // padding of the last record
		return err
	}
	if err := out.file.Sync(); err != nil { // the header must not reach the disk before what it vouches for
		return err
	}
	if _, err := out.file.WriteAt(append(p.file.Header(p.metadata), p.metadata...), 0); err != nil {
		return err
	}
	for _, path := range side {
		if err := copyFile(filepath.Join(out.dir, filepath.Base(path)), path); err != nil {
			return err
		}
	}
	if err := errors.Join(out.file.Sync(), syncDir(out.dir)); err != nil {
		return err
	}
	if err := os.Remove(out.final); err != nil && !errors.Is(err, os.ErrNotExist) { // an empty directory
		return err
	}
	if err := os.Rename(out.dir, out.final); err != nil {
		return err
	}
	return errors.Join(os.Remove(filepath.Join(out.final, journalName)), syncDir(filepath.Dir(out.final)))
}

// Close closes the files; after an error they stay for the next run.
func (out *partial) Close() error {
	err := out.journal.Close()
	if out.file != nil {
		err = errors.Join(err, out.file.Close())
	}
	return err
}

func copyFile(to, from string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err = io.Copy(dst, src); err == nil {
		err = dst.Sync()
	}
	return errors.Join(err, dst.Close())
}

// checkSpace refuses to begin what the disk cannot hold.
func checkSpace(out *partial, size int64) error {
	need := size - allocated(filepath.Join(out.dir, container.Name))
	parent := filepath.Dir(out.final)
	if free, ok := disk.Free(parent); ok && need > free {
		return fmt.Errorf("%s: %s are needed, %s are free; free some space or choose a folder on another disk", out.final, gb(need), gb(free))
	}
	return nil
}
