package gpu

import (
	"testing"
	"time"
	"unsafe"
)

// BenchmarkRecord is what the host does for a decode step of 16 layers before it submits: the ops are recorded, their frame is found, the
// caches' addresses are written.
func BenchmarkRecord(b *testing.B) {
	o := toys["olmoe"]
	o.layers = 16
	m := newToy(b, o)
	e, s := open(b, Options{}), m.state()
	for range 4 {
		e.Download(m.step(e, s, []int{1}, nil))
	}
	b.ReportAllocs()
	b.ReportMetric(float64(unsafe.Sizeof(node{})), "B/node")
	least := time.Hour
	for b.Loop() {
		start := time.Now()
		m.step(e, s, []int{1}, nil)
		e.add(&node{op: opDownload, x: e.aux(e.tensors[e.used-1]).operand, host: e.from(&e.stage, 4*77).at(), layer: -1})
		e.copyOut()
		e.begin()
		f := e.find()
		if f == nil {
			b.Fatal("the list is not recorded")
		}
		least = min(least, time.Since(start)) // the mean is also that of what else the machine does
		e.last.next, e.last = f, f
		for _, t := range e.tables[:e.tabled] {
			t.forget()
		}
		s.at[0]--
	}
	b.ReportMetric(float64(least.Nanoseconds()), "ns/least")
}
