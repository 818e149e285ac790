package shaders_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/device/devicetest"
	"github.com/coli-moe/coli/shaders"
	"github.com/coli-moe/coli/shaders/layout"
	"github.com/coli-moe/coli/weights/format"
)

// The benchmarks take the products of a decode step of OLMoE-1B-7B (hidden size 2048, 64 experts of 1024, 8 of them a row, 50304 tokens),
// each a stage of its own, as in the step: a barrier follows it, and its weights are in no cache. GB/s counts bytes of weights. Every
// benchmark has the launch that the package chooses, then others. COLI_TEST_DEVICE chooses the device.

const benchStages = 64 // of a frame

// openBench opens the device to measure: without the validation layer, which costs time.
func openBench(b *testing.B) *gpu {
	b.Helper()
	d, err := device.Open(device.Options{Select: os.Getenv(devicetest.DeviceEnv)})
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { d.Close() })
	return &gpu{b, d, d.Info().Subgroup}
}

// space is device memory of n bytes whose contents do not matter.
func (g *gpu) space(n int64) uint64 {
	g.tb.Helper()
	m, err := g.d.Alloc(device.DeviceOnly, n, "benchmark")
	if err != nil {
		g.tb.Fatal(err)
	}
	g.tb.Cleanup(m.Free)
	return m.Addr
}

// stages measures a launch with the push constants of each stage.
func stages[P any](b *testing.B, g *gpu, bytes int64, l shaders.Launch, push func(stage int) P) {
	measure(b, g, fmt.Sprint(l.Constants), bytes, func(g *gpu, f *device.Frame) func(stage int) {
		pipeline := g.pipeline(l)
		return func(stage int) {
			p := push(stage)
			f.Dispatch(pipeline, shaders.Bytes(&p), l.X, l.Y, l.Z, l.Kernel)
		}
	})
}

// measure measures a frame of stages: the function that prepare returns records one.
func measure(b *testing.B, g *gpu, name string, bytes int64, prepare func(g *gpu, f *device.Frame) (record func(stage int))) {
	b.Run(name, func(b *testing.B) {
		g := &gpu{b, g.d, g.subgroup}
		f := g.d.NewFrame()
		defer f.Free()
		record := prepare(g, f)
		for i := range benchStages {
			record(i)
			f.Barrier()
		}
		best := fastest(b, f)
		b.ReportMetric(float64(best.Nanoseconds())/benchStages/1e3, "µs/stage")
		b.ReportMetric(float64(bytes)*benchStages/float64(best.Nanoseconds()), "GB/s")
	})
}

// fastest ends a frame and returns the least time that it took from its submission to its end.
func fastest(b *testing.B, f *device.Frame) time.Duration {
	b.Helper()
	if err := f.End(); err != nil {
		b.Fatal(err)
	}
	best := time.Duration(1 << 62)
	for b.Loop() {
		start := time.Now()
		if err := f.Run(b.Context()); err != nil {
			b.Fatal(err)
		}
		best = min(best, time.Since(start))
	}
	return best
}

func BenchmarkGEMV(b *testing.B) {
	g := openBench(b)
	for _, tc := range []struct {
		name       string
		f          format.Format
		outs, cols int
		rows       int
	}{
		{"qkv", format.Q8_0, 6144, 2048, 1},
		{"q", format.Q8_0, 2048, 2048, 1},
		{"router", format.F32, 64, 2048, 1},
		{"head", format.Q8_0, 50304, 2048, 1},
		{"qkv", format.Q4_K, 6144, 2048, 1},
		{"qkv", format.Q6_K, 6144, 2048, 1},
		{"qkv", format.MXFP4, 6144, 2048, 1},
		{"qkv", format.BF16, 6144, 2048, 1},
		{"qkv", format.Q8_0, 6144, 2048, 4},
	} {
		b.Run(fmt.Sprintf("%s/%s/rows=%d", tc.name, tc.f, tc.rows), func(b *testing.B) {
			g := &gpu{b, g.d, g.subgroup}
			x := newGEMVBench(g, tc.f, tc.outs, tc.cols, tc.rows)
			stages(b, g, x.l.Bytes, shaders.GEMVLaunch(x.push(0), tc.f, g.d.Info().Features.IntegerDot, g.subgroup), x.push)
		})
	}
}

// As many workgroups as the rows of a product take, with other constants: threads, weight rows a subgroup, pieces at once; joined, the rows
// are those of a workgroup.
func cutAs(l shaders.Launch, outs, subgroup int, c [3]int, joined bool) shaders.Launch {
	perGroup := c[0] / subgroup * c[1]
	if joined {
		perGroup = c[1]
	}
	l.Constants = append([]uint32{uint32(c[0]), uint32(c[1]), uint32(c[2])}, l.Constants[3:]...)
	if strings.HasPrefix(l.Kernel, "gemv") {
		l.Constants[4] = 0
		if joined {
			l.Constants[4] = 1
		}
	}
	l.X = uint32((outs + perGroup - 1) / perGroup)
	return l
}

// warm are stages whose weights are in the device's cache.
func warm[P any](push func(int) P) func(int) P { return func(int) P { return push(0) } }

func BenchmarkDecode(b *testing.B) {
	g := openBench(b)
	dot := g.d.Info().Features.IntegerDot
	for _, tc := range []struct {
		name       string
		f          format.Format
		outs, cols int
	}{
		{"router", format.F32, 64, 2048},
		{"o", format.Q8_0, 2048, 2048},
		{"qkv", format.Q8_0, 6144, 2048},
		{"head", format.Q8_0, 50304, 2048},
	} {
		b.Run(tc.name, func(b *testing.B) {
			g := &gpu{b, g.d, g.subgroup}
			x := newGEMVBench(g, tc.f, tc.outs, tc.cols, 1)
			base := shaders.GEMVLaunch(x.push(0), tc.f, dot, g.subgroup)
			stages(b, g, x.l.Bytes, base, x.push)
			b.Run("warm", func(b *testing.B) { stages(b, g, x.l.Bytes, base, warm(x.push)) })
		})
	}
	for _, f := range []format.Format{format.Q4_K, format.Q8_0} {
		x := newExpertBench(b, g, f)
		b.Run("gate_up/"+f.String(), func(b *testing.B) {
			base := shaders.GateUpLaunch(x.gateUp(0), f, dot, g.subgroup)
			stages(b, g, topK*2*x.up.Bytes, base, x.gateUp)
			if c := [3]int{32 * g.subgroup, 1, 2}; c[0] <= g.d.Info().MaxInvocations {
				stages(b, g, topK*2*x.up.Bytes, cutAs(base, inter, g.subgroup, c, false), x.gateUp)
			}
			b.Run("warm", func(b *testing.B) { stages(b, g, topK*2*x.up.Bytes, base, warm(x.gateUp)) })
		})
		b.Run("down/"+f.String(), func(b *testing.B) {
			base := shaders.DownLaunch(x.down(0), f, dot, g.subgroup)
			stages(b, g, topK*x.low.Bytes, base, x.down)
			b.Run("warm", func(b *testing.B) { stages(b, g, topK*x.low.Bytes, base, warm(x.down)) })
		})
	}
}

// BenchmarkTailNorm takes a product that completes the residual and the norm behind it: as two stages, and as one.
func BenchmarkTailNorm(b *testing.B) {
	g := openBench(b)
	dot := g.d.Info().Features.IntegerDot
	for _, rows := range []int{1, 4, 8} {
		b.Run(fmt.Sprintf("o/rows=%d", rows), func(b *testing.B) {
			g := &gpu{b, g.d, g.subgroup}
			x := newGEMVBench(g, format.Q8_0, hidden, hidden, rows)
			n := newBenchNorm(g, rows, x.p.Y)
			x.p.Add = 1
			apart(b, g, x.l.Bytes, shaders.GEMVLaunch(x.push(0), format.Q8_0, dot, g.subgroup), n, x.push)
			x.p.TailNorm = n.tail
			base := shaders.GEMVLaunch(x.push(0), format.Q8_0, dot, g.subgroup)
			for _, c := range [][3]int{{128, 1, 4}, {256, 1, 4}, {256, 1, 2}, {256, 2, 2}} {
				stages(b, g, x.l.Bytes, cutAs(base, hidden, g.subgroup, c, false), x.push)
			}
		})
	}
	for _, f := range []format.Format{format.Q4_K, format.Q8_0} {
		b.Run("down/"+f.String(), func(b *testing.B) {
			g := &gpu{b, g.d, g.subgroup}
			x := newExpertBench(b, g, f)
			n := newBenchNorm(g, 1, x.y)
			apart(b, g, topK*x.low.Bytes, shaders.DownLaunch(x.down(0), f, dot, g.subgroup), n, x.down)
			x.tail = n.tail
			base := shaders.DownLaunch(x.down(0), f, dot, g.subgroup)
			for _, outs := range []int{1, 2, 4} {
				for unroll := 1; unroll <= int(base.Constants[2]); unroll *= 2 {
					stages(b, g, topK*x.low.Bytes, cutAs(base, hidden, g.subgroup, [3]int{topK * g.subgroup, outs, unroll}, true), x.down)
				}
			}
		})
	}
}

// benchNorm is a norm of rows, by itself and as a tail.
type benchNorm struct {
	push shaders.NormPush
	tail shaders.TailNorm
}

func newBenchNorm(g *gpu, rows int, x uint64) benchNorm {
	w, y, q, count := g.space(4*hidden), g.space(int64(4*rows*hidden)), g.space(int64(2*rows*hidden)), upload(g, make([]uint32, rows))
	d := uint32(rows * hidden)
	return benchNorm{
		shaders.NormPush{
			X: x, W: w, Y: y, XQ: q, XD: q + uint64(d), Rows: uint32(rows), Cols: hidden, Segment: hidden, Flags: shaders.NormOut | shaders.NormQ8,
		},
		shaders.TailNorm{NormW: w, NormY: y, NormQ: q, NormD: d, Count: count.Addr},
	}
}

// apart measures a product and a norm as two stages.
func apart[P any](b *testing.B, g *gpu, bytes int64, l shaders.Launch, n benchNorm, push func(stage int) P) {
	measure(b, g, "apart", bytes, func(g *gpu, f *device.Frame) func(stage int) {
		product := g.pipeline(l)
		nl := shaders.NormLaunch(n.push, g.subgroup)
		norm := g.pipeline(nl)
		return func(stage int) {
			p := push(stage)
			f.Dispatch(product, shaders.Bytes(&p), l.X, l.Y, l.Z, l.Kernel)
			f.Barrier()
			f.Dispatch(norm, shaders.Bytes(&n.push), nl.X, nl.Y, nl.Z, nl.Kernel)
		}
	})
}

// gemvBench is a product for few rows whose matrix has copies that stages take turns at.
type gemvBench struct {
	l      layout.Layout
	w      uint64
	copies int
	p      shaders.GEMVPush
}

func newGEMVBench(g *gpu, f format.Format, outs, cols, rows int) *gemvBench {
	l, _ := layout.For(f, outs, cols)
	copies := max(1, min(benchStages, 300<<20/int(l.Bytes)))
	return &gemvBench{l, g.space(int64(copies) * l.Bytes), copies, shaders.GEMVPush{
		X: g.space(int64(4 * rows * cols)), XD: g.space(int64(8 * rows * cols / 32)), Y: g.space(int64(4 * rows * outs)), Rows: uint32(rows),
	}}
}

func (x *gemvBench) push(stage int) shaders.GEMVPush {
	p := x.p
	p.SetMatrix(x.w+uint64(stage%x.copies)*uint64(x.l.Bytes), x.l)
	return p
}

// The experts of OLMoE.
const hidden, inter, experts, topK = 2048, 1024, 64, 8

// expertBench are the experts of two layers. Stages take turns at all of them, topK at a time.
type expertBench struct {
	up, low  layout.Layout
	tables   []uint64
	ids      []uint64
	x, xd, y uint64
	tail     shaders.TailNorm // of down
}

func newExpertBench(b *testing.B, g *gpu, f format.Format) *expertBench {
	b.Helper()
	e := &expertBench{tables: make([]uint64, 2), ids: make([]uint64, experts/topK)}
	e.up, _ = layout.For(f, inter, hidden)
	e.low, _ = layout.For(f, hidden, inter)
	for i := range e.tables {
		var table []uint64
		for range experts {
			table = append(table, g.space(e.up.Bytes), g.space(e.up.Bytes), g.space(e.low.Bytes))
		}
		e.tables[i] = upload(g, table).Addr
	}
	for i := range e.ids {
		var set []int32
		for rank := range topK {
			set = append(set, int32(i+rank*len(e.ids)))
		}
		e.ids[i] = upload(g, set).Addr
	}
	e.x, e.xd, e.y = g.space(4*topK*hidden), g.space(topK*hidden), g.space(4*2*topK*hidden)
	return e
}

func (e *expertBench) at(stage int) (table, ids uint64) {
	return e.tables[stage/len(e.ids)%len(e.tables)], e.ids[stage%len(e.ids)]
}

func (e *expertBench) gateUp(stage int) shaders.GateUpPush {
	table, ids := e.at(stage)
	p := shaders.GateUpPush{
		Table: table, IDs: ids, X: e.x, XD: e.xd, YQ: e.y, YD: e.y + 2*topK*hidden, Pairs: topK, Experts: experts, TopK: topK, Act: shaders.ActSiLU,
	}
	p.SetMatrix(e.up)
	return p
}

func (e *expertBench) down(stage int) shaders.DownPush {
	table, ids := e.at(stage)
	p := shaders.DownPush{
		Table: table, IDs: ids, Weights: e.xd, X: e.x, XD: e.xd, Y: e.y, Rows: 1, Experts: experts, TopK: topK, Add: 1, TailNorm: e.tail,
	}
	p.SetMatrix(e.low)
	return p
}
