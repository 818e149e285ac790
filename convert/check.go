package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/coli-moe/coli/weights/container"
)

// maxListed bounds the damaged parts an error names.
const maxListed = 8

// Check reads the container at path, a directory or its model.coli, and compares everything in it with its checksums. It returns the
// bytes compared; the error names what is damaged. progress may be nil.
func Check(ctx context.Context, path string, threads int, progress func(done, total int64)) (int64, error) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		path = filepath.Join(path, container.Name)
	}
	f, err := container.Open(path)
	if err != nil {
		return 0, err
	}
	r, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	units := unitsOf(f)
	var total, done int64
	for _, u := range units {
		total += u.size
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var bad []error
	next := make(chan unit)
	for range workers(threads) {
		wg.Go(func() {
			for u := range next {
				sum, err := sumOf(r, u.offset, u.size)
				if err == nil && sum != *u.sum {
					err = fmt.Errorf("the checksum is %08x, its bytes give %08x", *u.sum, sum)
				}
				mu.Lock()
				if err != nil {
					bad = append(bad, fmt.Errorf("%s: %s: %d bytes at %d: %w", path, u.name, u.size, u.offset, err))
				}
				done += u.size
				if progress != nil {
					progress(done, total)
				}
				mu.Unlock()
			}
		})
	}
	for _, u := range units {
		if ctx.Err() != nil {
			break
		}
		next <- u
	}
	close(next)
	wg.Wait()
	if n := len(bad); n > maxListed {
		bad = append(bad[:maxListed], fmt.Errorf("%s: %d more parts are damaged", path, n-maxListed))
	}
	if bad != nil {
		bad = append(bad, fmt.Errorf("%s: copy the file again, or convert the model again", path))
	}
	return done, errors.Join(append(bad, ctx.Err())...)
}

// unitsOf lists what has a checksum.
func unitsOf(f *container.File) []unit {
	var out []unit
	for i := range f.Dense {
		t := &f.Dense[i]
		out = append(out, unit{name: fmt.Sprintf("tensor %q", t.Name), offset: t.Offset, size: t.Size, sum: &t.Sum})
	}
	for i := range f.Layers {
		l := &f.Layers[i]
		for e := range l.Sums {
			name := fmt.Sprintf("expert %d of layer %d", e, l.Index)
			out = append(out, unit{name: name, offset: l.Record(e), size: l.RecordSize(), sum: &l.Sums[e]})
		}
	}
	return out
}

// sumOf reads a range and returns its checksum; io.ErrUnexpectedEOF where the file is shorter.
func sumOf(r io.ReaderAt, offset, size int64) (sum uint32, err error) {
	buf := make([]byte, min(size, batch))
	for at := int64(0); at < size; {
		n, err := r.ReadAt(buf[:min(size-at, batch)], offset+at)
		sum = container.Sum(sum, buf[:n])
		if at += int64(n); err != nil && at < size {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
	}
	return sum, nil
}
