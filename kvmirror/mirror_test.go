package kvmirror_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/kvmirror"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/ops"
)

// memory is a device's memory in floats; buffers are found by address. Only the actor and a test that waits for it touch it.
type memory struct {
	buffers  map[uint64]*buffer
	next     uint64
	allocs   int
	failAt   int // the n-th allocation fails
	panics   bool
	writeErr error
	written  int // floats
}

type buffer struct {
	m    *memory
	at   uint64
	data []float32
}

func (m *memory) Alloc(_ string, bytes int64) (kvmirror.Buffer, error) {
	if m.panics {
		panic("the driver crashed")
	}
	if m.allocs++; m.allocs == m.failAt {
		return nil, errors.New("the driver has no memory")
	}
	b := &buffer{m, m.next, make([]float32, bytes/4)}
	m.buffers[b.at] = b
	m.next += uint64(bytes+255) / 256 * 256
	return b, nil
}

func (b *buffer) Address() uint64 { return b.at }

func (b *buffer) Write(off int64, rows []float32) error {
	b.m.written += copy(b.data[off/4:], rows)
	return b.m.writeErr
}

func (b *buffer) Free() { delete(b.m.buffers, b.at) }

// rows is the device's memory from an address on.
func (m *memory) rows(t *testing.T, addr uint64) []float32 {
	t.Helper()
	for at, b := range m.buffers {
		if addr >= at && addr < at+4*uint64(len(b.data)) {
			return b.data[(addr-at)/4:]
		}
	}
	t.Fatalf("nothing is at address %d", addr)
	return nil
}

func start(t *testing.T, cfg kvmirror.Config) (*memory, *kvmirror.Mirror) {
	m := &memory{buffers: map[uint64]*buffer{}, next: 4096}
	rt := actors.Start(actors.Options{})
	ref, err := rt.Spawn(actors.Spec{
		Name: "kv mirror", Resource: "device KV cache", Policy: actors.GiveUp,
		New: func() (actors.Receiver, error) { return kvmirror.NewActor(m, cfg), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Stop(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		if len(m.buffers) > 0 {
			t.Errorf("%d buffers were not freed", len(m.buffers))
		}
	})
	return m, kvmirror.NewMirror(ref, ref.Dead())
}

// device plays the device of one layer: it checks the rows that a step reads, writes the step's own to the copy and to staging memory.
type device struct {
	t      *testing.T
	memory *memory
	mirror *kvmirror.Mirror
	rng    *rand.Rand
	slot   int
	stage  [kvmirror.Slots][]float32
}

// step writes n rows of kv from position first on, and returns once they were handed over.
func (d *device) step(kv *ops.KV, first, n int) {
	d.t.Helper()
	needs := []kvmirror.Need{{KV: kv, First: first, End: first + n}}
	if err := d.mirror.Ready(needs); err != nil {
		d.t.Fatal(err)
	}
	k, v := d.memory.rows(d.t, needs[0].K), d.memory.rows(d.t, needs[0].V)
	kw, vw := kv.Spec.KWidth, kv.Spec.VWidth
	d.slot = (d.slot + 1) % kvmirror.Slots
	if err := d.mirror.Reuse(d.slot); err != nil {
		d.t.Fatal(err)
	}
	d.stage[d.slot] = slices.Grow(d.stage[d.slot][:0], n*(kw+vw))[:n*(kw+vw)]
	stage := d.stage[d.slot]
	for i := range stage {
		stage[i] = d.rng.Float32()
	}
	copy(k[first*kw:], stage[:n*kw])
	copy(v[first*vw:], stage[n*kw:])
	d.mirror.Wrote(d.slot, []kvmirror.Rows{{KV: kv, From: first, K: stage[:n*kw], V: stage[n*kw:]}})
}

// check compares the copy with the host's rows. A step without rows of its own says where it is.
func (d *device) check(kv *ops.KV) {
	d.t.Helper()
	needs := []kvmirror.Need{{KV: kv, First: kv.Len(), End: kv.Len()}}
	if err := errors.Join(d.mirror.Settle(), d.mirror.Ready(needs)); err != nil {
		d.t.Fatal(err)
	}
	if kv.Len() == 0 {
		return // it needs no copy
	}
	k, v := d.memory.rows(d.t, needs[0].K), d.memory.rows(d.t, needs[0].V)
	if !slices.Equal(k[:len(kv.K)], kv.K) || !slices.Equal(v[:len(kv.V)], kv.V) {
		d.t.Fatalf("the copy of %d rows differs from the host's", kv.Len())
	}
}

// TestAnyOrder: whatever the host and the device write, and however conversations grow, are cut and end, the device reads what the host
// has.
func TestAnyOrder(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	mem, mirror := start(t, kvmirror.Config{Context: 1500})
	d := &device{t: t, memory: mem, mirror: mirror, rng: rng}
	spec := ops.StateSpec{KWidth: 3, VWidth: 5}
	kvs := []*ops.KV{ops.NewKV(spec), ops.NewKV(spec), ops.NewKV(spec)}
	for range 2000 {
		at := rng.IntN(len(kvs))
		kv := kvs[at]
		switch n := rng.IntN(20); {
		case kv.Len() > 1300:
			kv.Truncate(rng.IntN(kv.Len()))
		case n < 14:
			d.step(kv, kv.Len(), 1+rng.IntN(3))
		case n < 15:
			d.step(kv, kv.Len(), 1+rng.IntN(150))
		case n < 17: // the host writes a row, at the end or over another
			if err := mirror.Settle(); err != nil {
				t.Fatal(err)
			}
			kv.Put(rng.IntN(kv.Len()+1), []float32{rng.Float32(), 1, 2}, []float32{rng.Float32(), 1, 2, 3, 4})
		case n < 18:
			kv.Truncate(rng.IntN(kv.Len() + 1))
		case n < 19:
			d.check(kv)
		default:
			if err := mirror.Release(kv); err != nil {
				t.Fatal(err)
			}
			if rng.IntN(2) == 0 {
				kvs[at] = ops.NewKV(spec)
			}
		}
	}
	for _, kv := range kvs {
		d.check(kv)
	}
	if err := mirror.Release(kvs...); err != nil || len(mem.buffers) > 0 {
		t.Errorf("%d buffers are left after all were released: %v", len(mem.buffers), err)
	}
}

func TestOnlyMissingRowsGoUp(t *testing.T) {
	mem, mirror := start(t, kvmirror.Config{})
	d := &device{t: t, memory: mem, mirror: mirror, rng: rand.New(rand.NewPCG(1, 2))}
	kv := ops.NewKV(ops.StateSpec{KWidth: 2, VWidth: 2})
	d.step(kv, 0, 100)
	for range 50 {
		d.step(kv, kv.Len(), 1)
	}
	if mem.written != 0 || mem.allocs != 1 {
		t.Errorf("%d floats went up in %d allocations, where the device had written every row", mem.written, mem.allocs)
	}
	if err := mirror.Settle(); err != nil {
		t.Fatal(err)
	}
	kv.Put(147, []float32{1, 2}, []float32{3, 4})
	d.step(kv, kv.Len(), 1)
	if want := 3 * 4; mem.written != want {
		t.Errorf("%d floats went up, not the %d of rows 147 to 149", mem.written, want)
	}
	d.check(kv)
}

func TestErrors(t *testing.T) {
	kv := func() *ops.KV { return ops.NewKV(ops.StateSpec{KWidth: 4, VWidth: 4}) }
	t.Run("no room in the budget", func(t *testing.T) {
		mem, mirror := start(t, kvmirror.Config{Budget: kvmirror.Bytes(4, 4, 256)})
		a, b := kv(), kv()
		if err := mirror.Ready([]kvmirror.Need{{KV: a, End: 1}, {KV: b, Layer: 1, End: 1}}); !errors.Is(err, kvmirror.ErrNoRoom) {
			t.Fatalf("two copies in the room of one: %v", err)
		}
		if err := mirror.Release(a, b); err != nil || len(mem.buffers) > 0 {
			t.Fatalf("%d buffers left: %v", len(mem.buffers), err)
		}
		if err := mirror.Ready([]kvmirror.Need{{KV: b, Layer: 1, End: 1}}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("no memory on the device", func(t *testing.T) {
		mem, mirror := start(t, kvmirror.Config{})
		mem.failAt = 2
		d := &device{t: t, memory: mem, mirror: mirror, rng: rand.New(rand.NewPCG(1, 2))}
		a := kv()
		d.step(a, 0, 256)
		if err := mirror.Ready([]kvmirror.Need{{KV: a, First: 256, End: 257}}); !errors.Is(err, kvmirror.ErrNoRoom) {
			t.Fatalf("growing without memory: %v", err)
		}
		a.Truncate(256)
		d.check(a) // the host has what the device wrote before, and brings it up again
	})
	t.Run("an upload fails", func(t *testing.T) {
		mem, mirror := start(t, kvmirror.Config{})
		mem.writeErr = errors.New("the device is lost")
		a := kv()
		a.Put(0, make([]float32, 4), make([]float32, 4))
		if err := mirror.Ready([]kvmirror.Need{{KV: a, First: 1, End: 2}}); !errors.Is(err, mem.writeErr) {
			t.Fatal(err)
		}
		if a.Mark != 0 {
			t.Errorf("%d rows count as uploaded", a.Mark)
		}
	})
	t.Run("a gap", func(t *testing.T) {
		_, mirror := start(t, kvmirror.Config{})
		if err := mirror.Ready([]kvmirror.Need{{KV: kv(), First: 5, End: 6}}); err == nil {
			t.Fatal("row 5 of an empty cache")
		}
	})
	t.Run("the actor is gone", func(t *testing.T) {
		mem, mirror := start(t, kvmirror.Config{})
		a := kv()
		if err := mirror.Ready([]kvmirror.Need{{KV: a, End: 1}}); err != nil {
			t.Fatal(err)
		}
		mem.panics = true
		needs := []kvmirror.Need{{KV: kv(), Layer: 1, End: 1}}
		done := make(chan error, 1)
		go func() {
			first := mirror.Ready(needs)
			row := make([]float32, 4)
			mirror.Wrote(0, []kvmirror.Rows{{KV: a, K: row, V: row}})
			released := mirror.Release(a)
			if strings.Contains(fmt.Sprint(released), "\n") {
				t.Errorf("the error is said twice: %v", released)
			}
			done <- errors.Join(first, mirror.Settle(), released)
		}()
		select {
		case err := <-done:
			if !errors.Is(err, messages.ErrStopped) {
				t.Errorf("%v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("somebody waits for an actor that has stopped")
		}
	})
}

func TestStepsDoNotAllocate(t *testing.T) {
	if sharedtest.Race {
		t.Skip("the race detector allocates")
	}
	mem, mirror := start(t, kvmirror.Config{Context: 4096})
	d := &device{t: t, memory: mem, mirror: mirror, rng: rand.New(rand.NewPCG(1, 2))}
	kv := ops.NewKV(ops.StateSpec{KWidth: 64, VWidth: 64})
	d.step(kv, 0, 2100) // room for all that follow
	for i := range d.stage {
		d.stage[i] = make([]float32, 128)
	}
	needs := []kvmirror.Need{{KV: kv}}
	rows := []kvmirror.Rows{{KV: kv}}
	n := testing.AllocsPerRun(500, func() {
		needs[0].First, needs[0].End = kv.Len(), kv.Len()+1
		d.slot = (d.slot + 1) % kvmirror.Slots
		if err := errors.Join(mirror.Ready(needs), mirror.Reuse(d.slot)); err != nil {
			t.Fatal(err)
		}
		rows[0].From, rows[0].K, rows[0].V = kv.Len()-1, d.stage[d.slot][:64], d.stage[d.slot][64:]
		mirror.Wrote(d.slot, rows)
	})
	if n > 0 {
		t.Errorf("%v allocations a step", n)
	}
	if err := mirror.Settle(); err != nil {
		t.Fatal(err)
	}
}

func ExampleConfig_Rows() {
	c := kvmirror.Config{Context: 3000}
	fmt.Println(c.Rows(1), c.Rows(256), c.Rows(257), c.Rows(2049), c.Rows(3001))
	// Output: 256 256 512 3000 4096
}

// TestALongPrompt: the rows of a long prompt, which several cores copy, are all there.
func TestALongPrompt(t *testing.T) {
	m, mirror := start(t, kvmirror.Config{Context: 1 << 20})
	d := &device{t: t, memory: m, mirror: mirror, rng: rand.New(rand.NewPCG(3, 4))}
	kv := ops.NewKV(ops.StateSpec{KWidth: 512, VWidth: 640})
	for first := range 2 {
		d.step(kv, 1500*first, 1500)
		d.check(kv)
	}
	if err := mirror.Release(kv); err != nil {
		t.Fatal(err)
	}
}
