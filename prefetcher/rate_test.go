package prefetcher

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A shuffle names each number once, in another order for another seed.
func TestShuffle(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 4, 5, 16, 17, 1000} {
		var orders [2][]uint64
		for seed := range orders {
			s := newShuffle(n, uint64(seed))
			for i := range n {
				orders[seed] = append(orders[seed], s.at(i))
			}
			sorted := slices.Sorted(slices.Values(orders[seed]))
			for i, v := range sorted {
				if v != uint64(i) {
					t.Fatalf("of %d numbers: %v", n, sorted)
				}
			}
		}
		if n > 16 && (slices.Equal(orders[0], orders[1]) || slices.IsSorted(orders[0])) {
			t.Errorf("of %d numbers, for two seeds: %v", n, orders)
		}
	}
}

// rawFiles are three files, of which the second is too small for a request of 8 KiB; together they have 12 places.
func rawFiles(t *testing.T) (paths []string) {
	for _, size := range []int{9 * 8192, 8191, 3*8192 + 5000} {
		path := filepath.Join(t.TempDir(), "raw.bin")
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// In every way a run reads each place once, with as many readers as it is told, and tells of each read.
func TestRaw(t *testing.T) {
	for _, way := range []Way{Direct, Buffered, Mapped} {
		for _, readers := range []int{1, 3} {
			t.Run(way.String(), func(t *testing.T) {
				raw, err := OpenRaw(RawConfig{Files: rawFiles(t), Way: way, Size: 5000, Readers: readers})
				if way == Direct && refused(err) || errors.Is(err, errors.ErrUnsupported) {
					t.Skip(err)
				}
				if err != nil {
					t.Fatal(err)
				}
				defer raw.Close()
				var mu sync.Mutex
				begun, seen := 0, 0
				run := RawRun{
					Seed: 1, Time: time.Hour, Once: true,
					Begin: func() { mu.Lock(); begun++; mu.Unlock() },
					Seen: func(reader int, took time.Duration, bytes int64, failed bool) {
						mu.Lock()
						defer mu.Unlock()
						if seen++; reader >= readers || took <= 0 || bytes != 8192 || failed {
							t.Errorf("reader %d: %d bytes in %v", reader, bytes, took)
						}
					},
				}
				f, err := raw.Run(t.Context(), run)
				if err != nil || f.Reads != 12 || f.Bytes != 12*8192 || f.Took <= 0 || begun != 12 || seen != 12 {
					t.Errorf("%+v, %d begun, %d seen, %v", f, begun, seen, err)
				}
				for what, run := range map[string]RawRun{"bytes": {Time: time.Hour, Bytes: 20 * 8192}, "time": {Time: 2 * ms}} {
					f, err := raw.Run(t.Context(), run)
					if err != nil || f.Reads < 1 || run.Bytes > 0 && (f.Bytes < run.Bytes || f.Bytes > run.Bytes+int64(readers)*8192) {
						t.Errorf("bounded by %s: %+v, %v", what, f, err)
					}
				}
				stopped, cancel := context.WithCancel(t.Context())
				cancel()
				if _, err := raw.Run(stopped, RawRun{Time: time.Hour}); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
	}
}

// A file that has lost its end is an error that names file and place.
func TestRawOfTruncated(t *testing.T) {
	for _, way := range []Way{Buffered, Mapped} {
		t.Run(way.String(), func(t *testing.T) {
			path := rawFiles(t)[0]
			raw, err := OpenRaw(RawConfig{Files: []string{path}, Way: way, Size: 8192, Readers: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			if err := os.Truncate(path, 4096*3); err != nil {
				t.Fatal(err)
			}
			_, err = raw.Run(t.Context(), RawRun{Time: time.Hour, Once: true})
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			if err == nil || !strings.Contains(err.Error(), "raw.bin, byte ") {
				t.Error(err)
			}
		})
	}
}

func TestParseWay(t *testing.T) {
	for _, w := range []Way{Direct, Buffered, Mapped} {
		if got, err := ParseWay(strings.ToUpper(w.String())); got != w || err != nil {
			t.Error(got, err)
		}
	}
	if _, err := ParseWay("fast"); err == nil || !strings.Contains(err.Error(), "direct, buffered, mmap") {
		t.Error(err)
	}
}
