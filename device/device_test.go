package device_test

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/messages"
)

//go:generate glslc -O --target-env=vulkan1.2 -o testdata/add.spv testdata/add.comp
//go:generate glslc -O --target-env=vulkan1.2 -o testdata/spin.spv testdata/spin.comp

//go:embed testdata/add.spv
var addSPIRV []byte

//go:embed testdata/spin.spv
var spinSPIRV []byte

var (
	// y[i] = x[i] + constant 0 · workgroups, of 64 elements each.
	add = device.Module{Name: "add", SPIRV: addSPIRV, Push: 20}
	// Takes its time: constant 0 rounds, at most 65,535, which is where Lavapipe ends loops.
	spin = device.Module{Name: "spin", SPIRV: spinSPIRV, Push: 8}
)

func addPush(x, y *device.Buffer, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, x.Addr)
	b = binary.LittleEndian.AppendUint64(b, y.Addr)
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

func alloc(t testing.TB, d *device.Device, use device.Use, size int64) *device.Buffer {
	t.Helper()
	b, err := d.Alloc(use, size, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Free)
	return b
}

func pipeline(t testing.TB, d *device.Device, m device.Module, constants ...uint32) *device.Pipeline {
	t.Helper()
	p, err := d.Pipeline(m, constants, d.Info().Subgroup)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// counting makes a frame that adds 1 to each of 64 numbers in a buffer.
func counting(t testing.TB, d *device.Device, b *device.Buffer) *device.Frame {
	t.Helper()
	f := d.NewFrame()
	t.Cleanup(f.Free)
	f.Dispatch(pipeline(t, d, add, 1), addPush(b, b, 64), 1, 1, 1, "count")
	if err := f.End(); err != nil {
		t.Fatal(err)
	}
	return f
}

func number(b *device.Buffer) uint32 { return binary.LittleEndian.Uint32(b.Bytes) }

func TestFramesSeeWhatRanBefore(t *testing.T) {
	d := devicetest.Open(t)
	const n = 1000
	x, y := alloc(t, d, device.HostWrites, 4*n), alloc(t, d, device.DeviceOnly, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(x.Bytes[4*i:], uint32(i))
	}
	p := pipeline(t, d, add, 3)
	f := d.NewFrame()
	defer f.Free()
	f.Dispatch(p, addPush(x, y, n), 16, 1, 1, "first")
	f.Barrier()
	f.Dispatch(p, addPush(y, y, n), 16, 1, 1, "second")
	out := alloc(t, d, device.HostReads, 4*n)
	f.Barrier()
	f.Copy(out, 0, y, 0, 4*n)
	if err := f.End(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := f.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if got, want := binary.LittleEndian.Uint32(out.Bytes[4*i:]), uint32(i+2*3*16); got != want {
				t.Fatalf("element %d is %d, not %d", i, got, want)
			}
		}
		clear(out.Bytes)
	}
}

func TestSubmissionsRunInOrder(t *testing.T) {
	d := devicetest.Open(t)
	b := alloc(t, d, device.HostReads, 256)
	frames := make([]*device.Frame, 5)
	points := make([]device.Point, len(frames))
	for i := range frames {
		frames[i] = counting(t, d, b)
	}
	for round := range 20 {
		for i, f := range frames {
			var err error
			if points[i], err = f.Submit(); err != nil {
				t.Fatal(err)
			}
		}
		if err := points[len(points)-1].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := number(b), uint32(len(frames)*(round+1)); got != want {
			t.Fatalf("%d submissions have run, want %d", got, want)
		}
	}
}

func TestUsesOfMemory(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	for _, window := range []int64{0, 1 << 20} {
		d := devicetest.OpenWith(t, device.Options{Window: window})
		if d.Mapped() != (window == 0) {
			t.Errorf("with a window of %d bytes, weights are mapped: %v", window, d.Mapped())
		}
		for use, mapped := range map[device.Use]bool{
			device.DeviceOnly: false, device.HostWrites: true, device.HostReads: true, device.Weights: window == 0,
		} {
			const size = 21<<20 + 12 // more pieces than the staging buffer has
			b, err := d.Alloc(use, size, "test")
			if err != nil {
				t.Fatal(err)
			}
			if (b.Bytes != nil) != mapped || b.Addr%256 != 0 || b.Addr == 0 || b.Size != size {
				t.Errorf("%s: mapped %v, address %#x, %d bytes", use, b.Bytes != nil, b.Addr, b.Size)
			}
			got := make([]byte, size)
			if err := d.Read(got, b, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, make([]byte, size)) {
				t.Errorf("%s: fresh memory is not zero", use)
			}
			want := make([]byte, size)
			random.Read(want) //nolint:errcheck // it never fails
			if err := d.Write(b, 0, want); err != nil {
				t.Fatal(err)
			}
			if err := d.Write(b, 1000, want[:500]); err != nil {
				t.Fatal(err)
			}
			copy(want[1000:], want[:500])
			if err := d.Read(got, b, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s: what is read is not what was written", use)
			}
			if err := d.Read(got[:100], b, 900); err != nil || !bytes.Equal(got[:100], want[900:1000]) {
				t.Errorf("%s: a part that is read is not what was written (%v)", use, err)
			}
			b.Free()
			b.Free()
		}
	}
}

func TestWritesOfManyGoroutines(t *testing.T) {
	d := devicetest.Open(t)
	const goroutines, size = 8, 1 << 20
	b := alloc(t, d, device.DeviceOnly, goroutines*size)
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for round := range 3 {
				if err := d.Write(b, int64(i*size), bytes.Repeat([]byte{byte(i + round)}, size)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := make([]byte, goroutines*size)
	if err := d.Read(got, b, 0); err != nil {
		t.Fatal(err)
	}
	for i := range goroutines {
		if want := bytes.Repeat([]byte{byte(i + 2)}, size); !bytes.Equal(got[i*size:(i+1)*size], want) {
			t.Errorf("part %d is not what was written last", i)
		}
	}
}

func TestUsageAndLimits(t *testing.T) {
	d := devicetest.OpenWith(t, device.Options{MemoryCap: 1 << 20})
	if i := d.Info(); i.Memory != 1<<20 || i.Free != 1<<20 {
		t.Errorf("with a cap of 1 MiB the device has %d bytes, %d free", i.Memory, i.Free)
	}
	l := ledger.Device("test", 900_000, 900_000, nil)
	d.Account(l)
	var all []*device.Buffer
	for _, size := range []int64{1, 300_000, 100_000} {
		b, err := d.Alloc(device.DeviceOnly, size, fmt.Sprint("of ", size))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	want := []device.Usage{{Name: "of 300000", Bytes: 300_032}, {Name: "of 100000", Bytes: 100_096}, {Name: "of 1", Bytes: 256}}
	if got := d.Usage(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("usage is %v, want %v", got, want)
	}
	if got := l.Report(); len(got) != 3 || got[0].Name != "of 300000" || got[0].Bytes != 300_032 {
		t.Errorf("the ledger has %v", got)
	}
	if _, err := d.Alloc(device.DeviceOnly, 500_000, "too much"); !errors.Is(err, device.ErrNoMemory) || !errors.Is(err, ledger.ErrNoRoom) {
		t.Errorf("past the ledger: %v", err)
	}
	d.Account(nil)
	if _, err := d.Alloc(device.DeviceOnly, 700_000, "a lot"); !errors.Is(err, device.ErrNoMemory) || !strings.Contains(err.Error(), "a lot") {
		t.Errorf("past the cap: %v", err)
	}
	for _, size := range []int64{0, -1, 1 << 62} {
		if _, err := d.Alloc(device.DeviceOnly, size, "odd"); !errors.Is(err, device.ErrNoMemory) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	for _, b := range all {
		b.Free()
	}
	if got := d.Usage(); len(got) != 0 || len(l.Report()) != 0 {
		t.Errorf("after all is freed, usage is %v, the ledger has %v", got, l)
	}
	(*device.Buffer)(nil).Free()
}

func TestMistakesAreErrors(t *testing.T) {
	d := devicetest.Open(t)
	b, p := alloc(t, d, device.HostReads, 256), pipeline(t, d, add, 1)
	freed := alloc(t, d, device.HostReads, 256)
	freed.Free()
	frame := func(record func(f *device.Frame)) func() error {
		return func() error {
			f := d.NewFrame()
			defer f.Free()
			record(f)
			return f.End()
		}
	}
	compile := func(m device.Module, subgroup int) func() error {
		return func() error {
			_, err := d.Pipeline(m, nil, subgroup)
			return err
		}
	}
	for _, tt := range []struct {
		want string
		do   func() error
	}{
		{"0 bytes of push constants for shader add[1]/", frame(func(f *device.Frame) { f.Dispatch(p, nil, 1, 1, 1, "op") })},
		{"workgroups", frame(func(f *device.Frame) { f.Dispatch(p, addPush(b, b, 1), 1, 1<<31, 1, "op") })},
		{"200 bytes from 100 on", frame(func(f *device.Frame) { f.Copy(b, 100, b, 0, 200) })},
		{"-1 bytes", frame(func(f *device.Frame) { f.Copy(b, 0, b, 0, -1) })},
		{"is freed", frame(func(f *device.Frame) { f.Copy(b, 0, freed, 0, 1) })},
		{"is freed", func() error { return d.Write(freed, 0, []byte{1}) }},
		{"1 bytes from 256 on", func() error { return d.Write(b, 256, []byte{1}) }},
		{"from -1 on", func() error { return d.Read(make([]byte, 1), b, -1) }},
		{"no SPIR-V", compile(device.Module{Name: "text", SPIRV: []byte("this is not the code of a shader")}, 0)},
		{"no SPIR-V", compile(device.Module{Name: "nothing"}, 0)},
		{"132 bytes of push constants", compile(device.Module{Name: "large", SPIRV: addSPIRV, Push: 132}, 0)},
		{"not of 7", compile(device.Module{Name: "odd", SPIRV: addSPIRV, Push: 20}, 7)},
		{"without End", func() error {
			f := d.NewFrame()
			defer f.Free()
			_, err := f.Submit()
			return err
		}},
		{"has ended", func() error {
			f := counting(t, d, b)
			f.Barrier()
			_, err := f.Submit()
			return err
		}},
		{"the frame is freed", func() error {
			f := counting(t, d, b)
			f.Free()
			return f.Run(t.Context())
		}},
		{"not waited for", func() error {
			f := counting(t, d, b)
			first, err := f.Submit()
			if err != nil {
				return err
			}
			_, err = f.Submit()
			if err := first.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			return err
		}},
		{context.Canceled.Error(), func() error {
			f := counting(t, d, b)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return f.Run(ctx)
		}},
	} {
		if err := tt.do(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want an error with %q", err, tt.want)
		}
	}
	if err := d.Lost(); err != nil {
		t.Errorf("mistakes have lost the device: %v", err)
	}
}

func TestPipelinesAreCompiledOnce(t *testing.T) {
	d := devicetest.Open(t)
	a, b := pipeline(t, d, add, 1), pipeline(t, d, add, 1)
	if a != b {
		t.Error("the same module and constants were compiled twice")
	}
	if a == pipeline(t, d, add, 2) {
		t.Error("other constants are another pipeline")
	}
}

// opened is a device with a pipeline cache, after it has compiled and run one pipeline.
func opened(t *testing.T, dir string) {
	d := devicetest.OpenWith(t, device.Options{CacheDir: dir})
	b, err := d.Alloc(device.HostReads, 256, "numbers")
	if err != nil {
		t.Fatal(err)
	}
	if err := counting(t, d, b).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if number(b) != 1 {
		t.Errorf("the pipeline gives %d, not 1", number(b))
	}
	b.Free()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPipelineCacheIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	opened(t, dir)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the cache is in %v (%v), want one file", files, err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(files[0])
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(whole)
	damaged[len(damaged)-1] ^= 1
	for _, content := range [][]byte{whole, damaged, whole[:len(whole)-3], []byte("coli pipelines 1\n"), nil} {
		if err := os.WriteFile(files[0], content, 0o644); err != nil {
			t.Fatal(err)
		}
		opened(t, dir)
		after, err := os.ReadFile(files[0])
		if err != nil || !bytes.HasPrefix(after, []byte("coli pipelines 1\n")) || len(after) < int(before.Size())/2 {
			t.Errorf("the cache of %d bytes was left with %d (%v)", len(content), len(after), err)
		}
	}
}

func TestValidationMessagesArrive(t *testing.T) {
	var mu sync.Mutex
	var got []string
	if os.Getenv("COLI_TEST_VALIDATION") == "0" {
		t.Skip("COLI_TEST_VALIDATION=0")
	}
	d := devicetest.Open(t) // skips without Vulkan
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, err := device.Open(device.Options{Select: d.Info().Name, Validation: true, Message: func(text string) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, text)
	}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Alloc(device.DeviceOnly, 256, "numbers")
	if err != nil {
		t.Fatal(err)
	}
	f := d.NewFrame()
	f.Copy(b, 0, b, 128, 64)
	f.Copy(b, 0, b, 192, 64) // without a barrier after the first
	if err := f.End(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(strings.Join(got, "\n"), "SYNC-HAZARD-WRITE-AFTER-WRITE") {
		t.Errorf("two writes without order gave the messages %q", got)
	}
}

func TestTimesByLabel(t *testing.T) {
	d := devicetest.OpenWith(t, device.Options{Profile: true})
	b := alloc(t, d, device.HostReads, 256)
	p := pipeline(t, d, add, 1)
	f := d.NewFrame()
	defer f.Free()
	const many = 600 // more than a query pool has
	for range many {
		f.Dispatch(p, addPush(b, b, 64), 1, 1, 1, "count")
		f.Barrier()
	}
	f.Dispatch(pipeline(t, d, spin, 50_000), addPush(b, b, 64)[:8], 400, 1, 1, "long")
	f.Copy(b, 128, b, 0, 64)
	if err := f.End(); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		if err := f.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		times, err := f.Times()
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]int{}
		for _, x := range times {
			counts[x.Label] = x.Count
			if x.Time < 0 || x.Time > time.Minute {
				t.Errorf("%s took %v", x.Label, x.Time)
			}
		}
		if len(times) != 3 || counts["count"] != many || counts["long"] != 1 || counts["copy"] != 1 {
			t.Fatalf("the times are %v", times)
		}
		each := map[string]time.Duration{}
		for _, x := range times {
			each[x.Label] = x.Time / time.Duration(x.Count)
		}
		if each["long"] < 10*each["count"] {
			t.Errorf("round %d: one long dispatch is not ten short ones: %v", round, times)
		}
	}
}

// address counts what goes to an actor.
type address struct {
	messages.Address
	sent int
}

func (a *address) Send(m messages.Message) {
	a.sent++
	a.Address.Send(m)
}

// attach spawns the device's queue actor.
func attach(t testing.TB, d *device.Device) (*actors.Runtime, *address) {
	t.Helper()
	r := actors.Start(actors.Options{})
	ref, err := r.Spawn(actors.Spec{
		Name: "gpu queue", Resource: "the device's queue", Policy: actors.GiveUp,
		New: func() (actors.Receiver, error) { return d.Queue(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	a := &address{Address: ref}
	d.Attach(a)
	return r, a
}

func TestTheActorSubmits(t *testing.T) {
	d := devicetest.Open(t)
	b := alloc(t, d, device.HostReads, 256)
	f := counting(t, d, b)
	r, a := attach(t, d)
	before := a.sent
	for range 10 {
		if err := f.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.sent - before; got != 10 || number(b) != 10 {
		t.Errorf("%d messages and %d runs, want 10", got, number(b))
	}
	d.Attach(nil)
	if err := f.Run(t.Context()); err != nil || a.sent-before != 10 {
		t.Errorf("without the actor: %v, %d messages", err, a.sent-before)
	}
	d.Attach(a)
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context()); !errors.Is(err, device.ErrLost) || !errors.Is(err, messages.ErrStopped) {
		t.Errorf("after the actor has stopped: %v", err)
	}
}

func TestSubmittingAllocatesNothing(t *testing.T) {
	if sharedtest.Race {
		t.Skip("the race detector allocates")
	}
	d := devicetest.Open(t)
	b := alloc(t, d, device.HostReads, 256)
	f := counting(t, d, b)
	run := func() {
		if err := f.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(200, run); n != 0 {
		t.Errorf("submitting and waiting makes %v allocations", n)
	}
	r, _ := attach(t, d)
	if n := testing.AllocsPerRun(200, run); n != 0 {
		t.Errorf("submitting through the actor and waiting makes %v allocations", n)
	}
	d.Attach(nil)
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := number(b); got != 402 {
		t.Errorf("%d runs, want 402", got)
	}
}

func TestDevicesAreOpenedOftenAndAtOnce(t *testing.T) {
	name := devicetest.Open(t).Info().Name // skips without Vulkan
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 20 { // drivers that are loaded again each time give up after some forty times
				if all, err := device.List(device.Options{}); err != nil || len(all) == 0 {
					t.Errorf("the list is %v (%v)", all, err)
				}
				d, err := device.Open(device.Options{Select: name})
				if err != nil {
					t.Error(err)
					return
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestNoDriver(t *testing.T) {
	const inner = "COLI_TEST_NO_DRIVER" // in a process of its own, since one that has found drivers keeps them
	if os.Getenv(inner) == "1" {
		_, err := device.Open(device.Options{})
		if !errors.Is(err, device.ErrNoDevice) || !strings.Contains(err.Error(), "no driver") ||
			!strings.Contains(err.Error(), "VK_DRIVER_FILES") && !strings.Contains(err.Error(), "render") {
			t.Errorf("opening gives %v", err)
		}
		return
	}
	devicetest.Open(t) // skips without Vulkan
	none := filepath.Join(t.TempDir(), "none.json")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoDriver$", "-test.v")
	cmd.Env = append(os.Environ(), inner+"=1", "VK_DRIVER_FILES="+none, "VK_ICD_FILENAMES="+none)
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestNoDriver")) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestNoVulkan(t *testing.T) {
	devicetest.Open(t) // skips without Vulkan
	t.Run("no loader", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "libvulkan.so.1")
		t.Setenv("COLI_VK_LOADER", missing)
		for _, open := range []func() error{
			func() error { _, err := device.Open(device.Options{}); return err },
			func() error { _, err := device.List(device.Options{}); return err },
		} {
			err := open()
			if !errors.Is(err, device.ErrNoLoader) || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "libvulkan1") {
				t.Errorf("opening gives %v", err)
			}
		}
	})
	t.Run("only the CPU", func(t *testing.T) {
		all, err := device.List(device.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if all[0].Type != device.CPU {
			t.Skip("there is a card")
		}
		if _, err := device.Open(device.Options{}); !errors.Is(err, device.ErrNoDevice) || !strings.Contains(err.Error(), all[0].Name) {
			t.Errorf("opening gives %v", err)
		}
	})
}
