// Package device is a Vulkan device that computes: choosing it, its memory, its pipelines, and frames, which are lists of dispatches that
// are recorded once and submitted as often as they are needed. Shaders see memory by address (buffer device addresses) and get their
// parameters as push constants; there are no descriptors.
//
// What is computed belongs to packages shaders and ops/gpu. The calls of Vulkan are in package vk beneath; no other package makes any.
package device

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coli-moe/coli/device/internal/vk"
	"github.com/coli-moe/coli/messages"
)

// What goes wrong with a device. Errors wrap one of these and say what to try.
var (
	ErrNoLoader = vk.ErrNoLoader                            // Vulkan is not installed
	ErrNoDevice = errors.New("no Vulkan device")            // there is none, or none that was asked for, or it cannot run coli
	ErrNoMatch  = fmt.Errorf("%w", ErrNoDevice)             // an ErrNoDevice: there are devices, but Select means none of them
	ErrLost     = errors.New("the Vulkan device is lost")   // it failed, or a wait ran out; nothing works any more but Free and Close
	ErrNoMemory = errors.New("not enough device memory")    // an allocation failed or went past the cap
	errClosed   = errors.New("the Vulkan device is closed") // used after Close
)

// Options say which device to open, and how.
type Options struct {
	// Select is the index of a device in List's order, or a part of its name, whatever the case. Empty is the first that is no CPU.
	Select string

	Validation bool              // with the Khronos validation layer, synchronization checks included; an error if it is not installed
	Message    func(text string) // gets the layer's warnings and errors about any device of the process that has it, on any goroutine

	Profile  bool          // take the time of every dispatch (Frame.Times)
	MaxWait  time.Duration // how long a wait may take before the device counts as lost; 0 for 10 s, or 2 min on a CPU device
	CacheDir string        // directory of the pipeline cache, made if it is not there; empty for none

	// Spin is how long a wait looks at the device before it parks. 0 is 2 ms, less than 0 not at all, which is also what 0 is on a CPU device,
	// whose work needs the processor, and on a machine with one.
	Spin time.Duration

	// Limits that make a device look smaller than it is, in bytes; 0 for none. A user sets them with COLI_VK_CAP_MB and COLI_VK_WINDOW_MB.
	MemoryCap int64 // most that buffers may hold of the device's memory
	Window    int64 // most of the device's memory that the host can write to

	Faults *Faults // failures to inject; nil for those of COLI_VK_FAULT
}

// The default of Options.MaxWait. Frames are cut so that they stay far below the seconds after which drivers reset a device.
const (
	maxWaitGPU = 10 * time.Second
	maxWaitCPU = 2 * time.Minute
)

// Device is an open device. Its methods are safe for concurrent use; a Frame belongs to one goroutine at a time.
type Device struct {
	info     Info
	opts     Options
	instance *instance
	physical vk.PhysicalDevice
	vk       *vk.Device
	queue    vk.Queue
	family   uint32
	timeline vk.Semaphore
	clock    clock

	memory    memory
	transfers transfers
	pipelines pipelines
	faults    faults

	submitMu sync.Mutex
	last     uint64                           // the timeline's point of the last submission; under submitMu
	reached  atomic.Uint64                    // the timeline has passed this point
	actor    atomic.Pointer[messages.Address] // the queue's; nil for none

	framesMu sync.Mutex
	frames   map[*Frame]struct{} // those with memory of Vulkan's

	lost   atomic.Pointer[error]
	closed atomic.Bool

	endMessages func() // to Options.Message
}

// Open opens a device.
func Open(o Options) (*Device, error) {
	end := o.listen()
	inst, err := openInstance(o.Validation)
	if err != nil {
		end()
		return nil, err
	}
	d, err := inst.open(o)
	if err != nil {
		end()
		return nil, err
	}
	d.endMessages = end
	return d, nil
}

// listen begins to send messages to Options.Message.
func (o *Options) listen() (end func()) {
	if !o.Validation || o.Message == nil {
		return func() {}
	}
	return vk.Listen(o.Message)
}

// open opens the device that is asked for.
func (i *instance) open(o Options) (*Device, error) {
	all, err := i.list(&o)
	if err != nil {
		return nil, err
	}
	c, err := choose(all, o.Select)
	if err != nil {
		return nil, err
	}
	if c.Missing != "" {
		return nil, fmt.Errorf("%w: %s has no %s; a newer driver may have it", ErrNoDevice, c.Name, c.Missing)
	}
	logical, err := i.createDevice(c)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w; a newer driver or another --device may work", c.Name, err)
	}
	if o.MaxWait == 0 {
		o.MaxWait = maxWaitGPU
		if c.Type == CPU {
			o.MaxWait = maxWaitCPU
		}
	}
	if o.Spin == 0 && c.Type != CPU && runtime.GOMAXPROCS(0) > 1 {
		o.Spin = spinTime
	}
	d := &Device{
		info: c.Info, opts: o, instance: i, physical: c.physical, vk: logical, family: c.family, queue: logical.Queue(c.family), clock: c.clock,
		frames: map[*Frame]struct{}{},
	}
	if err := d.prepare(c); err != nil {
		d.destroyObjects()
		return nil, fmt.Errorf("opening %s: %w", c.Name, err)
	}
	return d, nil
}

func (d *Device) prepare(c *candidate) (err error) {
	if err := d.faults.init(d.opts.Faults); err != nil {
		return err
	}
	timeline := &vk.SemaphoreTypeCreateInfo{SemaphoreType: vk.SemaphoreTypeTimeline}
	semaphore := new(vk.SemaphoreCreateInfo)
	vk.Chain(semaphore, timeline)
	if d.timeline, err = d.vk.CreateSemaphore(semaphore); err != nil {
		return err
	}
	if err := d.memory.init(c); err != nil {
		return err
	}
	return d.pipelines.init(d, c)
}

// Inject sets failures that happen from now on, instead of those set before. For tests.
func (d *Device) Inject(f Faults) { d.faults.set(f) }

// Info describes the device.
func (d *Device) Info() Info { return d.info }

// usable says why the device cannot be used any more.
func (d *Device) usable() error {
	if err := d.lost.Load(); err != nil {
		return *err
	}
	if d.closed.Load() {
		return errClosed
	}
	return nil
}

// Lost is nil while the device works, and afterwards why it does not: the error every method returns, which wraps ErrLost.
func (d *Device) Lost() error {
	if err := d.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// lose makes the device lost, if it is not already, and returns why it is.
func (d *Device) lose(cause error) error {
	err := fmt.Errorf("%w: %s: %w", ErrLost, d.info.Name, cause)
	d.lost.CompareAndSwap(nil, &err)
	return *d.lost.Load()
}

// failed turns a loss reported by Vulkan into ErrLost, and lack of memory into ErrNoMemory.
func (d *Device) failed(err error) error {
	switch {
	case errors.Is(err, vk.ErrorDeviceLost):
		return d.lose(err)
	case errors.Is(err, vk.ErrorOutOfDeviceMemory), errors.Is(err, vk.ErrorOutOfHostMemory), errors.Is(err, vk.ErrorTooManyObjects),
		errors.Is(err, vk.ErrorMemoryMapFailed):
		return fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	return err
}

// Idle returns when everything submitted has run.
func (d *Device) Idle() error {
	if err := d.usable(); err != nil {
		return err
	}
	d.submitMu.Lock()
	last := d.last
	d.submitMu.Unlock()
	w := new(waiter)
	w.init(d)
	return w.wait(context.Background(), d, last)
}

// Close waits for what has been submitted, and frees the device with all its buffers, frames and pipelines; nothing else may use the
// device meanwhile. It does not hang: a device that does not come back is left to the end of the process.
func (d *Device) Close() error {
	if d.closed.Load() {
		return nil
	}
	defer d.endMessages()
	err := d.Idle()
	d.closed.Store(true)
	if err != nil {
		// Why has been said already. Nothing may be destroyed while the device may be using it.
		idle := make(chan struct{})
		go func() {
			defer close(idle)
			d.submitMu.Lock() // which a submission that hangs in the driver has: the call below must not run beside it
			defer d.submitMu.Unlock()
			d.vk.WaitIdle() //nolint:errcheck // a lost device is idle
		}()
		select {
		case <-idle:
		case <-time.After(closeWait):
			return fmt.Errorf("closing %s: %w", d.info.Name, err)
		}
	} else {
		d.pipelines.save(d)
	}
	d.destroyObjects()
	return nil
}

// closeWait is how long Close waits for a lost device.
const closeWait = 2 * time.Second

// destroyObjects ends the logical device with all that was made with it.
func (d *Device) destroyObjects() {
	for f := range d.frames {
		f.destroy()
	}
	d.pipelines.destroy(d)
	d.memory.destroy(d)
	if d.timeline != 0 {
		d.vk.DestroySemaphore(d.timeline)
	}
	d.vk.Destroy()
}

// List describes the devices of this machine in the order of their indices: discrete cards, then integrated, virtual and CPU devices.
// Where there is none the error wraps ErrNoLoader or ErrNoDevice and says what to try.
func List(o Options) ([]Info, error) {
	defer o.listen()()
	inst, err := openInstance(o.Validation)
	if err != nil {
		return nil, err
	}
	all, err := inst.list(&o)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errNoCard()
	}
	out := make([]Info, len(all))
	for i := range all {
		out[i] = all[i].Info
	}
	return out, nil
}
