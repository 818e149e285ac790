package gpu

import (
	"testing"
	"time"
	"unsafe"
)

// BenchmarkRecord is what the host does for a decode step of 16 layers beside submitting and waiting. Before: the ops are recorded, their
// frame is found, the caches' addresses are written. After: the next list begins. Later, while the device is at it: routes are counted, the
// rows of the caches are handed over and copied. Cold: other memory was used in between, as while the host waits for a device.
func BenchmarkRecord(b *testing.B) {
	for _, c := range []struct {
		name string
		used []byte
	}{{"warm", nil}, {"cold", make([]byte, 64<<20)}} {
		b.Run(c.name, func(b *testing.B) { benchmarkRecord(b, c.used) })
	}
}

func benchmarkRecord(b *testing.B, used []byte) {
	o := toys["olmoe"]
	o.layers, o.clamp = 16, 0
	m := newToy(b, o)
	e, s := open(b, Options{}), m.state()
	for range 4 {
		e.Download(m.step(e, s, []int{1}, nil))
	}
	b.ReportAllocs()
	took := [3]time.Duration{time.Hour, time.Hour, time.Hour} // the least: the mean is also that of what else the machine does
	for b.Loop() {
		touch(used)
		start := time.Now()
		lap := func(i int) {
			now := time.Now()
			took[i], start = min(took[i], now.Sub(start)), now
		}
		m.step(e, s, []int{1}, nil)
		e.add(&node{op: opDownload, x: e.aux(e.tensors[e.used-1]).operand, host: e.from(&e.stage, 4*77).at(), layer: -1})
		e.copyOut()
		e.begin()
		f := e.find()
		if f == nil {
			b.Fatal("the list is not recorded")
		}
		lap(0)
		touch(used)
		start = time.Now()
		e.done(f)
		lap(1)
		e.Account()
		lap(2)
		s.at[0]--
	}
	for i, unit := range []string{"ns-before/op", "ns-after/op", "ns-later/op"} {
		b.ReportMetric(float64(took[i].Nanoseconds()), unit)
	}
	b.ReportMetric(float64(unsafe.Sizeof(node{})), "B/node")
}

// touch has memory take the place of what else the caches hold.
func touch(memory []byte) {
	for i := 0; i < len(memory); i += 64 {
		memory[i]++
	}
}
