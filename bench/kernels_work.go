package bench

import (
	"math"
	"unsafe"

	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/cpu"
	"github.com/coli-moe/coli/weights/format"
)

// kernelsWork is what an arm of the experiment "kernels" computes, again and again.
type kernelsWork interface {
	format() format.Format // of the values that call reads
	bytes() int            // of them
	// prepare makes the tensors anew in the executor's memory, with everything that is done once for several calls.
	prepare(*cpu.Executor)
	call(e *cpu.Executor, data []byte)
	operations() float64 // multiplications and additions of a call
	// unit is the metric of how long one of many takes, of a call of so many seconds.
	unit(seconds float64) (metric string, value float64)
}

// someRows returns a tensor of activations.
func someRows(e *cpu.Executor, name string, rows, cols int) *ops.Tensor {
	x := e.New(name, 0, rows, cols)
	for i := range x.Data {
		x.Data[i] = float32(i%17)/8 - 1
	}
	return x
}

// product is rows of activations times a matrix.
type product struct {
	matrix ops.Matrix
	rows   int
	x, y   *ops.Tensor
}

// product returns the work of rows of activations times a matrix in format f.
func (e *kernelsExperiment) product(f format.Format, rows int) *product {
	rowBytes, _ := f.RowBytes(e.cfg.Cols) // which check has seen
	return &product{matrix: ops.Matrix{Name: f.String(), Format: f, Rows: e.cfg.MatrixRows, Cols: e.cfg.Cols, RowBytes: rowBytes}, rows: rows}
}

func (p *product) format() format.Format { return p.matrix.Format }

func (p *product) bytes() int { return p.matrix.Rows * p.matrix.RowBytes }

// prepare multiplies with a row of zeros, so that the activations are quantised.
func (p *product) prepare(e *cpu.Executor) {
	p.x, p.y = someRows(e, "x", p.rows, p.matrix.Cols), e.New("y", 0, p.rows, p.matrix.Rows)
	row := p.matrix
	row.Rows, row.Data = 1, make([]byte, row.RowBytes)
	e.MatMul(p.x, ops.Projection{Dst: e.New("one", 0, p.rows, 1), W: &row})
}

func (p *product) call(e *cpu.Executor, data []byte) {
	p.matrix.Data = data
	e.MatMul(p.x, ops.Projection{Dst: p.y, W: &p.matrix})
}

func (p *product) weights() float64 { return float64(p.matrix.Rows) * float64(p.matrix.Cols) }

func (p *product) operations() float64 { return 2 * p.weights() * float64(p.rows) }

func (p *product) unit(seconds float64) (string, float64) {
	return perWeight, 1e9 * seconds / p.weights()
}

// attention is that of rows behind depth others, of a layer. A call has keys and values of its own, as layers do.
type attention struct {
	params ops.Attention
	depth  int
	kv     []*ops.KV
	places []ops.Place
	q, dst *ops.Tensor
}

func newAttention(p ops.Attention, depth, rows int) *attention {
	p.Scale = float32(1 / math.Sqrt(float64(p.HeadDim)))
	width := p.KVHeads * p.HeadDim
	a := &attention{params: p, depth: depth, kv: []*ops.KV{ops.NewKV(ops.StateSpec{KWidth: width, VWidth: width})}}
	for i := range rows {
		a.places = append(a.places, ops.Place{Pos: depth + i})
	}
	return a
}

func (*attention) format() format.Format { return format.F32 }

// bytes counts the keys and values of every position once, however many heads and rows use them.
func (a *attention) bytes() int {
	return 2 * 4 * a.params.KVHeads * a.params.HeadDim * (a.depth + len(a.places))
}

func (a *attention) prepare(e *cpu.Executor) {
	cols := a.params.Heads * a.params.HeadDim
	a.q, a.dst = someRows(e, "q", len(a.places), cols), e.New("attention", 0, len(a.places), cols)
}

func (a *attention) call(e *cpu.Executor, data []byte) {
	values := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(data))), len(data)/4) // bytes is a multiple of 8, the memory begins at a page
	a.kv[0].K, a.kv[0].V = values[:len(values)/2], values[len(values)/2:]
	e.Attention(a.dst, a.q, a.kv, a.places, a.params)
}

// operations are a multiplication and an addition for each column of each key that a row sees, and for each of its value.
func (a *attention) operations() float64 {
	rows := float64(len(a.places))
	pairs := rows*float64(a.depth) + rows*(rows+1)/2
	return 4 * pairs * float64(a.params.Heads) * float64(a.params.HeadDim)
}

func (a *attention) unit(seconds float64) (string, float64) {
	return perRow, 1e6 * seconds / float64(len(a.places))
}
