// Package plots draws the records of experiments: SVG for pages, PNG for what shows no SVG. Which pictures there are follows from what the
// records hold. The same records give the same bytes, so that pictures can be kept beside the records they were drawn from.
//
// What does not live here: tables, and what a figure means (package bench and its experiments).
package plots

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/internal/atomicfile"
)

// ErrNothing is returned for records without anything that can be drawn.
var ErrNothing = errors.New("the records hold nothing to draw")

// Write draws what records allow into directory dir, which is made if need be, and returns the files' paths in the order of the records'
// experiments, each picture as .svg and .png. A file is there whole or not at all; after an error those written before it are returned.
func Write(dir string, records []bench.Record) (files []string, err error) {
	all := figures(records)
	if len(all) == 0 {
		return nil, ErrNothing
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("no directory for pictures: %w", err)
	}
	for _, f := range all {
		svg, png, err := f.render()
		if err != nil {
			return files, err
		}
		for _, x := range []struct {
			suffix string
			data   []byte
		}{{".svg", svg}, {".png", png}} {
			path := filepath.Join(dir, f.file+x.suffix)
			if err := atomicfile.Write(path, 0o644, copyTo(x.data)); err != nil {
				return files, fmt.Errorf("picture not written: %w", err)
			}
			files = append(files, path)
		}
	}
	return files, nil
}
