// Package convert writes coli containers: it takes a checkpoint of any kind that package weights opens and streams it, tensor by tensor,
// into a directory with a model.coli and the configuration and tokenizer files the source has.
//
// A conversion can be interrupted at any time. What is written lies in a directory named like the output with .partial at its end, and a
// journal there says which tensors are complete; the next run with the same source and options checks their sums and does the rest. The
// output appears under its name when it is complete and on disk.
//
// What does not live here: the layout of the file (package weights/container) and the formats' rules of rounding (package weights/format).
package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/container"
	"github.com/coli-moe/coli/weights/format"
)

// Options say what to write and whom to tell.
type Options struct {
	Experts  Target                  // routed experts
	Dense    Target                  // other matrices; routers, norms and biases stay as stored
	Threads  int                     // 0: all the process may use
	Progress func(done, total int64) // bytes of the output; called by one goroutine at a time; nil: nobody
	Note     func(line string)       // what the user should know about the course of things; nil: nobody
}

// Report describes a finished conversion.
type Report struct {
	SourceBytes, Bytes  int64   // of the tensors before, of model.coli after
	BitsPerWeight       float64 // of model.coli
	ExpertBitsPerWeight float64 // of routed experts; 0 without any
	Elapsed             time.Duration
}

// ErrPartial marks an error after which a part of the output is kept that the same call continues from.
var ErrPartial = errors.New("what is done is kept; the same command continues from there")

// Run converts the checkpoint at source into the directory dir, which must not exist or be empty. An interruption through ctx and a
// full disk leave a partial directory and give an error that wraps ErrPartial.
func Run(ctx context.Context, source, dir string, o Options) (*Report, error) {
	start := time.Now()
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		dir = target // the folder that a link leads to may be on another disk
	}
	if err := checkOutput(dir); err != nil {
		return nil, err
	}
	c, err := weights.Open(source)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p, err := newPlan(c, o)
	if err != nil {
		return nil, err
	}
	side, err := sideFiles(c)
	if err != nil {
		return nil, err
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	if p.narrow > 0 {
		o.Note(fmt.Sprintf("%d matrices have a number of columns that the format cannot divide: they become int8", p.narrow))
	}
	out, err := openPartial(dir, p, o.Note)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	err = p.write(ctx, out, o)
	if err == nil {
		err = out.finish(p, side)
	}
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return nil, fmt.Errorf("%s: the disk is full, %s more are needed: free some space; %w", out.dir, gb(out.total-out.done), ErrPartial)
	case errors.Is(err, context.Canceled):
		return nil, fmt.Errorf("%s: %w after %s of %s; %w", out.dir, err, gb(out.done), gb(out.total), ErrPartial)
	case err != nil:
		return nil, err
	}
	r := &Report{SourceBytes: p.stored, Bytes: p.file.Size, Elapsed: time.Since(start)}
	r.BitsPerWeight = 8 * float64(r.Bytes) / float64(max(p.values, 1))
	if p.experts.values > 0 {
		r.ExpertBitsPerWeight = 8 * float64(p.experts.bytes) / float64(p.experts.values)
	}
	return r, nil
}

// checkOutput refuses a directory that something is in already.
func checkOutput(dir string) error {
	entries, err := os.ReadDir(dir)
	switch base := filepath.Base(filepath.Clean(dir)); {
	case base == "." || base == ".." || base == string(filepath.Separator):
		return fmt.Errorf("%s: name a new folder, it takes its name when it is complete", dir)
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return fmt.Errorf("%s: the folder is not empty; name a new one, or remove this one first", dir)
	}
	return nil
}

// gb prints a number of bytes as disks are labelled.
func gb(n int64) string { return fmt.Sprintf("%.3f GB", float64(n)/1e9) }

// batch is how much a worker reads at once, in bytes of the source.
const batch = 1 << 20

// write writes every unit that is not there yet. Workers take units in turn, so memory is a few batches for each.
func (p *plan) write(ctx context.Context, out *partial, o Options) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers(o.Threads) {
		wg.Go(func() {
			w := worker{c: p.c, out: out.file}
			for i := range next {
				u := &p.units[i]
				sum, err := out.kept(i, u)
				if err == nil && sum == nil {
					var s uint32
					s, err = w.write(ctx, u)
					sum = &s
				}
				if err == nil {
					*u.sum = *sum
					err = out.complete(i, u, o.Progress)
				}
				if err != nil {
					cancel(err) // the first one counts
					return
				}
			}
		})
	}
	for i := range p.units {
		select {
		case next <- i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

func workers(threads int) int {
	if threads > 0 {
		return threads
	}
	return runtime.GOMAXPROCS(0)
}

// worker converts units, with buffers of its own.
type worker struct {
	c        *weights.Checkpoint
	out      io.WriterAt
	src, dst []byte
	values   []float32
}

// write converts a unit and returns its checksum.
func (w *worker) write(ctx context.Context, u *unit) (sum uint32, err error) {
	at := u.offset
	for _, x := range u.pieces {
		t := x.t
		row, err := t.Format.RowBytes(t.Cols())
		if err != nil {
			return 0, fmt.Errorf("%s: tensor %q: %w", t.File, t.Name, err)
		}
		step := max(batch/row, 1)
		for first := 0; first < t.Rows(); first += step {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			data, err := w.rows(t, row, first, min(first+step, t.Rows()))
			if err == nil && x.to != t.Format {
				data, err = w.encode(x, row, first, data)
			}
			if err != nil {
				return 0, err
			}
			if _, err := w.out.WriteAt(data, at); err != nil {
				return 0, err
			}
			sum = container.Sum(sum, data)
			at += int64(len(data))
		}
	}
	return sum, nil
}

// rows returns the rows from ≤ r < to of t, each of row bytes.
func (w *worker) rows(t *weights.Tensor, row, from, to int) ([]byte, error) {
	switch {
	case t.Scale == nil:
		w.src = slices.Grow(w.src[:0], (to-from)*row)[:(to-from)*row]
		return w.src, w.c.ReadRange(t, int64(from)*int64(row), w.src)
	case len(t.Shape) == 2:
		part, err := t.RowsOf(from, to)
		if err != nil {
			return nil, err
		}
		return w.c.LoadRows(part)
	}
	all, err := w.c.LoadRows(t)
	if err != nil {
		return nil, err
	}
	return all[from*row : to*row], nil
}

// encode converts rows; first is the number of the first one.
func (w *worker) encode(x piece, row, first int, data []byte) ([]byte, error) {
	cols := x.t.Cols()
	size, err := x.to.RowBytes(cols)
	n := len(data) / row
	w.dst = slices.Grow(w.dst[:0], n*size)[:n*size]
	w.values = slices.Grow(w.values[:0], cols)[:cols]
	for r := range n {
		if err == nil {
			err = format.Decode(x.t.Format, w.values, data[r*row:][:row])
		}
		if err == nil {
			err = encodeRow(x.to, w.dst[r*size:][:size], w.values)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: tensor %q: row %d: %w", x.t.File, x.t.Name, first+r, err)
		}
	}
	return w.dst, nil
}

// sideFiles lists the files beside safetensors that a model is not complete without: configuration, tokenizer and chat template.
func sideFiles(c *weights.Checkpoint) ([]string, error) {
	entries, err := os.ReadDir(c.Dir())
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		name := e.Name()
		if slices.Contains(sideNames, name) || strings.HasSuffix(name, ".jinja") {
			out = append(out, filepath.Join(c.Dir(), name))
		}
	}
	if c.GGUF() != nil { // what belongs to the model is inside
		return nil, nil
	}
	return out, nil
}

var sideNames = []string{
	"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "chat_template.json", "preprocessor_config.json",
}
