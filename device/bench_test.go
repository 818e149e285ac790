package device_test

import (
	"cmp"
	"os"
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

// BenchmarkFrame is the time of submitting one small dispatch and waiting for it, of recording one of many with a barrier, and of running
// one of many, each after a barrier or without. Choose the device with COLI_TEST_DEVICE.
func BenchmarkFrame(b *testing.B) {
	for _, bb := range []struct {
		name  string
		spin  time.Duration
		actor bool
	}{
		{"parking", -1, false},
		{"spinning", 2 * time.Millisecond, false},
		{"spinning, through the actor", 2 * time.Millisecond, true},
	} {
		b.Run(bb.name, func(b *testing.B) {
			d := open(b, device.Options{Spin: bb.spin})
			f := counting(b, d, alloc(b, d, device.HostReads, 256))
			if bb.actor {
				r, _ := attach(b, d)
				defer r.Stop(b.Context()) //nolint:errcheck // nothing runs
				defer d.Attach(nil)
			}
			for b.Loop() {
				if err := f.Run(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
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
	for name, barrier := range map[string]bool{"dependent stages": true, "independent stages": false} {
		b.Run(name, func(b *testing.B) {
			const stages = 1000
			d := open(b, device.Options{})
			x := alloc(b, d, device.DeviceOnly, 256)
			p, push := pipeline(b, d, add, 1), addPush(x, x, 64)
			f := d.NewFrame()
			defer f.Free()
			for range stages {
				f.Dispatch(p, push, 1, 1, 1, "op")
				if barrier {
					f.Barrier()
				}
			}
			if err := f.End(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := f.Run(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/stages, "ns/stage")
		})
	}
}
