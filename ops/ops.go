// Package ops is the op set: the small set of operations every architecture is written against, as the interface [Executor].
//
// A layer of a model is written once, against Executor, and bound to one implementation when the model is loaded: package ops/cpu
// executes at once; package ops/gpu records what a device is to do and runs it when a host value is asked for. Package ops/ref is the
// float64 reference that both are compared with, by the table of cases in ops/parity.
//
// What does not live here: which ops make up a layer (package model), how a weight row is multiplied (package kernels), where
// weights come from (package weights).
//
// Numeric contract: activations are float32 in memory everywhere; a row's bits do not depend on which rows share the call, on a device as
// long as there are fewer than 16.
package ops

import (
	"fmt"

	"github.com/coli-moe/coli/router"
	"github.com/coli-moe/coli/weights/format"
)

// Tensor is an activation matrix [Rows, Cols] of float32, row major. It belongs to the executor that made it and is valid until that
// executor's next Reset.
type Tensor struct {
	Name       string // the intermediate's name, as a trace prints it
	Layer      int    // the layer it belongs to, -1 outside the layers
	Rows, Cols int
	Data       []float32 // host memory; nil where the values are elsewhere
	Aux        any       // private to the executor
}

// Row returns row r of a tensor in host memory.
func (t *Tensor) Row(r int) []float32 { return t.Data[r*t.Cols : (r+1)*t.Cols : (r+1)*t.Cols] }

// Matrix is a weight matrix [Rows, Cols] = [out, in]: y = W x. Data holds Rows rows of RowBytes bytes each in Format.
type Matrix struct {
	Name       string // the tensor's name in the checkpoint
	Format     format.Format
	Rows, Cols int
	RowBytes   int
	Data       []byte
}

// DecodeRow writes row r as float32 into dst [Cols]. The shapes have been checked when the matrix was bound.
func (m *Matrix) DecodeRow(dst []float32, r int) {
	if err := format.Decode(m.Format, dst, m.Data[r*m.RowBytes:(r+1)*m.RowBytes]); err != nil {
		panic(fmt.Sprintf("ops: %s row %d: %v", m.Name, r, err))
	}
}

// Vector is a weight vector (norm weight, bias) decoded to float32.
type Vector struct {
	Name string
	Data []float32
}

// Place says where a row stands: rows of one step may come from several conversations, so position and state belong to the row.
type Place struct {
	Pos int // position in its conversation, from 0
	Seq int // which conversation of the step
}

// Projection is one output of MatMul: Dst [rows, W.Rows] = x·Wᵀ + Bias.
type Projection struct {
	Dst  *Tensor
	W    *Matrix
	Bias *Vector // nil for none
}

// Norm are the parameters of RMSNorm: y = x·rsqrt(mean(x²)+Eps)·w over each segment.
type Norm struct {
	Weight  *Vector
	Eps     float32
	Segment int // columns normalised together; 0 is the whole row. Weight has this many values.
}

// Attention are the parameters of grouped-query attention, softmax(Scale·q·k + causal mask)·v.
type Attention struct {
	Heads, KVHeads int
	HeadDim        int
	Scale          float32
}

// Activation names the function of a gated linear unit.
type Activation uint8

// The activations of the gated units in use.
const (
	SiLU Activation = iota // x·sigmoid(x)
)

// ExpertSet gives the weights of one layer's routed experts. Implementations are safe for concurrent use.
type ExpertSet interface {
	// Expert returns the matrices of expert e: gate and up [I, H], down [H, I].
	Expert(e int) (gate, up, down *Matrix)
	// Len is the number of experts.
	Len() int
	// Layer is the layer they belong to.
	Layer() int
}

// Executor executes the op set. One goroutine at a time calls it. Ops write Dst arguments in place; a destination never aliases a
// source unless the op says so. Shapes that do not fit are a programming error and panic.
type Executor interface {
	// Name is what messages call this executor.
	Name() string
	// Reset invalidates all tensors made since the last Reset.
	Reset()
	// New returns a tensor whose values are undefined.
	New(name string, layer, rows, cols int) *Tensor
	// Upload returns a tensor with a copy of host rows: the step's host inputs, and streams handed over by another executor.
	Upload(name string, layer, rows, cols int, data []float32) *Tensor
	// Download returns the values of t in host memory, valid until t is written or Reset.
	Download(t *Tensor) []float32

	// RMSNorm normalises every row of x into dst; dst may be x.
	RMSNorm(dst, x *Tensor, p Norm)
	// MatMul multiplies x with several matrices of the same input width.
	MatMul(x *Tensor, out ...Projection)
	// Clamp limits every value of x to [-limit, limit].
	Clamp(x *Tensor, limit float32)
	// RoPE rotates each head of x [rows, heads·HeadDim] in place by its row's position.
	RoPE(x *Tensor, places []Place, r *Rope)
	// StoreKV writes each row of k and v to its conversation's cache at its position. kv is indexed by Place.Seq.
	StoreKV(kv []*KV, k, v *Tensor, places []Place)
	// Attention computes causal attention of each row over its conversation's cache up to and including its own position.
	Attention(dst, q *Tensor, kv []*KV, places []Place, p Attention)
	// Gather copies the given rows of x into a new tensor.
	Gather(name string, x *Tensor, rows []int) *Tensor
	// Add adds x to dst.
	Add(dst, x *Tensor)
	// GLU computes dst = act(gate)·up; dst may be gate.
	GLU(dst, gate, up *Tensor, act Activation)
	// Route chooses each row's experts from the router's logits [rows, experts].
	Route(logits *Tensor, p router.Params) *Routes
	// Chosen returns the ids and weights of routes in host memory, [Rows, TopK] each, valid until Reset. Whoever looks into Routes asks it.
	Chosen(r *Routes) (ids []int32, weights []float32)
	// Experts computes dst[r] = Σ_rank weight·down(act(gate x_r)·up x_r) over the routed experts of r, summed in rank order.
	Experts(dst, x *Tensor, routes *Routes, experts ExpertSet, act Activation)
}

// Routes are the experts chosen for each row, in rank order (highest weight first, ties to the lowest id). They belong to the executor
// that made them and are valid until its next Reset.
type Routes struct {
	Rows, TopK int
	IDs        []int32   // [Rows, TopK] in host memory; nil where they are elsewhere, see Executor.Chosen
	Weights    []float32 // [Rows, TopK], multiplied after the down projection; likewise
	Aux        any       // private to the executor
}

// Failure is what an op panics with when its input cannot be had, a weight that cannot be read: ops have no error results, since all but
// this is decided before they are called. Whoever runs the layers recovers it.
type Failure struct{ Err error }

func (f *Failure) Error() string { return f.Err.Error() }

func (f *Failure) Unwrap() error { return f.Err }

// Observer is called with every named intermediate, for traces and comparisons with an oracle. The data is valid during the call.
type Observer func(name string, layer, rows, cols int, data []float32)
