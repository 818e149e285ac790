package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A folder stands for the regular files in it; what tells a file from another is its size, its time and its header.
func TestIdentify(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", headerBytes)
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "a"), []byte(long+"tail"), 0o666), os.WriteFile(filepath.Join(dir, "b"), []byte(long+"other tail"), 0o666),
		os.WriteFile(filepath.Join(dir, "c"), nil, 0o666), os.Mkdir(filepath.Join(dir, "d"), 0o777),
	); err != nil {
		t.Fatal(err)
	}
	files, err := identify([]string{filepath.Join(dir, "c"), dir})
	if err != nil || len(files) != 4 {
		t.Fatalf("%+v, %v", files, err)
	}
	names := ""
	for _, f := range files {
		names += f.Name
	}
	if names != "cabc" {
		t.Errorf("files %s", names)
	}
	if a, b, c := files[1], files[2], files[3]; a.Header != b.Header || a.Header == c.Header || a.Bytes != headerBytes+4 || a.Time.IsZero() {
		t.Errorf("%+v\n%+v\n%+v", a, b, c)
	}
	if _, err := identify([]string{filepath.Join(dir, "none")}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Error(err)
	}
}
