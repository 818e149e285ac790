package device

import (
	"cmp"
	"errors"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/coli-moe/coli/device/internal/vk"
	"github.com/coli-moe/coli/messages"
)

// replace makes the driver's function with the field's name in vk.Device be f, until restore is called.
func replace(d *Device, field string, f any) (restore func()) { return replaceIn(d.vk, field, f) }

// replaceIn does so in a vk.Device or vk.Instance.
func replaceIn(procs any, field string, f any) (restore func()) {
	p := (*uintptr)(unsafe.Pointer(reflect.ValueOf(procs).Elem().FieldByName(field).UnsafeAddr()))
	old := *p
	*p = purego.NewCallback(f)
	return func() { *p = old }
}

// openUnchecked opens the test device without the validation layer, which the replaced functions would confuse.
func openUnchecked(t *testing.T) *Device {
	t.Helper()
	d, err := Open(Options{Select: cmp.Or(os.Getenv("COLI_TEST_DEVICE"), "llvmpipe"), Spin: -1})
	if err != nil {
		if os.Getenv("COLI_CI") == "1" {
			t.Fatalf("no device to test on: %v", err)
		}
		t.Skipf("no device to test on: %v", err)
	}
	return d
}

// TestALossThatTheDriverReports lets every function that can report the loss of a device do so, and vkDeviceWaitIdle after it, as NVIDIA's
// driver does. Nothing is waited for, and nothing is left.
func TestALossThatTheDriverReports(t *testing.T) {
	result := vk.ErrorDeviceLost // as the functions return it
	lost := uintptr(uint32(result))
	for field, call := range map[string]any{
		"queueSubmit":              func(_, _, _, _ uintptr) uintptr { return lost },
		"getSemaphoreCounterValue": func(_, _, _ uintptr) uintptr { return lost },
		"waitSemaphores":           func(_, _, _ uintptr) uintptr { return lost },
	} {
		t.Run(field, func(t *testing.T) {
			d := openUnchecked(t)
			b, err := d.Alloc(DeviceOnly, 1<<20, "numbers")
			if err != nil {
				t.Fatal(err)
			}
			copying := func() *Frame {
				f := d.NewFrame()
				f.Copy(b, 0, b, 1<<19, 1<<18)
				return f
			}
			pending, failing := copying(), copying()
			if err := pending.End(); err != nil {
				t.Fatal(err)
			}
			if _, err := pending.Submit(); err != nil {
				t.Fatal(err)
			}
			idle := d.vk.WaitIdle // of the driver
			restore := replace(d, field, call)
			if field == "waitSemaphores" { // only asked where the timeline has not come far enough
				replace(d, "getSemaphoreCounterValue", func(_, _, _ uintptr) uintptr { return 0 })
			}
			err = failing.End()
			if err == nil {
				err = failing.Run(t.Context())
			}
			if !errors.Is(err, ErrLost) || !errors.Is(err, vk.ErrorDeviceLost) || !errors.Is(d.Lost(), ErrLost) {
				t.Errorf("a frame of the lost device: %v", err)
			}
			restore()
			if err := idle(); err != nil { // so that what is destroyed is not in use
				t.Fatal(err)
			}
			waits := 0
			replace(d, "deviceWaitIdle", func(_ uintptr) uintptr { waits++; return lost })
			began := time.Now()
			pending.Free()
			failing.Free()
			failing.Free()
			b.Free()
			if err := d.Close(); err != nil || waits != 1 {
				t.Errorf("closing the lost device: %v, after %d calls of vkDeviceWaitIdle", err, waits)
			}
			if took := time.Since(began); took > closeWait/2 {
				t.Errorf("that took %v", took)
			}
			if pending.pool != 0 || failing.pool != 0 {
				t.Error("frames are left")
			}
		})
	}
}

// TestCloseDoesNotHang closes a device whose driver does not come back.
func TestCloseDoesNotHang(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for closeWait")
	}
	d := openUnchecked(t)
	hanging := make(chan struct{})
	replace(d, "deviceWaitIdle", func(_ uintptr) uintptr { <-hanging; return 0 })
	loss := d.lose(errors.New("no answer"))
	began := time.Now()
	if err := d.Close(); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), loss.Error()) {
		t.Errorf("closing: %v, want %v", err, loss)
	}
	if took := time.Since(began); took > 2*closeWait {
		t.Errorf("closing took %v", took)
	}
	close(hanging)
	d.destroyObjects()
}

// elsewhere is a queue's actor that handles each message on a goroutine of its own.
type elsewhere struct {
	queue *Queue
	sync.WaitGroup
}

func (e *elsewhere) Send(m messages.Message) { e.Go(func() { e.queue.Receive(m) }) }

// TestASubmissionThatHangs: a frame that hangs on its way into the driver is the driver's until it comes back: neither Free nor Close
// destroys anything of it, nor calls vkDeviceWaitIdle, which must not run beside a submission.
func TestASubmissionThatHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for closeWait")
	}
	d := openUnchecked(t)
	d.opts.MaxWait = 50 * time.Millisecond
	actor := &elsewhere{queue: d.Queue()}
	d.Attach(actor)
	hanging, idle := make(chan struct{}), make(chan struct{})
	replace(d, "queueSubmit", func(_, _, _, _ uintptr) uintptr { <-hanging; return 0 })
	replace(d, "deviceWaitIdle", func(_ uintptr) uintptr { close(idle); return 0 })
	f := d.NewFrame()
	if err := f.End(); err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context()); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "took no submission") {
		t.Errorf("the frame: %v", err)
	}
	f.Free()
	if err := d.Close(); !errors.Is(err, ErrLost) {
		t.Errorf("closing: %v", err)
	}
	select {
	case <-idle:
		t.Error("vkDeviceWaitIdle is called beside vkQueueSubmit")
	default:
	}
	if f.pool == 0 {
		t.Error("the frame is destroyed")
	}
	close(hanging)
	actor.Wait()
	<-idle
	d.destroyObjects()
	if f.pool != 0 {
		t.Error("the frame is left")
	}
}

// TestADriverWithoutAFunction: the logical device of a driver that lacks a function is destroyed.
func TestADriverWithoutAFunction(t *testing.T) {
	d := openUnchecked(t)
	defer d.Close() //nolint:errcheck // not what is tested
	vulkan := d.instance.Instance
	get := uintptr(reflect.ValueOf(vulkan).Elem().FieldByName("getDeviceProcAddr").Uint())
	destroyed, destroyDevice := 0, uintptr(0)
	destroy := purego.NewCallback(func(device, _ uintptr) uintptr {
		destroyed++
		purego.SyscallN(destroyDevice, device, 0)
		return 0
	})
	defer replaceIn(vulkan, "getDeviceProcAddr", func(device uintptr, name *byte) uintptr {
		p, _, _ := purego.SyscallN(get, device, uintptr(unsafe.Pointer(name)))
		switch cString(name) {
		case "vkQueueSubmit":
			return 0
		case "vkDestroyDevice":
			destroyDevice = p
			return destroy
		}
		return p
	})()
	if _, err := Open(d.opts); err == nil || !strings.Contains(err.Error(), "no vkQueueSubmit") || !strings.Contains(err.Error(), "newer") {
		t.Errorf("opening gives %v", err)
	}
	if destroyed != 1 {
		t.Errorf("vkDestroyDevice was called %d times", destroyed)
	}
}

func cString(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// TestAWaitNoticesALoss: what another call finds out ends the waits that are under way.
func TestAWaitNoticesALoss(t *testing.T) {
	d := openUnchecked(t)
	f := d.NewFrame()
	defer replace(d, "getSemaphoreCounterValue", func(_, _, _ uintptr) uintptr { return 0 })()
	parked := make(chan struct{}, 1)
	defer replace(d, "waitSemaphores", func(_, _, _ uintptr) uintptr {
		select {
		case parked <- struct{}{}:
		default:
		}
		time.Sleep(time.Millisecond)
		return uintptr(vk.Timeout)
	})()
	if err := f.End(); err != nil {
		t.Fatal(err)
	}
	p, err := f.Submit()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait(t.Context()) }()
	select {
	case <-parked:
	case err := <-ended:
		t.Fatalf("the wait has ended: %v", err)
	}
	loss := d.lose(errors.New("found elsewhere"))
	select {
	case err := <-ended:
		if !errors.Is(err, loss) {
			t.Errorf("the wait ends with %v, want %v", err, loss)
		}
	case <-time.After(5 * time.Second):
		t.Error("the wait goes on")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
