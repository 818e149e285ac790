package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const pageCacheBytes = 1 << 20

// written returns a file of 1 MiB on a file system with a disk below it. The test is skipped where there is none.
func written(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weights")
	var fs unix.Statfs_t
	if err := errors.Join(os.WriteFile(path, make([]byte, pageCacheBytes), 0o666), unix.Statfs(path, &fs)); err != nil {
		t.Fatal(err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		t.Skipf("the temporary folder is in memory or on an overlay (type %#x), whose pages the test cannot rely on", fs.Type)
	}
	return path
}

// inMemory maps a file and touches all of it until the end of the test.
func inMemory(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, pageCacheBytes, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m) }) //nolint:errcheck // it was mapped
}

// cachedIn returns how many bytes of a file are in the page cache.
func cachedIn(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return cached(f)
}

func TestEvict(t *testing.T) {
	path := written(t)
	if _, err := os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if n, err := cachedIn(path); err != nil || n != pageCacheBytes {
		t.Fatalf("%d bytes of a file that was just read are in the page cache, %v", n, err)
	}
	if left, err := Evict([]string{path}); err != nil || left != 0 {
		t.Errorf("%d bytes are left, %v", left, err)
	}
	if n, err := cachedIn(path); err != nil || n != 0 {
		t.Errorf("%d bytes are in the page cache, %v", n, err)
	}
	inMemory(t, path)
	if left, err := Evict([]string{path, path}); err != nil || left != 2*pageCacheBytes {
		t.Errorf("%d bytes of a mapped file are left, %v", left, err)
	}
	if _, err := Evict([]string{path + ".none"}); err == nil || !strings.Contains(err.Error(), "weights.none") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// mincore, for kernels without cachestat, counts the same.
func TestMincore(t *testing.T) {
	path := written(t)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Evict([]string{path}); err != nil {
		t.Fatal(err)
	}
	if n, err := mincore(f); err != nil || n != 0 {
		t.Errorf("evicted: %d bytes, %v", n, err)
	}
	inMemory(t, path)
	if n, err := mincore(f); err != nil || n != pageCacheBytes {
		t.Errorf("mapped: %d bytes, %v", n, err)
	}
	empty, err := os.Create(filepath.Join(t.TempDir(), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if n, err := mincore(empty); err != nil || n != 0 {
		t.Errorf("empty: %d bytes, %v", n, err)
	}
}

// Of another user's file nothing is said, rather than that all of it is in the page cache.
func TestCachedOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	path := written(t)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Evict([]string{path}); err != nil {
		t.Fatal(err)
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		const nobody = 65534
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 { // of this thread alone
			result <- errno
			return
		}
		n, err := cached(f)
		if err == nil && n > 0 { // kernels before 6.13 let everybody call cachestat
			err = fmt.Errorf("%d bytes are said to be in the page cache", n)
		}
		result <- err
	}()
	if err := <-result; err != nil && !errors.Is(err, errHidden) {
		t.Error(err)
	}
}

// An arm that is to be cold is, and says so if it is not.
func TestColdIsChecked(t *testing.T) {
	f := newFake(1, "A")
	f.files = []string{written(t)}
	f.then = func(line string) {
		if line == "A0" {
			inMemory(t, f.files[0])
		}
	}
	records, err := Execute(t.Context(), f, Options{Reps: 2, State: Cold})
	if err != nil {
		t.Fatal(err)
	}
	// The first repetition was cold, the file was mapped in it, so that the second was not.
	const want = "not cold: in 1 of 2 repetitions up to 1.0 MiB of the files stayed in the page cache"
	if got := records[0].Notes; len(got) != 2 || got[0] != "the same" || got[1] != want {
		t.Errorf("notes %q", got)
	}
}
