package device_test

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
)

// open opens the test device without the validation layer.
func open(b *testing.B, o device.Options) *device.Device {
	o.Select = cmp.Or(os.Getenv(devicetest.DeviceEnv), "llvmpipe")
	d, err := device.Open(o)
	if err != nil {
		devicetest.Skip(b, err)
	}
	b.Cleanup(func() {
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	})
	return d
}

// stages makes a frame of tiny dispatches with what barrier records between each two.
func stages(b *testing.B, d *device.Device, n int, barrier func(f *device.Frame)) *device.Frame {
	x := alloc(b, d, device.DeviceOnly, 256)
	p, push := pipeline(b, d, add, 1), addPush(x, x, 64)
	f := d.NewFrame()
	b.Cleanup(f.Free)
	for i := range n {
		if i > 0 {
			barrier(f)
		}
		f.Dispatch(p, push, 1, 1, 1, "op")
	}
	if err := f.End(); err != nil {
		b.Fatal(err)
	}
	return f
}

// BenchmarkFrame is the time of a frame, from Submit to the end of Wait: of one tiny dispatch, and of as many that depend on each other as
// a token's step has. It is told how it divides into submitting and waiting, and what the slowest frames take. Where the process is busy,
// a goroutine for each but one of its processors copies memory meanwhile, as the actor of the KV cache's copies does; MB/s is what that
// comes to. "look" is one look of a wait that spins. Choose the device with COLI_TEST_DEVICE, and the processors with -cpu.
func BenchmarkFrame(b *testing.B) {
	for _, n := range []int{1, 400} {
		for _, spin := range []time.Duration{-1, 2 * time.Millisecond} {
			for _, actor := range []bool{false, true} {
				for _, busy := range []bool{false, true} {
					name := fmt.Sprintf("dispatches=%d/spin=%v/actor=%v/busy=%v", n, max(spin, 0), actor, busy)
					b.Run(name, func(b *testing.B) {
						d := open(b, device.Options{Spin: spin})
						f := stages(b, d, n, (*device.Frame).Barrier)
						if actor {
							r, _ := attach(b, d)
							defer r.Stop(b.Context()) //nolint:errcheck // nothing runs
							defer d.Attach(nil)
						}
						if busy {
							defer copyMemory(b)()
						}
						latency(b, f)
					})
				}
			}
		}
	}
	b.Run("look", func(b *testing.B) {
		f := stages(b, open(b, device.Options{}), 1, nil)
		for b.Loop() {
			if err := f.Look(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("recording", func(b *testing.B) {
		d := open(b, device.Options{})
		x := alloc(b, d, device.HostReads, 256)
		p, push := pipeline(b, d, add, 1), addPush(x, x, 64)
		f := d.NewFrame()
		defer f.Free()
		for b.Loop() {
			f.Dispatch(p, push, 1, 1, 1, "op")
			f.Barrier()
		}
	})
}

// latency runs a frame.
func latency(b *testing.B, f *device.Frame) {
	var submitting time.Duration
	var each []time.Duration
	for b.Loop() {
		began := time.Now()
		p, err := f.Submit()
		if err != nil {
			b.Fatal(err)
		}
		submitting += time.Since(began)
		if err := p.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
		each = append(each, time.Since(began))
	}
	slices.Sort(each)
	b.ReportMetric(float64(submitting.Nanoseconds())/float64(len(each)), "submit-ns/op")
	b.ReportMetric(float64(each[len(each)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(each[len(each)*99/100].Nanoseconds()), "p99-ns")
}

// copyMemory copies memory on all processors but one until end is called, which reports how much.
func copyMemory(b *testing.B) (end func()) {
	var wg sync.WaitGroup
	var stop atomic.Bool
	var copied atomic.Int64
	for range runtime.GOMAXPROCS(0) - 1 {
		wg.Go(func() {
			src, dst := make([]byte, 1<<20), make([]byte, 1<<20)
			for !stop.Load() {
				copied.Add(int64(copy(dst, src)))
			}
		})
	}
	began := time.Now()
	return func() {
		stop.Store(true)
		b.ReportMetric(float64(copied.Load())/1e6/time.Since(began).Seconds(), "copied-MB/s")
		wg.Wait()
	}
}

// BenchmarkBarrier is the device's time for a tiny dispatch: behind no barrier, behind Frame's, which orders dispatches only where there
// are no copies, and behind one that orders copies, too.
func BenchmarkBarrier(b *testing.B) {
	for _, bb := range []struct {
		name    string
		barrier func(f *device.Frame)
	}{
		{"none", func(*device.Frame) {}},
		{"dispatches", (*device.Frame).Barrier},
		{"dispatches and copies", (*device.Frame).WideBarrier},
	} {
		b.Run(bb.name, func(b *testing.B) {
			const n = 1000
			f := stages(b, open(b, device.Options{}), n, bb.barrier)
			for b.Loop() {
				if err := f.Run(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/dispatch")
		})
	}
}
