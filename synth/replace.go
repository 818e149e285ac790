package synth

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// replaceFile puts what write emits, size bytes, in path: first into a temporary file beside it, which takes the name when it is
// complete and on disk. On failure the temporary file is removed and path is as it was.
func replaceFile(path string, size int64, write func(io.Writer) error) (err error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory; name a file in it", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fileError(path, size, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fileError(path, size, err)
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil { // CreateTemp's files are for the owner only
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// fileError names path instead of the temporary file, once, and says what helps against a full disk.
func fileError(path string, size int64, err error) error {
	var pathErr *fs.PathError
	var linkErr *os.LinkError
	switch {
	case errors.As(err, &pathErr):
		err = pathErr.Err
	case errors.As(err, &linkErr):
		err = linkErr.Err
	}
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("writing %s: %w; the file needs %.1f GB: free some space or choose another folder", path, err, float64(size)/1e9)
	}
	return fmt.Errorf("writing %s: %w", path, err)
}
