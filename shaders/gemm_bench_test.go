package shaders_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/coli-moe/coli/shaders"
	"github.com/coli-moe/coli/shaders/layout"
	"github.com/coli-moe/coli/weights/format"
)

// The benchmarks take the products of a prompt's step of OLMoE-1B-7B. COLI_TEST_DEVICE chooses the device.

// gemmStage is a dispatch and what it multiplies and adds.
type gemmStage struct {
	l     shaders.Launch
	push  []byte
	flops float64
}

// gemmMeasure reports the time of stages one after another, and the operations a second.
func gemmMeasure(b *testing.B, g *gpu, times int, stages ...gemmStage) time.Duration {
	b.Helper()
	f := g.d.NewFrame()
	defer f.Free()
	var flops float64
	for range times {
		for _, s := range stages {
			f.Dispatch(g.pipeline(s.l), s.push, s.l.X, s.l.Y, s.l.Z, s.l.Kernel)
			f.Barrier()
			flops += s.flops
		}
	}
	best := fastest(b, f)
	b.ReportMetric(float64(best.Nanoseconds())/1e3/float64(times), "µs/stage")
	b.ReportMetric(flops/float64(best.Nanoseconds())/1e3, "TFLOP/s")
	return best / time.Duration(times)
}

// gemmRun runs a stage once.
func gemmRun(g *gpu, s gemmStage) {
	g.tb.Helper()
	f := g.d.NewFrame()
	defer f.Free()
	f.Dispatch(g.pipeline(s.l), s.push, s.l.X, s.l.Y, s.l.Z, s.l.Kernel)
	if err := f.End(); err != nil {
		g.tb.Fatal(err)
	}
	if err := f.Run(g.tb.Context()); err != nil {
		g.tb.Fatal(err)
	}
}

// gemmVariants are the specs to compare on a device, by name.
func gemmVariants(g *gpu, f format.Format) map[string]shaders.GEMMSpec {
	out := map[string]shaders.GEMMSpec{}
	for _, form := range gemmForms(g, f) {
		name := [...]string{"bytes", "dot", "matrix", "float", "half"}[form]
		for _, tile := range []int{16, 32, 64, 128} {
			if (form != shaders.GEMMBytes || !g.d.Info().Features.IntegerDot) && (form != shaders.GEMMHalf || tile <= 64) {
				out[fmt.Sprintf("%s/tile=%d", name, tile)] = shaders.GEMMSpec{Format: f, Form: form, TileRows: tile}
			}
		}
	}
	return out
}

// gemmDense makes a product of rows × cols with a matrix [out, cols]. What the memory holds does not matter.
func gemmDense(g *gpu, s shaders.GEMMSpec, rows, out, cols int) gemmStage {
	l, _ := layout.For(s.Format, out, cols)
	p := shaders.GEMMPush{
		W: g.space(l.Bytes), X: g.space(int64(4 * rows * cols)), XD: g.space(int64(8 * rows * cols / 32)), Y: g.space(int64(4 * rows * out)),
		Rows: uint32(rows),
	}
	p.SetMatrix(l)
	return gemmStage{shaders.GEMMLaunch(p, s), shaders.Bytes(&p), 2 * float64(rows) * float64(out) * float64(cols)}
}

func BenchmarkGEMM(b *testing.B) {
	g := openBench(b)
	for _, s := range []struct {
		f               format.Format
		rows, out, cols int
	}{
		{format.Q8_0, 512, 6144, 2048},
		{format.Q8_0, 512, 2048, 2048},
		{format.Q8_0, 2048, 6144, 2048},
		{format.Q8_0, 32, 6144, 2048},
		{format.Q4_K, 512, 6144, 2048},
		{format.Q6_K, 512, 6144, 2048},
		{format.Q8_0, 512, 50304, 2048},
		{format.F32, 512, 64, 2048},
		{format.BF16, 512, 6144, 2048},
	} {
		for name, spec := range gemmVariants(g, s.f) {
			b.Run(fmt.Sprintf("%s/%dx%dx%d/%s", s.f, s.rows, s.cols, s.out, name), func(b *testing.B) {
				g := &gpu{b, g.d, g.subgroup}
				gemmMeasure(b, g, 20, gemmDense(g, spec, s.rows, s.out, s.cols))
			})
		}
	}
}

// gemmLayer are the experts of a layer and the pairs of a step, on the device.
type gemmLayer struct {
	table, x, xd, h, y uint64
	group              shaders.GroupPush
	rows, topK         int
	experts            int
	hidden, width      int
}

func newGEMMLayer(g *gpu, f format.Format, rows int) *gemmLayer {
	e := &gemmLayer{rows: rows, topK: 8, experts: 64, hidden: 2048, width: 1024}
	up, _ := layout.For(f, e.width, e.hidden)
	down, _ := layout.For(f, e.hidden, e.width)
	var table []uint64
	for range e.experts {
		table = append(table, g.space(up.Bytes), g.space(up.Bytes), g.space(down.Bytes))
	}
	pairs := rows * e.topK
	ids := routedIDs(anyExpert, rows, e.topK, e.experts)
	e.table = upload(g, table).Addr
	e.x, e.xd = g.space(int64(4*pairs*e.hidden)), g.space(int64(pairs*e.hidden/4))
	e.h, e.y = g.space(int64(4*pairs*e.width)), g.space(int64(4*pairs*e.hidden))
	e.group = shaders.GroupPush{
		IDs: upload(g, ids).Addr, Pairs: g.space(int64(4 * pairs)), Tiles: g.space(int64(16 * shaders.GroupTiles(pairs, e.experts, 16))),
		Count: uint32(pairs), Experts: uint32(e.experts),
	}
	return e
}

// stages are the plan, gate and up, and down.
func (e *gemmLayer) stages(s shaders.GEMMSpec) (plan, gateUp, down gemmStage) {
	s.Experts = e.experts
	pairs := e.rows * e.topK
	flops := 2 * float64(pairs) * float64(e.hidden) * float64(e.width)
	group := e.group
	group.TileRows = uint32(s.TileRows)
	plan = gemmStage{shaders.GroupLaunch(group), shaders.Bytes(&group), 0}

	p := shaders.GEMMPush{
		W: e.table, X: e.x, XD: e.xd, Y: e.h, Tiles: group.Tiles, Pairs: group.Pairs, Rows: uint32(pairs), Divide: uint32(e.topK),
	}
	l, _ := layout.For(s.Format, e.width, e.hidden)
	p.SetMatrix(l)
	s.Act = shaders.ActSiLU
	gateUp = gemmStage{shaders.GEMMLaunch(p, s), shaders.Bytes(&p), 2 * flops}

	q := p
	q.Y, q.Matrix, q.Divide = e.y, 2, 1
	l, _ = layout.For(s.Format, e.hidden, e.width)
	q.SetMatrix(l)
	s.Act = shaders.ActNone
	return plan, gateUp, gemmStage{shaders.GEMMLaunch(q, s), shaders.Bytes(&q), flops}
}

func BenchmarkGEMMExperts(b *testing.B) {
	g := openBench(b)
	for _, rows := range []int{64, 512, 2048, 4096} {
		b.Run(fmt.Sprintf("%d rows", rows), func(b *testing.B) {
			g := &gpu{b, g.d, g.subgroup}
			e := newGEMMLayer(g, format.Q4_K, rows)
			for name, spec := range gemmVariants(g, format.Q4_K) {
				plan, gateUp, down := e.stages(spec)
				gemmRun(g, plan)
				for what, stage := range map[string]gemmStage{"plan": plan, "gate_up": gateUp, "down": down} {
					b.Run(name+"/"+what, func(b *testing.B) { gemmMeasure(b, g, 20, stage) })
				}
			}
		})
	}
}

// All products of a prompt of so many tokens: tok/s is what the model cannot exceed with them.
func BenchmarkGEMMPrefill(b *testing.B) {
	g := openBench(b)
	const layers = 16
	for _, rows := range []int{512, 2048, 4096} {
		b.Run(fmt.Sprintf("%d rows", rows), func(b *testing.B) {
			g := &gpu{b, g.d, g.subgroup}
			experts := newGEMMLayer(g, format.Q4_K, rows)
			for name, spec := range gemmVariants(g, format.Q8_0) {
				b.Run(name, func(b *testing.B) {
					g := &gpu{b, g.d, g.subgroup}
					qkv, o := gemmDense(g, spec, rows, 6144, 2048), gemmDense(g, spec, rows, 2048, 2048)
					router := gemmDense(g, shaders.GEMMSpec{Format: format.F32, Form: shaders.GEMMFloat, TileRows: 16}, rows, 64, 2048)
					spec.Format = format.Q4_K
					plan, gateUp, down := experts.stages(spec)
					d := gemmMeasure(b, g, layers, qkv, o, router, plan, gateUp, down)
					b.ReportMetric(float64(rows)/(layers*d.Seconds()), "tok/s")
				})
			}
		})
	}
}
