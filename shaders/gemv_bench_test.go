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

// cut is a launch with other constants: outs weight rows a subgroup.
func cut(l shaders.Launch, outs, subgroup, threads, perSubgroup, unroll int) shaders.Launch {
	l.Constants = append([]uint32{uint32(threads), uint32(perSubgroup), uint32(unroll)}, l.Constants[3:]...)
	rows := threads / subgroup * perSubgroup
	l.X = uint32((outs + rows - 1) / rows)
	return l
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
		b.ReportMetric(float64(best.Nanoseconds())/benchStages/1e3, "µs/stage")
		b.ReportMetric(float64(bytes)*benchStages/float64(best.Nanoseconds()), "GB/s")
	})
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
			l, _ := layout.For(tc.f, tc.outs, tc.cols)
			copies := max(1, min(benchStages, 300<<20/int(l.Bytes)))
			w := g.space(int64(copies) * l.Bytes)
			p := shaders.GEMVPush{
				X: g.space(int64(4 * tc.rows * tc.cols)), XD: g.space(int64(8 * tc.rows * tc.cols / 32)), Y: g.space(int64(4 * tc.rows * tc.outs)),
				Rows: uint32(tc.rows),
			}
			p.SetMatrix(w, l)
			push := func(stage int) shaders.GEMVPush {
				p := p
				p.SetMatrix(w+uint64(stage%copies)*uint64(l.Bytes), l)
				return p
			}
			base := shaders.GEMVLaunch(p, tc.f, g.d.Info().Features.IntegerDot, g.subgroup)
			stages(b, g, l.Bytes, base, push)
			for _, t := range [][3]int{{64, 1, 4}, {128, 1, 1}, {128, 1, 2}, {128, 1, 4}, {128, 2, 1}, {128, 2, 2}, {128, 2, 4}, {128, 4, 1}, {256, 1, 4}} {
				stages(b, g, l.Bytes, cut(base, tc.outs, g.subgroup, t[0], t[1], t[2]), push)
			}
		})
	}
}

// As many workgroups as the rows of a product take, with other constants: threads, weight rows a subgroup, pieces at once, and whether those
// are neighbours; joined, the rows are those of a workgroup.
func cutAs(l shaders.Launch, outs, subgroup int, c [4]int, joined bool) shaders.Launch {
	perGroup := c[0] / subgroup * c[1]
	if joined {
		perGroup = c[1]
	}
	l.Constants = append([]uint32{uint32(c[0]), uint32(c[1]), uint32(c[2]), uint32(c[3])}, l.Constants[4:]...)
	if strings.HasPrefix(l.Kernel, "gemv") {
		l.Constants[5] = 0
		if joined {
			l.Constants[5] = 1
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
		alone      [][4]int
		joined     [][4]int
	}{
		{"router", format.F32, 64, 2048, [][4]int{{64, 1, 16, 0}}, [][4]int{{64, 1, 8, 0}, {128, 1, 4, 0}, {256, 1, 2, 0}, {512, 1, 1, 0}, {128, 2, 4, 0}}},
		{"o", format.Q8_0, 2048, 2048, [][4]int{{128, 1, 4, 1}, {64, 1, 4, 1}}, [][4]int{{64, 1, 2, 0}, {64, 1, 2, 1}, {128, 1, 1, 0}, {64, 2, 2, 0}, {128, 4, 1, 0}}},
		{"qkv", format.Q8_0, 6144, 2048, [][4]int{{128, 1, 4, 1}, {256, 1, 4, 1}}, [][4]int{{64, 1, 2, 0}, {64, 2, 2, 0}, {128, 1, 1, 0}, {128, 4, 1, 0}}},
		{"head", format.Q8_0, 50304, 2048, [][4]int{{128, 1, 4, 1}}, [][4]int{{64, 1, 2, 0}, {64, 2, 2, 0}}},
	} {
		b.Run(tc.name, func(b *testing.B) {
			g := &gpu{b, g.d, g.subgroup}
			l, _ := layout.For(tc.f, tc.outs, tc.cols)
			copies := max(1, min(benchStages, 300<<20/int(l.Bytes)))
			w := g.space(int64(copies) * l.Bytes)
			p := shaders.GEMVPush{X: g.space(int64(4 * tc.cols)), XD: g.space(int64(8 * tc.cols / 32)), Y: g.space(int64(4 * tc.outs)), Rows: 1}
			push := func(stage int) shaders.GEMVPush {
				p := p
				p.SetMatrix(w+uint64(stage%copies)*uint64(l.Bytes), l)
				return p
			}
			base := shaders.GEMVLaunch(push(0), tc.f, dot, g.subgroup)
			stages(b, g, l.Bytes, base, push)
			for _, c := range tc.alone {
				stages(b, g, l.Bytes, cutAs(base, tc.outs, g.subgroup, c, false), push)
			}
			for _, c := range tc.joined {
				stages(b, g, l.Bytes, cutAs(base, tc.outs, g.subgroup, c, true), push)
			}
			b.Run("warm", func(b *testing.B) { stages(b, g, l.Bytes, base, warm(push)) })
		})
	}
	for _, f := range []format.Format{format.Q4_K, format.Q8_0} {
		x := newExpertBench(b, g, f)
		b.Run("gate_up/"+f.String(), func(b *testing.B) {
			base := shaders.GateUpLaunch(x.gateUp(0), f, dot, g.subgroup)
			for _, c := range [][4]int{{512, 2, 1, 0}, {512, 2, 2, 0}, {512, 2, 2, 1}, {1024, 1, 2, 0}, {1024, 1, 2, 1}, {256, 4, 2, 1}} {
				if c[0] = 32 / c[1] * g.subgroup; c[0] <= g.d.Info().MaxInvocations {
					stages(b, g, topK*2*x.up.Bytes, cutAs(base, inter, g.subgroup, c, false), x.gateUp)
				}
			}
			b.Run("warm", func(b *testing.B) {
				stages(b, g, topK*2*x.up.Bytes, cutAs(base, inter, g.subgroup, [4]int{512, 2, 2, 0}, false), warm(x.gateUp))
			})
		})
		// The same bytes by workgroups that need not compute a block together.
		b.Run("gate,up/"+f.String(), func(b *testing.B) {
			base := shaders.ExpertLaunch(x.expert(0, 0), f, dot, g.subgroup)
			for _, c := range [][4]int{{128, 1, 2, 0}, {128, 1, 2, 1}, {64, 1, 2, 0}, {256, 1, 2, 0}, {128, 2, 2, 0}, {128, 2, 2, 1}, {128, 4, 1, 0}} {
				l := cutAs(base, inter, g.subgroup, c, false)
				measure(b, g, fmt.Sprint(l.Constants), topK*2*x.up.Bytes, func(g *gpu, f *device.Frame) func(stage int) {
					pipeline := g.pipeline(l)
					return func(stage int) {
						for which := range uint32(2) {
							p := x.expert(stage, which)
							f.Dispatch(pipeline, shaders.Bytes(&p), l.X, l.Y, l.Z, l.Kernel)
						}
					}
				})
			}
		})
		b.Run("down/"+f.String(), func(b *testing.B) {
			stages(b, g, topK*x.low.Bytes, shaders.DownLaunch(x.down(0), f, dot, g.subgroup), x.down)
			base := shaders.DownRanksLaunch(x.down(0), f, dot, g.subgroup)
			threads := topK * g.subgroup
			cuts := [][4]int{{threads, 1, 1, 0}, {threads, 2, 1, 0}, {threads, 4, 1, 0}, {threads, 8, 1, 0}, {threads, 16, 1, 0}}
			if f == format.Q8_0 {
				cuts = [][4]int{{threads, 1, 2, 0}, {threads, 2, 2, 0}, {threads, 4, 2, 0}, {threads, 8, 2, 0}, {threads, 4, 2, 1}}
			}
			for _, c := range cuts {
				stages(b, g, topK*x.low.Bytes, cutAs(base, hidden, g.subgroup, c, true), x.down)
			}
			b.Run("warm", func(b *testing.B) {
				stages(b, g, topK*x.low.Bytes, cutAs(base, hidden, g.subgroup, cuts[2], true), warm(x.down))
			})
		})
	}
}

// The experts of OLMoE.
const hidden, inter, experts, topK = 2048, 1024, 64, 8

// expertBench are the experts of two layers. Stages take turns at all of them, topK at a time.
type expertBench struct {
	up, low  layout.Layout
	tables   []uint64
	ids      []uint64
	x, xd, y uint64
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

func (e *expertBench) expert(stage int, which uint32) shaders.ExpertPush {
	table, ids := e.at(stage)
	p := shaders.ExpertPush{
		Table: table, IDs: ids, X: e.x, XD: e.xd, Y: e.y + uint64(which)*4*topK*hidden, Pairs: topK, Experts: experts, Matrix: which, Divide: topK,
	}
	p.SetMatrix(e.up)
	return p
}

func (e *expertBench) down(stage int) shaders.DownPush {
	table, ids := e.at(stage)
	p := shaders.DownPush{
		Table: table, IDs: ids, Weights: e.xd, X: e.x, XD: e.xd, Y: e.y, Rows: 1, Experts: experts, TopK: topK, Add: 1,
	}
	p.SetMatrix(e.low)
	return p
}
