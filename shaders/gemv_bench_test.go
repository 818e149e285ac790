package shaders_test

import (
	"fmt"
	"os"
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
	b.Run(fmt.Sprint(l.Constants), func(b *testing.B) {
		g := &gpu{b, g.d, g.subgroup}
		f := g.d.NewFrame()
		defer f.Free()
		pipeline := g.pipeline(l)
		for i := range benchStages {
			p := push(i)
			f.Dispatch(pipeline, shaders.Bytes(&p), l.X, l.Y, l.Z, l.Kernel)
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

func BenchmarkExperts(b *testing.B) {
	g := openBench(b)
	const hidden, inter, experts, topK, layers = 2048, 1024, 64, 8, 2
	for _, f := range []format.Format{format.Q4_K, format.Q8_0} {
		up, _ := layout.For(f, inter, hidden)
		down, _ := layout.For(f, hidden, inter)
		// Stages take turns at all the experts of the layers, topK at a time.
		tables, ids := make([]uint64, layers), make([]uint64, experts/topK)
		for i := range tables {
			var table []uint64
			for range experts {
				table = append(table, g.space(up.Bytes), g.space(up.Bytes), g.space(down.Bytes))
			}
			tables[i] = upload(g, table).Addr
		}
		for i := range ids {
			var set []int32
			for rank := range topK {
				set = append(set, int32(i+rank*len(ids)))
			}
			ids[i] = upload(g, set).Addr
		}
		at := func(stage int) (table, set uint64) { return tables[stage/len(ids)%layers], ids[stage%len(ids)] }
		x, xd, y := g.space(4*topK*hidden), g.space(topK*hidden), g.space(4*topK*hidden)
		dot := g.d.Info().Features.IntegerDot

		gate := func(stage int) shaders.GateUpPush {
			table, set := at(stage)
			p := shaders.GateUpPush{
				Table: table, IDs: set, X: x, XD: xd, YQ: y, YD: y + 2*topK*hidden, Pairs: topK, Experts: experts, TopK: topK, Act: shaders.ActSiLU,
			}
			p.SetMatrix(up)
			return p
		}
		b.Run("gate_up/"+f.String(), func(b *testing.B) {
			base := shaders.GateUpLaunch(gate(0), f, dot, g.subgroup)
			stages(b, g, topK*2*up.Bytes, base, gate)
			for _, t := range [][2]int{{4, 1}, {4, 2}, {2, 1}, {2, 2}, {8, 1}, {8, 2}, {1, 1}} {
				if threads := 32 / t[0] * g.subgroup; threads <= g.d.Info().MaxInvocations {
					stages(b, g, topK*2*up.Bytes, cut(base, inter, g.subgroup, threads, t[0], t[1]), gate)
				}
			}
		})
		sum := func(stage int) shaders.DownPush {
			table, set := at(stage)
			p := shaders.DownPush{
				Table: table, IDs: set, Weights: xd, X: x, XD: xd, Y: y, Rows: 1, Experts: experts, TopK: topK, Add: 1,
			}
			p.SetMatrix(down)
			return p
		}
		b.Run("down/"+f.String(), func(b *testing.B) {
			base := shaders.DownLaunch(sum(0), f, dot, g.subgroup)
			stages(b, g, topK*down.Bytes, base, sum)
			for _, t := range [][3]int{{64, 1, 8}, {128, 1, 8}, {128, 1, 4}, {128, 1, 2}, {128, 2, 4}, {128, 2, 8}, {64, 1, 4}, {256, 1, 8}} {
				stages(b, g, topK*down.Bytes, cut(base, hidden, g.subgroup, t[0], t[1], t[2]), sum)
			}
		})
	}
}
