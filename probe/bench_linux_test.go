//go:build amd64 || arm64

package probe

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// BenchmarkRandom4K is what the probe costs a load of direct 4 KiB reads at random places: slices of it without and with the programs in
// turn, off on on off. overhead-% is how much longer a slice took with them than its neighbour without, the median over pairs, and ±% its
// standard error; bpf-ns/req is the time in the programs, with the kernel's clock around each.
func BenchmarkRandom4K(b *testing.B) {
	const size = 256 << 20
	path := directFile(b, size)
	for _, readers := range []int{1, 4} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			p := measuring(b)
			programs := p.tracing
			l := load{path: path, size: size, reads: 2000 / readers, bytes: 4 << 10, readers: readers}
			slice := func(on bool) float64 {
				f := programs.detach
				if on {
					f = programs.attach
				}
				if err := f(); err != nil {
					b.Fatal(err)
				}
				begin := time.Now()
				l.run(b)
				return float64(time.Since(begin)) / float64(l.reads*l.readers)
			}
			slice(false)
			var off, on, ratios []float64
			for b.Loop() {
				a, x := slice(false), slice(true)
				if err := programs.detach(); err != nil {
					b.Fatal(err)
				}
				y, c := slice(true), slice(false)
				off, on, ratios = append(off, a, c), append(on, x, y), append(ratios, x/a-1, y/c-1)
			}
			b.ReportMetric(median(off), "off-ns/read")
			b.ReportMetric(median(on), "on-ns/read")
			middle := median(ratios)
			b.ReportMetric(100*middle, "overhead-%")
			for i, r := range ratios {
				ratios[i] = math.Abs(r - middle)
			}
			// The median's standard error for a normal distribution: 1.4826 times the median deviation estimates σ, 1.2533 σ/√n is that of the median.
			b.ReportMetric(100*1.4826*1.2533*median(ratios)/math.Sqrt(float64(len(ratios))), "±%")
			b.ReportMetric(inPrograms(b, p, &l), "bpf-ns/req")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// inPrograms returns the nanoseconds that the programs run for a request.
func inPrograms(b *testing.B, p *Probe, l *load) float64 {
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		need(b, "%v", err)
	}
	defer stats.Close()
	if err := p.tracing.attach(); err != nil {
		b.Fatal(err)
	}
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
