// Package sharedtest has what tests of several packages need: it finds test material that is too large to be committed, a folder named shared
// beside the checkout, and looks for goroutines that are left.
//
// It is imported by tests only.
package sharedtest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Dir returns the path of elem inside the shared folder. Where it is absent the test is skipped with that reason, or fails if COLI_CI
// is set, since CI has the material and must not skip.
func Dir(t testing.TB, elem ...string) string {
	t.Helper()
	path := filepath.Join(append([]string{root(), "..", "shared"}, elem...)...)
	if _, err := os.Stat(path); err != nil {
		msg := "no " + filepath.Join(append([]string{"..", "shared"}, elem...)...) + " beside the checkout"
		if os.Getenv("COLI_CI") != "" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	return path
}

// Testdata returns the path of elem inside the repository's own testdata folder.
func Testdata(elem ...string) string {
	return filepath.Join(append([]string{root(), "testdata"}, elem...)...)
}

func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}
