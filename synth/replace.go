package synth

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"

	"github.com/coli-moe/coli/internal/atomicfile"
)

// replaceFile puts what write emits, size bytes, in path. On failure path is as it was, and the error names it and says what helps
// against a full disk.
func replaceFile(path string, size int64, write func(io.Writer) error) error {
	err := atomicfile.Write(path, 0o644, write)
	var named *fs.PathError
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w; the file needs %.1f GB: free some space or choose another folder", err, float64(size)/1e9)
	case err == nil || errors.As(err, &named):
		return err
	}
	return fmt.Errorf("write %s: %w", path, err)
}
