package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/klauspost/cpuid/v2"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/disk"
	"github.com/coli-moe/coli/internal/embedded"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/format"
)

// How long rates are measured.
const (
	memoryTime = 250 * time.Millisecond
	driveTime  = 250 * time.Millisecond
)

// Machine is the view of the machine that this process runs on. model is the path of the model to look at, "" for none.
func Machine(model string) *System {
	s := &System{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Model: model,
		Features: features(), ISA: kernels.For(format.Q8_0).ISA, ISALimit: os.Getenv("COLI_CPU"),
		Threads: engine.DefaultThreads,
		MemoryRate: func(ctx context.Context, threads int) (float64, error) {
			return engine.MemoryRate(ctx, threads, memoryTime)
		},
		CacheDir: embedded.CacheDir,
		Writable: writable,
		Free:     func(dir string) (int64, bool) { return disk.Free(existing(dir)) },
		Files:    files,
		Drive: func(path string) (probe.Location, error) {
			if path != model { // a folder that is made when it is needed
				path = existing(path)
			}
			return probe.Drive(path)
		},
		DriveRate: func(ctx context.Context, files []string, size int64, readers int) (float64, error) {
			return prefetcher.RawRate(ctx, files, size, readers, driveTime)
		},
		Probe:   probe.Check,
		Devices: func() ([]device.Info, error) { return device.List(device.Options{}) },
	}
	s.fill()
	return s
}

// features are those of the processor that kernels look for.
func features() (out []string) {
	for _, f := range []cpuid.FeatureID{
		cpuid.AVX2, cpuid.FMA3, cpuid.F16C, cpuid.BMI2, cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.AVX512DQ, cpuid.AVX512VNNI,
	} {
		if cpuid.CPU.Supports(f) {
			out = append(out, f.String())
		}
	}
	return out
}

// existing is the first path on the way up that is there: what is not is made below it.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || filepath.Dir(path) == path {
			return path
		}
		path = filepath.Dir(path)
	}
}

// writable makes a file in the folder, or in the one that the folder would be made in, and removes it.
func writable(dir string) error {
	at := existing(dir)
	f, err := os.CreateTemp(at, ".coli-doctor-*")
	if err != nil {
		if e := (*fs.PathError)(nil); errors.As(err, &e) { // whose path is of a file that nobody asked for
			err = e.Err
		}
		if at != dir {
			return fmt.Errorf("%s cannot be made below %s: %w", dir, at, err)
		}
		return fmt.Errorf("no file can be made in %s: %w", dir, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// files are those of a model; for none, that of the built-in model, if it has been unpacked.
func files(model string) ([]string, error) {
	if model == "" {
		dir, err := embedded.CacheDir()
		if err != nil {
			return nil, err
		}
		return filepath.Glob(filepath.Join(dir, "models", "*.gguf"))
	}
	c, err := weights.Open(model)
	if err != nil {
		return nil, err
	}
	return c.Files(), c.Close()
}
