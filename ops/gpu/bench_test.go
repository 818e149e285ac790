package gpu

import (
	"testing"
	"unsafe"
)

// BenchmarkRecord is what the host does for a decode step of 3 layers before it submits: recording the ops, and finding their frame.
func BenchmarkRecord(b *testing.B) {
	m := newToy(b, toys["olmoe"])
	e, s := open(b, Options{}), m.state()
	for range 4 {
		e.Download(m.step(e, s, []int{1}, nil))
	}
	b.ReportAllocs()
	b.ReportMetric(float64(unsafe.Sizeof(node{})), "B/node")
	for b.Loop() {
		t := m.step(e, s, []int{1}, nil)
		e.add(node{op: opDownload, x: e.aux(t).operand, host: e.from(&e.stage, 4*77).at(), layer: -1})
		if e.find() == nil {
			b.Fatal("the list is not recorded")
		}
		for _, t := range e.tables[:e.tabled] {
			t.forget()
		}
		s.at[0]--
	}
}
