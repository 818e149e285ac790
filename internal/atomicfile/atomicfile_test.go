package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func emit(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// names lists a folder.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, " ")
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, text := range []string{"old", "new"} {
		if err := Write(path, 0o640, emit(text)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if data, _ := os.ReadFile(path); string(data) != text || info.Mode() != 0o640 || names(t, dir) != "file" {
			t.Errorf("the folder has %q, the file %q, mode %v", names(t, dir), data, info.Mode())
		}
	}
}

func TestWriteFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("old"), 0o600), os.Symlink("file", link)); err != nil {
		t.Fatal(err)
	}
	if err := Write(link, 0o600, emit("new")); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(file); string(data) != "new" {
		t.Errorf("behind the link is %q", data)
	}
	if to, err := os.Readlink(link); err != nil || to != "file" {
		t.Errorf("the link leads to %q, error %v", to, err)
	}
}

// A failure leaves the old file and nothing else; its error names the file that was asked for.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := errors.New("other")
	for _, tt := range []struct {
		path string
		emit error
		want error
	}{
		{path, &fs.PathError{Op: "write", Path: "temporary", Err: syscall.ENOSPC}, syscall.ENOSPC},
		{filepath.Join(dir, "none", "file"), nil, fs.ErrNotExist},
		{dir, nil, errDirectory},
	} {
		err := Write(tt.path, 0o600, func(io.Writer) error { return tt.emit })
		if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.path) {
			t.Errorf("%s: error %v, want one of %v", filepath.Base(tt.path), err, tt.want)
		}
	}
	if err := Write(path, 0o600, func(io.Writer) error { return other }); err != other {
		t.Errorf("emit's own error arrives as %v", err)
	}
	if data, _ := os.ReadFile(path); string(data) != "old" || names(t, dir) != "file" {
		t.Errorf("the folder has %q, the file %q", names(t, dir), data)
	}
}

// What is no file keeps its name: a socket stands for the devices here, which a test cannot make.
func TestWriteKeepsDevices(t *testing.T) {
	dir, err := os.MkdirTemp("", "") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path, link := filepath.Join(dir, "socket"), filepath.Join(dir, "link")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Skipf("no socket to stand for a device: %v", err)
	}
	defer l.Close()
	if err := os.Symlink("socket", link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, link} {
		if err := Write(p, 0o600, emit("new")); !errors.Is(err, errNotRegular) {
			t.Errorf("%s: error %v", filepath.Base(p), err)
		}
		if info, err := os.Stat(p); err != nil || info.Mode().IsRegular() {
			t.Errorf("%s: mode %v, error %v", filepath.Base(p), info.Mode(), err)
		}
	}
}
