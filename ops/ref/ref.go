// Package ref is the float64 reference of the op set: plain loops, one op at a time, over the exact values of weights and activations.
// Executors are compared with it; nothing else uses it, and speed is no aim.
//
// A format's kernel may quantise activations to int8 (DESIGN's integer form); with Integer set MatMul does the same rounding, so that
// what is left between an executor and this one is the order of float32 sums.
package ref

import (
	"math"

	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/weights/format"
)

// Executor implements ops.Executor in float64, rounding results to float32 where an op stores them.
type Executor struct {
	// Integer says which formats read activations in blocks of 32 int8 values; nil for none.
	Integer func(format.Format) bool
}

var _ ops.Executor = (*Executor)(nil)

// Name returns "reference".
func (e *Executor) Name() string { return "reference" }

// Reset does nothing: tensors are left to the collector.
func (e *Executor) Reset() {}

// New returns a tensor of zeros.
func (e *Executor) New(name string, layer, rows, cols int) *ops.Tensor {
	return &ops.Tensor{Name: name, Layer: layer, Rows: rows, Cols: cols, Data: make([]float32, rows*cols)}
}

// Upload copies host rows.
func (e *Executor) Upload(name string, layer, rows, cols int, data []float32) *ops.Tensor {
	t := e.New(name, layer, rows, cols)
	copy(t.Data, data)
	return t
}

// Download returns the tensor's memory.
func (e *Executor) Download(t *ops.Tensor) []float32 { return t.Data }

// RMSNorm: y = x·w / sqrt(mean(x²)+eps).
func (e *Executor) RMSNorm(dst, x *ops.Tensor, p ops.Norm) {
	seg := p.Segment
	if seg == 0 {
		seg = x.Cols
	}
	for at := 0; at < len(x.Data); at += seg {
		var sum float64
		for _, v := range x.Data[at : at+seg] {
			sum += float64(v) * float64(v)
		}
		scale := 1 / math.Sqrt(sum/float64(seg)+float64(p.Eps))
		for i := range seg {
			dst.Data[at+i] = float32(float64(x.Data[at+i]) * scale * float64(p.Weight.Data[i]))
		}
	}
}

// MatMul: y = W x + b.
func (e *Executor) MatMul(x *ops.Tensor, out ...ops.Projection) {
	for _, p := range out {
		for r := range x.Rows {
			e.matVec(p.Dst.Row(r), p.W, x.Row(r))
			if p.Bias != nil {
				for i, b := range p.Bias.Data {
					p.Dst.Row(r)[i] += b
				}
			}
		}
	}
}

func (e *Executor) matVec(dst []float32, w *ops.Matrix, x []float32) {
	if e.Integer != nil && e.Integer(w.Format) {
		x = RoundQ8(x)
	}
	row := make([]float32, w.Cols)
	for i := range w.Rows {
		w.DecodeRow(row, i)
		var sum float64
		for c, v := range row {
			sum += float64(v) * float64(x[c])
		}
		dst[i] = float32(sum)
	}
}

// RoundQ8 returns x as the integer form sees it: blocks of 32, d = amax/127, values rounded to the nearest even multiple of d.
func RoundQ8(x []float32) []float32 {
	out := make([]float32, len(x))
	for at := 0; at < len(x); at += 32 {
		block := x[at:min(at+32, len(x))]
		var top float32
		for _, v := range block {
			top = max(top, float32(math.Abs(float64(v))))
		}
		d := top / 127
		if d == 0 {
			continue
		}
		for i, v := range block {
			q := min(max(math.RoundToEven(float64(v/d)), -127), 127)
			out[at+i] = float32(q * float64(d))
		}
	}
	return out
}

// Clamp limits values.
func (e *Executor) Clamp(x *ops.Tensor, limit float32) {
	for i, v := range x.Data {
		x.Data[i] = max(-limit, min(limit, v))
	}
}

// RoPE rotates pairs (i, i+dim/2) by pos·inv_freq[i].
func (e *Executor) RoPE(x *ops.Tensor, places []ops.Place, r *ops.Rope) {
	half := r.Dim / 2
	for row, p := range places {
		for at := 0; at < x.Cols; at += r.HeadDim {
			head := x.Row(row)[at : at+r.HeadDim]
			for i, f := range r.InvFreq {
				sin, cos := math.Sincos(float64(float32(p.Pos) * f))
				sin, cos = sin*float64(r.Factor), cos*float64(r.Factor)
				a, b := float64(head[i]), float64(head[i+half])
				head[i], head[i+half] = float32(a*cos-b*sin), float32(b*cos+a*sin)
			}
		}
	}
}

// StoreKV writes rows to the caches.
func (e *Executor) StoreKV(kv []*ops.KV, k, v *ops.Tensor, places []ops.Place) {
	for r, p := range places {
		kv[p.Seq].Put(p.Pos, k.Row(r), v.Row(r))
	}
}

// Attention: softmax(scale·q·k) v over the positions up to the row's own.
func (e *Executor) Attention(dst, q *ops.Tensor, kv []*ops.KV, places []ops.Place, p ops.Attention) {
	group := p.Heads / p.KVHeads
	for row, pl := range places {
		s := kv[pl.Seq]
		for h := range p.Heads {
			qh, out := q.Row(row)[h*p.HeadDim:][:p.HeadDim], dst.Row(row)[h*p.HeadDim:][:p.HeadDim]
			at := h / group * p.HeadDim
			scores := make([]float64, pl.Pos+1)
			top := math.Inf(-1)
			for j := range scores {
				for c, v := range qh {
					scores[j] += float64(v) * float64(s.K[j*s.Spec.KWidth+at+c])
				}
				scores[j] *= float64(p.Scale)
				top = max(top, scores[j])
			}
			var sum float64
			acc := make([]float64, p.HeadDim)
			for j, sc := range scores {
				w := math.Exp(sc - top)
				sum += w
				for c := range acc {
					acc[c] += w * float64(s.V[j*s.Spec.VWidth+at+c])
				}
			}
			for c, v := range acc {
				out[c] = float32(v / sum)
			}
		}
	}
}

// Gather copies rows.
func (e *Executor) Gather(name string, x *ops.Tensor, rows []int) *ops.Tensor {
	t := e.New(name, x.Layer, len(rows), x.Cols)
	for i, r := range rows {
		copy(t.Row(i), x.Row(r))
	}
	return t
}

// Add adds x to dst.
func (e *Executor) Add(dst, x *ops.Tensor) {
	for i, v := range x.Data {
		dst.Data[i] += v
	}
}

// GLU: act(gate)·up.
func (e *Executor) GLU(dst, gate, up *ops.Tensor, act ops.Activation) {
	if act != ops.SiLU {
		panic("ref: unknown activation")
	}
	for i, g := range gate.Data {
		dst.Data[i] = float32(float64(g) / (1 + math.Exp(-float64(g))) * float64(up.Data[i]))
	}
}

// Route applies package router, the one definition of the choice.
func (e *Executor) Route(logits *ops.Tensor, p router.Params) *ops.Routes {
	routes := &ops.Routes{
		Rows: logits.Rows, TopK: p.TopK,
		IDs:     make([]int32, logits.Rows*p.TopK),
		Weights: make([]float32, logits.Rows*p.TopK),
	}
	scratch := make([]float32, logits.Cols)
	for r := range logits.Rows {
		at := r * p.TopK
		router.Route(routes.IDs[at:at+p.TopK], routes.Weights[at:at+p.TopK], logits.Row(r), scratch, p)
	}
	return routes
}

// Chosen returns the routes' own memory.
func (e *Executor) Chosen(r *ops.Routes) (ids []int32, weights []float32) { return r.IDs, r.Weights }

// Experts: Σ weight·down(act(gate x)·up x), pair by pair.
func (e *Executor) Experts(dst, x *ops.Tensor, routes *ops.Routes, experts ops.ExpertSet, act ops.Activation) {
	for r := range x.Rows {
		sum := make([]float64, dst.Cols)
		for rank := range routes.TopK {
			i := r*routes.TopK + rank
			gate, up, down := experts.Expert(int(routes.IDs[i]))
			g, u := e.New("", -1, 1, gate.Rows), e.New("", -1, 1, up.Rows)
			e.matVec(g.Data, gate, x.Row(r))
			e.matVec(u.Data, up, x.Row(r))
			e.GLU(g, g, u, act)
			y := make([]float32, down.Rows)
			e.matVec(y, down, g.Data)
			for c, v := range y {
				sum[c] += float64(routes.Weights[i]) * float64(v)
			}
		}
		for c, v := range sum {
			dst.Row(r)[c] = float32(v)
		}
	}
}
