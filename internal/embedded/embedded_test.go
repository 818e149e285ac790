package embedded

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestSumIsThatOfTheFile(t *testing.T) {
	if got := sha256.Sum256([]byte(data)); hex.EncodeToString(got[:]) != sum {
		t.Fatalf("the embedded file has SHA-256 %x, the constant says %s", got, sum)
	}
}

// small is a store of a few megabytes, so that it takes several writes.
func small() store {
	s := newStore()
	s.data = strings.Repeat("once upon a time ", 200_000)
	h := sha256.Sum256([]byte(s.data))
	s.sum = hex.EncodeToString(h[:])
	return s
}

func noWarning(t *testing.T) func(string) {
	return func(line string) { t.Errorf("unexpected warning: %s", line) }
}

func checkFile(t *testing.T, s store, path string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != s.data {
		t.Fatalf("the file differs from the model (%d bytes, want %d)", len(got), len(s.data))
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("%d files beside the model, want none", len(entries)-1)
	}
}

func TestUnpacksOnce(t *testing.T) {
	s, dir := small(), t.TempDir()
	t.Setenv(CacheDirEnv, dir)
	path, err := s.path(t.Context(), noWarning(t))
	if err != nil {
		t.Fatal(err)
	}
	checkFile(t, s, path)
	s.write = func(io.Writer, string) (int, error) { return 0, errors.New("written twice") }
	if again, err := s.path(t.Context(), noWarning(t)); err != nil || again != path {
		t.Fatalf("second call: %q, %v; want %q", again, err, path)
	}
}

func TestDamagedCopyIsReplaced(t *testing.T) {
	s, dir := small(), t.TempDir()
	path := s.file(dir)
	if err := os.WriteFile(path, []byte(s.data[:100]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.unpack(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	checkFile(t, s, path)
}

func TestManyAtOnce(t *testing.T) {
	s, dir := small(), t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := s.unpack(t.Context(), dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	checkFile(t, s, s.file(dir))
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		fail func() error
		want error
		text string
	}{
		{"full disk", t.Context(), func() error { return &os.PathError{Op: "write", Path: "f", Err: syscall.ENOSPC} }, syscall.ENOSPC, CacheDirEnv},
		{"interrupted", ctx, func() error { cancel(); return nil }, context.Canceled, "unpacking"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, dir := small(), t.TempDir()
			calls := 0
			s.write = func(w io.Writer, p string) (int, error) {
				if calls++; calls > 1 {
					if err := c.fail(); err != nil {
						return 0, err
					}
				}
				return io.WriteString(w, p)
			}
			_, err := s.unpack(c.ctx, dir)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.text)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 0 {
				t.Errorf("%d files left behind", len(entries))
			}
		})
	}
}

func TestCorruptWriteIsNoticed(t *testing.T) {
	s, dir := small(), t.TempDir()
	s.write = func(w io.Writer, p string) (int, error) { return io.WriteString(w, strings.ToUpper(p)) }
	if _, err := s.unpack(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("got %v, want an error about the hash", err)
	}
}

// notDir returns a path that no directory can be made under, whatever the rights of the user.
func notDir(t *testing.T) string {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestUnusableCacheDirectory(t *testing.T) {
	for _, home := range []string{"", notDir(t)} {
		t.Setenv(CacheDirEnv, "")
		t.Setenv("HOME", home)
		t.Setenv("XDG_CACHE_HOME", home)
		t.Setenv("LocalAppData", home)
		t.Setenv("TMPDIR", t.TempDir())
		s := small()
		var warning string
		path, err := s.path(t.Context(), func(line string) { warning = line })
		if err != nil {
			t.Fatal(err)
		}
		checkFile(t, s, path)
		if !strings.HasPrefix(path, os.Getenv("TMPDIR")) || !strings.Contains(warning, "using "+filepath.Dir(path)) {
			t.Errorf("path %q, warning %q", path, warning)
		}
	}
}

func TestTemporaryCopyIsTrustedByHashOnly(t *testing.T) {
	t.Setenv(CacheDirEnv, "")
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("LocalAppData", "")
	t.Setenv("TMPDIR", t.TempDir())
	s := small()
	path, err := s.path(t.Context(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.ToUpper(s.data)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.path(t.Context(), func(string) {}); err != nil {
		t.Fatal(err)
	}
	checkFile(t, s, path)
}

func TestAskedForCacheDirectoryIsNotReplaced(t *testing.T) {
	t.Setenv(CacheDirEnv, notDir(t))
	path, err := small().path(t.Context(), noWarning(t))
	if err == nil {
		t.Fatalf("unpacked to %q although %s cannot be written to", path, CacheDirEnv)
	}
	if want := "set COLI_CACHE_DIR to a directory"; !strings.Contains(err.Error(), want) {
		t.Errorf("error %q does not say %q", err, want)
	}
}
