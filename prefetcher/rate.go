package prefetcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"
)

const (
	maxRawBytes = 2 << 30 // RawRate reads at most
	// rawMemory is what RawRate reads into, since experts do not land in the processor's cache either: a virtual disk measured
	// delivered 2.9 GB/s into the same few megabytes over and over, but 1.9 GB/s into 40 MB or more.
	rawMemory = 128 << 20
)

// RawRate measures what the drive delivers: readers goroutines read requests of size bytes (rounded up to 4 KiB) at random places of
// the files with direct I/O, for at most d. The result is in bytes per second. It is an error if the file system refuses direct reads,
// since a rate through the page cache says nothing about the drive, or if no file has size bytes.
func RawRate(ctx context.Context, paths []string, size int64, readers int, d time.Duration) (float64, error) {
	size = max((size+blockSize-1)/blockSize*blockSize, blockSize)
	readers = min(max(readers, 1), MaxReaders)
	var files []File
	var ends []int64 // of the places a request can begin at, counted in blocks over all files
	var places int64
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	for _, path := range paths {
		at, err := statPath(path)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if at.Size < size {
			continue
		}
		f, answer, err := probeDirect(openFile, path, at.Size)
		if answer != yes {
			return 0, fmt.Errorf("measuring the drive: direct reads of %s: %w", filepath.Base(path), err)
		}
		places += (at.Size-size)/blockSize + 1
		files, ends = append(files, f), append(ends, places)
	}
	if len(files) == 0 {
		return 0, fmt.Errorf("measuring the drive: no file has %d bytes", size)
	}
	each := int(max(rawMemory/size/int64(readers), 1)) // slots of a reader
	mem, err := Arena(readers*each, size)
	if err != nil {
		return 0, err
	}
	defer mem.Close()
	for b := mem.Data; len(b) > 0; b = b[min(len(b), blockSize):] {
		b[0] = 1 // pages are taken and cleared before the clock starts
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var bytes int64
	var failed error
	start := time.Now()
	for i := range readers {
		wg.Go(func() {
			for turn := 0; ; turn++ {
				mu.Lock()
				stop := failed != nil || ctx.Err() != nil || bytes >= maxRawBytes || bytes > 0 && time.Since(start) >= d
				mu.Unlock()
				if stop {
					return
				}
				place, k := rand.Int64N(places), 0
				for place >= ends[k] {
					k++
				}
				if k > 0 {
					place -= ends[k-1]
				}
				n, err := files[k].ReadAt(mem.Slot(i*each + turn%each)[:size], place*blockSize)
				mu.Lock()
				bytes += int64(n)
				if err != nil && !interrupted(err) && !errors.Is(err, io.EOF) {
					failed = fmt.Errorf("measuring the drive: byte %d: %w", place*blockSize, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	if err := errors.Join(failed, ctx.Err()); err != nil {
		return 0, err
	}
	return float64(bytes) / took.Seconds(), nil
}
