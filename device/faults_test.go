package device_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
)

// work uses everything a device has once: it allocates, compiles, uploads, computes and reads back, and frees what it has. Without a
// fault the answer is right.
func work(t *testing.T, d *device.Device) error {
	var all []*device.Buffer
	defer func() {
		for _, b := range all {
			b.Free()
		}
	}()
	for _, use := range []device.Use{device.DeviceOnly, device.HostWrites, device.HostReads, device.Weights} {
		b, err := d.Alloc(use, 4*64, fmt.Sprint(use))
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	x, out, y := all[0], all[2], all[3]
	if err := d.Write(x, 0, bytes.Repeat([]byte{1, 0, 0, 0}, 64)); err != nil {
		return err
	}
	p, err := d.Pipeline(add, []uint32{4}, 0)
	if err != nil {
		return err
	}
	f := d.NewFrame()
	defer f.Free()
	f.Dispatch(p, addPush(x, y, 64), 1, 1, 1, "first")
	f.Barrier()
	f.Dispatch(p, addPush(y, y, 64), 1, 1, 1, "second")
	f.Barrier()
	f.Copy(out, 0, y, 0, 256)
	if err := f.End(); err != nil {
		return err
	}
	for range 2 {
		if err := f.Run(t.Context()); err != nil {
			return err
		}
	}
	got := make([]byte, 256)
	if err := d.Read(got, y, 0); err != nil {
		return err
	}
	if want := bytes.Repeat([]byte{9, 0, 0, 0}, 64); !bytes.Equal(got, want) || !bytes.Equal(out.Bytes, want) {
		t.Errorf("the device gives %v and %v", got[:4], out.Bytes[:4])
	}
	return nil
}

func TestEveryFault(t *testing.T) {
	onCPU := devicetest.Open(t).Info().Type == device.CPU // skips without Vulkan
	before := runtime.NumGoroutine()
	for _, tt := range []struct {
		name   string
		fault  func(n int) device.Faults
		want   error
		actors []bool
		events int // in work; some failures are made up for
		least  int // are not; a card may have more kinds of memory to turn to, and fills less
	}{
		{"alloc", func(n int) device.Faults { return device.Faults{Alloc: n} }, device.ErrNoMemory, []bool{false}, 4, 4},
		{"block", func(n int) device.Faults { return device.Faults{Block: n} }, device.ErrNoMemory, []bool{false}, 6, 2},
		{"frame", func(n int) device.Faults { return device.Faults{Frame: n} }, device.ErrNoMemory, []bool{false}, 9, 3},
		{"submit", func(n int) device.Faults { return device.Faults{Submit: n} }, device.ErrNoMemory, []bool{false, true}, 9, 4},
		{"wait", func(n int) device.Faults { return device.Faults{Wait: n} }, device.ErrLost, []bool{false}, 9, 6},
		{"lost", func(n int) device.Faults { return device.Faults{Lost: n} }, device.ErrLost, []bool{false, true}, 10, 7},
	} {
		for _, actor := range tt.actors {
			failures := 0
			for n := range tt.events {
				failures += oneFault(t, fmt.Sprintf("%s=%d, through the actor: %v", tt.name, n+1, actor), tt.fault(n+1), tt.want, actor)
			}
			if failures < tt.least && (onCPU || tt.name != "block") {
				t.Errorf("%s: only %d failures were injected", tt.name, failures)
			}
		}
	}
	for range 100 { // goroutines end a little after what they did
		if runtime.NumGoroutine() <= before {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
	}
}

// oneFault runs work with a fault, and again without, and closes the device; it returns 1 if the fault made work fail, as want says.
func oneFault(t *testing.T, name string, faults device.Faults, want error, actor bool) (failures int) {
	d := devicetest.OpenWith(t, device.Options{Faults: &faults, Window: 1})
	if actor {
		r, _ := attach(t, d)
		defer func() {
			if err := r.Stop(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}()
	}
	err := work(t, d)
	if err != nil {
		failures = 1
		if !errors.Is(err, want) || !errors.Is(err, device.ErrFault) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	lost := errors.Is(err, device.ErrLost)
	if (d.Lost() != nil) != lost {
		t.Errorf("%s: after %v the device is lost: %v", name, err, d.Lost())
	}
	// What has failed once works the second time; a lost device stays lost.
	d.Inject(device.Faults{})
	if again := work(t, d); (again != nil) != lost || lost && !errors.Is(again, device.ErrLost) {
		t.Errorf("%s: the second time: %v", name, again)
	}
	if u := d.Usage(); len(u) > 0 {
		t.Errorf("%s: %v is not freed", name, u)
	}
	began := time.Now()
	if err := d.Close(); err != nil {
		t.Errorf("%s: closing: %v", name, err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("%s: closing took %v", name, took)
	}
	return failures
}

func TestALostDeviceAnswersAtOnce(t *testing.T) {
	d := devicetest.Open(t)
	b, y := alloc(t, d, device.HostReads, 256), alloc(t, d, device.DeviceOnly, 256)
	f := counting(t, d, b)
	running, err := f.Submit()
	if err != nil {
		t.Fatal(err)
	}
	other := counting(t, d, b)
	d.Inject(device.Faults{Lost: 1})
	if err := other.Run(t.Context()); !errors.Is(err, device.ErrLost) {
		t.Fatalf("the injected loss gives %v", err)
	}
	began := time.Now()
	_, allocErr := d.Alloc(device.DeviceOnly, 1, "more")
	_, pipelineErr := d.Pipeline(add, []uint32{9}, 0)
	for name, err := range map[string]error{
		"Alloc": allocErr, "Pipeline": pipelineErr, "Write": d.Write(y, 0, []byte{1}), "Read": d.Read([]byte{1}, y, 0), "Run": other.Run(t.Context()),
		"Wait": running.Wait(t.Context()), "Idle": d.Idle(), "End": d.NewFrame().End(), "Lost": d.Lost(),
	} {
		if !errors.Is(err, device.ErrLost) || !errors.Is(err, device.ErrFault) {
			t.Errorf("%s of a lost device: %v", name, err)
		}
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the calls took %v", took)
	}
}

func TestALongFrameLosesTheDevice(t *testing.T) {
	d := devicetest.OpenWith(t, device.Options{MaxWait: 20 * time.Millisecond})
	if d.Info().Type != device.CPU {
		t.Skip("a card is done too soon, or its driver resets it")
	}
	b := alloc(t, d, device.HostReads, 256)
	f := d.NewFrame()
	defer f.Free()
	f.Dispatch(pipeline(t, d, spin, 60_000), addPush(b, b, 64)[:8], 1500, 1, 1, "long")
	if err := f.End(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := f.Run(t.Context()); !errors.Is(err, device.ErrLost) {
		t.Errorf("a frame that takes too long: %v", err)
	}
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("that took %v", took)
	}
}

func TestFaultsOfTheEnvironment(t *testing.T) {
	d := devicetest.Open(t)
	if err := work(t, d); err != nil {
		t.Fatal(err)
	}
	t.Setenv(device.FaultEnv, "lost=2,alloc=9")
	if err := work(t, devicetest.Open(t)); !errors.Is(err, device.ErrLost) || !errors.Is(err, device.ErrFault) {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"lost", "lost=", "lost=0", "lost=-1", "gone=1", "lost=1,"} {
		t.Setenv(device.FaultEnv, bad)
		if _, err := device.Open(device.Options{Select: d.Info().Name}); err == nil {
			t.Errorf("%q is taken for a fault", bad)
		}
	}
}
