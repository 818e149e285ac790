package bench

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Evict drops the pages of files from the page cache and returns how many bytes of them are still there. Pages that another process, or a
// mapping of this one, holds stay; on a file system that lives in memory all do.
func Evict(paths []string) (left int64, err error) {
	for _, path := range paths {
		n, err := evictFile(path)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		left += n
	}
	return left, nil
}

func evictFile(path string) (left int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Sync(); err != nil { // pages that are not on the disk yet are kept
		return 0, err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return 0, fmt.Errorf("fadvise: %w", err)
	}
	return cached(f)
}

// errHidden is the error about a file of which the kernel does not tell everybody what is in the page cache.
var errHidden = errors.New("only its owner, and who may write to it, is told what of it is in the page cache")

// cached asks cachestat, which Linux has since 6.5, and else mincore.
func cached(f *os.File) (int64, error) {
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &stat, 0)
	if err == nil {
		return int64(stat.Cache) * int64(os.Getpagesize()), nil
	}
	switch {
	case !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM): // EPERM: a sandbox's filter that is older than the call, or another's file
		return 0, fmt.Errorf("cachestat: %w", err)
	case !told(f): // mincore would say that all is there
		return 0, errHidden
	}
	return mincore(f)
}

// told says whether the kernel tells this process what of a file is in memory: can_do_mincore of mm/mincore.c.
func told(f *os.File) bool {
	var st unix.Stat_t
	if os.Geteuid() == 0 || unix.Fstat(int(f.Fd()), &st) == nil && int(st.Uid) == os.Geteuid() {
		return true
	}
	return unix.Faccessat(unix.AT_FDCWD, f.Name(), unix.W_OK, unix.AT_EACCESS) == nil
}

// mincore counts the pages of a mapping that are in memory. A page of a huge page counts by itself.
func mincore(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return 0, err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("mmap: %w", err)
	}
	page := os.Getpagesize()
	in := make([]byte, (len(m)+page-1)/page)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&in[0])))
	if err = unix.Munmap(m); errno != 0 {
		err = errno
	}
	if err != nil {
		return 0, fmt.Errorf("mincore: %w", err)
	}
	var pages int64
	for _, b := range in {
		pages += int64(b & 1)
	}
	return pages * int64(page), nil
}
