package disk

import (
	"path/filepath"
	"runtime"
	"testing"
)

func TestFree(t *testing.T) {
	n, ok := Free(t.TempDir())
	if told := runtime.GOOS == "linux" || runtime.GOOS == "darwin"; ok != told || ok && n <= 0 {
		t.Errorf("%d bytes, told: %v", n, ok)
	}
	if _, ok := Free(filepath.Join(t.TempDir(), "none")); ok {
		t.Error("room in a folder that is not there")
	}
}
