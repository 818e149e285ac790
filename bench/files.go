package bench

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// File is what tells a file that an experiment reads from another.
type File struct {
	Name   string    `json:"name"` // without its folder
	Bytes  int64     `json:"bytes"`
	Time   time.Time `json:"time"`   // of the last change
	Header string    `json:"header"` // SHA-256 of the first 64 KiB, the first 16 digits
	path   string
}

// headerBytes of a file are hashed: the header of a checkpoint, with the names of its tensors, begins there.
const headerBytes = 64 << 10

// identify describes files; a folder stands for the files in it.
func identify(paths []string) ([]File, error) {
	var files []File
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		names := []string{path}
		if info.IsDir() {
			entries, err := os.ReadDir(path)
			if err != nil {
				return nil, err
			}
			names = nil
			for _, e := range entries {
				names = append(names, filepath.Join(path, e.Name()))
			}
		}
		for _, name := range names {
			f, err := identifyFile(name)
			if err != nil {
				return nil, err
			}
			if f != nil {
				files = append(files, *f)
			}
		}
	}
	return files, nil
}

// identifyFile returns nil for what is no regular file.
func identifyFile(path string) (f *File, err error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	hash := sha256.New()
	if _, err := io.CopyN(hash, file, headerBytes); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &File{
		Name: filepath.Base(path), Bytes: info.Size(), Time: info.ModTime().UTC(), Header: hex.EncodeToString(hash.Sum(nil))[:16], path: path,
	}, nil
}

// evict drops files from the page cache. It returns how many bytes stayed, or a note on why that is not known.
func evict(files []File) (stayed int64, notes []string) {
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = f.path
	}
	stayed, err := Evict(paths)
	if err != nil {
		return 0, []string{"not known to be cold: " + err.Error()}
	}
	return stayed, nil
}
