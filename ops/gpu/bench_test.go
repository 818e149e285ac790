package gpu

import (
	"testing"
	"time"
	"unsafe"
)

// BenchmarkRecord is what the host does for a decode step of 16 layers beside submitting and waiting. Before: the ops are recorded, their
// frame is found, the caches' addresses are written. After: the rows of the caches are handed over and copied, routes are counted.
func BenchmarkRecord(b *testing.B) {
	o := toys["olmoe"]
	o.layers, o.clamp = 16, 0
	m := newToy(b, o)
	e, s := open(b, Options{}), m.state()
	for range 4 {
		e.Download(m.step(e, s, []int{1}, nil))
	}
	b.ReportAllocs()
	before, after := time.Hour, time.Hour // the least: the mean is also that of what else the machine does
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
		ran := time.Now()
		e.done(f)
		before, after = min(before, ran.Sub(start)), min(after, time.Since(ran))
		s.at[0]--
	}
	b.ReportMetric(float64(before.Nanoseconds()), "ns-before/op")
	b.ReportMetric(float64(after.Nanoseconds()), "ns-after/op")
	b.ReportMetric(float64(unsafe.Sizeof(node{})), "B/node")
}
