// Package atomicfile replaces a file so that it holds, after a crash or a full disk too, either all of what was written or what it held
// before. What is written is the callers' business: package synth's models, the command's conversations and history.
package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

var (
	errDirectory = errors.New("is a directory; name a file in it")
	// Renaming a file to the name of a device would take the device away from everyone.
	errNotRegular = errors.New("is a device or a pipe, which cannot be replaced; name a file")
)

// Write puts what emit writes in path: first into a temporary file beside it, which takes the name and the permissions perm when it is
// complete and on disk. Where path is a symbolic link, the file it leads to is replaced. On failure the temporary file is removed and
// path is as it was. Errors of the file system name path, not the temporary file; those of emit are returned as they are.
func Write(path string, perm fs.FileMode, emit func(io.Writer) error) (err error) {
	defer func() {
		var pathErr *fs.PathError
		var linkErr *os.LinkError
		switch {
		case errors.As(err, &pathErr):
			err = &fs.PathError{Op: "write", Path: path, Err: pathErr.Err}
		case errors.As(err, &linkErr):
			err = &fs.PathError{Op: "write", Path: path, Err: linkErr.Err}
		}
	}()
	target := path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		target = real
	}
	switch info, err := os.Stat(path); {
	case err != nil: // creating the temporary file says what is wrong, if it is more than that path does not exist yet
	case info.IsDir():
		return &fs.PathError{Op: "write", Path: path, Err: errDirectory}
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "write", Path: path, Err: errNotRegular}
	}
	f, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()           //nolint:errcheck // already failing
			os.Remove(f.Name()) //nolint:errcheck
		}
	}()
	if err := emit(f); err != nil {
		return err
	}
	if err := f.Chmod(perm); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), target)
}
