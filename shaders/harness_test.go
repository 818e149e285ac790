package shaders_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
	"github.com/coli-moe/coli/shaders"
	"github.com/coli-moe/coli/shaders/internal/spirv"
)

// gpu is a test's device with what it allocated there.
type gpu struct {
	tb       testing.TB
	d        *device.Device
	subgroup int
}

func openGPU(tb testing.TB) *gpu { return openGPUWith(tb, device.Options{}) }

func openGPUWith(tb testing.TB, o device.Options) *gpu {
	tb.Helper()
	d := devicetest.OpenWith(tb, o)
	return &gpu{tb, d, d.Info().Subgroup}
}

// bytesOf is the memory of x.
func bytesOf[T any](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(*new(T))))
}

// buffer is device memory with guard bytes behind it that no kernel may touch.
type buffer struct {
	*device.Buffer
	g *gpu
	n int
}

const (
	guard     = 256
	untouched = 0xff // guard bytes, and results before a kernel ran: float32 that are no numbers
)

// alloc returns n bytes of memory that no kernel has written.
func (g *gpu) alloc(n int) buffer {
	g.tb.Helper()
	b, err := g.d.Alloc(device.DeviceOnly, int64(n+guard), "test")
	if err != nil {
		g.tb.Fatal(err)
	}
	g.tb.Cleanup(b.Free)
	fill := make([]byte, n+guard)
	for i := range fill {
		fill[i] = untouched
	}
	if err := g.d.Write(b, 0, fill); err != nil {
		g.tb.Fatal(err)
	}
	return buffer{b, g, n}
}

// upload returns device memory with a copy of x.
func upload[T any](g *gpu, x []T) buffer {
	g.tb.Helper()
	b := g.alloc(len(bytesOf(x)))
	if err := g.d.Write(b.Buffer, 0, bytesOf(x)); err != nil {
		g.tb.Fatal(err)
	}
	return b
}

// fetch reads a buffer back and checks its guard.
func fetch[T any](b buffer) []T {
	b.g.tb.Helper()
	raw := make([]byte, b.n+guard)
	if err := b.g.d.Read(raw, b.Buffer, 0); err != nil {
		b.g.tb.Fatal(err)
	}
	for i, x := range raw[b.n:] {
		if x != untouched {
			b.g.tb.Fatalf("byte %d behind a buffer of %d bytes was written", i, b.n)
		}
	}
	out := make([]T, b.n/int(unsafe.Sizeof(*new(T))))
	copy(bytesOf(out), raw)
	return out
}

// pipeline compiles the module of a launch.
func (g *gpu) pipeline(l shaders.Launch) *device.Pipeline {
	g.tb.Helper()
	m := shaders.Get(l.Kernel)
	parsed, err := spirv.Parse(m.SPIRV)
	if err != nil {
		g.tb.Fatal(err)
	}
	for _, id := range parsed.Constants {
		if id >= len(l.Constants) {
			g.tb.Fatalf("%s has a specialisation constant %d, and its launch %d of them", l.Kernel, id, len(l.Constants))
		}
	}
	p, err := g.d.Pipeline(device.Module(m), l.Constants, g.subgroup)
	if err != nil {
		g.tb.Fatal(err)
	}
	return p
}

// dispatch dispatches a kernel and waits for it.
func dispatch[P any](g *gpu, push P, l shaders.Launch) {
	g.tb.Helper()
	f := g.d.NewFrame()
	defer f.Free()
	f.Dispatch(g.pipeline(l), shaders.Bytes(&push), l.X, l.Y, l.Z, l.Kernel)
	if err := f.End(); err != nil {
		g.tb.Fatal(err)
	}
	if err := f.Run(g.tb.Context()); err != nil {
		g.tb.Fatal(err)
	}
}

// normal returns n values of a standard normal distribution.
func normal(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// near checks got against want: no difference above tolerance times the largest value.
func near(tb testing.TB, what string, got, want []float32, tolerance float64) {
	tb.Helper()
	top := 0.0
	for _, w := range want {
		top = max(top, math.Abs(float64(w)))
	}
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - float64(w)); !(d <= tolerance*top) {
			tb.Fatalf("%s: value %d is %g, want %g (largest %g)", what, i, got[i], w, top)
		}
	}
}

// equal checks that got has want's bits.
func equal[T comparable](tb testing.TB, what string, got, want []T) {
	tb.Helper()
	if len(got) < len(want) {
		tb.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	a, b := bytesOf(got), bytesOf(want)
	for i := range want {
		size := len(b) / len(want)
		if string(a[i*size:(i+1)*size]) != string(b[i*size:(i+1)*size]) {
			tb.Fatalf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// addresses is a table of device addresses.
func addresses(g *gpu, of ...buffer) buffer {
	raw := make([]byte, 0, 8*len(of))
	for _, b := range of {
		raw = binary.LittleEndian.AppendUint64(raw, b.Addr)
	}
	return upload(g, raw)
}
