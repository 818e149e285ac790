//go:build amd64 || arm64

package probe

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// BenchmarkRandom4K is what the probe costs a load of direct 4 KiB reads at random places: slices of it without and with the probe in
// turn, off on on off. overhead-% is how much longer the reads took with it, ± the standard error over pairs; bpf-ns/req is the time in
// the probe's programs, with the kernel's clock around each.
func BenchmarkRandom4K(b *testing.B) {
	const size = 256 << 20
	path := directFile(b, size)
	for _, readers := range []int{1, 4} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			l := load{path: path, size: size, reads: 8000 / readers, bytes: 4 << 10, readers: readers}
			l.run(b)
			slice := func() float64 {
				begin := time.Now()
				l.run(b)
				return float64(time.Since(begin)) / float64(l.reads*l.readers)
			}
			with := func(f func(*Probe) float64) float64 {
				p := measuring(b)
				defer p.Close()
				return f(p)
			}
			var off, on []float64
			for b.Loop() {
				a := slice()
				x := with(func(*Probe) float64 { return slice() })
				y := with(func(*Probe) float64 { return slice() })
				off, on = append(off, a, slice()), append(on, x, y)
			}
			var ratios, squares, offs, ons float64
			for i := range off {
				r := on[i]/off[i] - 1
				ratios, squares, offs, ons = ratios+r, squares+r*r, offs+off[i], ons+on[i]
			}
			n := float64(len(off))
			mean := ratios / n
			b.ReportMetric(offs/n, "off-ns/read")
			b.ReportMetric(ons/n, "on-ns/read")
			b.ReportMetric(100*mean, "overhead-%")
			b.ReportMetric(100*math.Sqrt(max(squares/n-mean*mean, 0)/(n-1)), "±%")
			b.ReportMetric(with(func(p *Probe) float64 { return inPrograms(b, p, &l) }), "bpf-ns/req")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// inPrograms returns the nanoseconds that the programs run for a request.
func inPrograms(b *testing.B, p *Probe, l *load) float64 {
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		need(b, "%v", err)
	}
	defer stats.Close()
	l.run(b)
	var sum float64
	for _, program := range p.tracing.programs {
		s, err := program.Stats()
		if err != nil {
			b.Fatal(err)
		}
		sum += float64(s.Runtime)
	}
	reads, err := p.tracing.programs[len(p.tracing.programs)-1].Stats()
	if err != nil {
		b.Fatal(err)
	}
	return sum / float64(reads.RunCount)
}

func BenchmarkRead(b *testing.B) {
	p := measuring(b)
	l := load{path: directFile(b, 4<<20), size: 4 << 20, reads: 4, bytes: 1 << 20, readers: 1}
	l.run(b)
	s := snapshot(b, p)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Read(s); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	p, err := Open(Options{Timed: true})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	for b.Loop() {
		p.Begin()
		p.Observe(4096, time.Millisecond, false)
	}
}
