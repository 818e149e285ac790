// Package model holds the architectures, one file each: the tensors a model has with their shapes, and its layers written once against
// ops.Executor. An architecture registers itself in its file's init; nothing else knows the list.
//
// What does not live here: how an op is executed (packages ops/cpu and ops/gpu), where tensors are stored (package weights), and the loop
// over steps (package engine).
package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/weights"
)

// Stream is what passes from layer to layer: the tensors an architecture declares, for most one residual [rows, hidden_size]. The
// runtime carries every tensor of it from one executor to the next.
type Stream []*ops.Tensor

// Model is an architecture with its weights, immutable after loading but for the rotary tables, which grow: one goroutine at a time runs it.
type Model interface {
	// Layers is the number of layers.
	Layers() int
	// State declares what layer il keeps between steps.
	State(il int) ops.StateSpec
	// Experts are the routed experts of layer il, nil for a layer without.
	Experts(il int) ops.ExpertSet
	// Weights are what layer il multiplies with besides its routed experts; il = Layers() is the head. A device has to hold them all to
	// run it.
	Weights(il int) (matrices []*ops.Matrix, vectors []*ops.Vector)
	// Embed writes the host inputs of the step's rows: the stream that enters layer 0.
	Embed(e ops.Executor, st *Step) Stream
	// Layer runs layer il.
	Layer(e ops.Executor, st *Step, il int, in Stream) Stream
	// Head returns the logits [len(rows), vocab_size] of the given rows of the stream.
	Head(e ops.Executor, st *Step, in Stream, rows []int) *ops.Tensor
}

// Step is one forward pass over rows that may belong to several conversations.
type Step struct {
	Tokens  []int32
	Places  []ops.Place // of each row
	State   [][]*ops.KV // [layer][conversation]
	Observe ops.Observer
	// Predict, if set, is told which experts the next layers will probably use, most probable first, while a layer's own are computed:
	// Depth of each row for each of the next Horizon layers with experts, which are predicted again, and better, from nearer.
	Predict        func(layer int, experts []int32)
	Depth, Horizon int

	host            []float32 // scratch for the host inputs, kept between steps
	count, distinct []int32   // scratch of byCount
	out             []ops.Projection
	residual        [1]*ops.Tensor
}

// multiply is e's MatMul. The projections are copied to where the step keeps them: for a call through an interface they would be allocated.
func (st *Step) multiply(e ops.Executor, x *ops.Tensor, out ...ops.Projection) {
	st.out = append(st.out[:0], out...)
	e.MatMul(x, st.out...)
}

// stream is the stream of a model that has one residual, valid until the next call.
func (st *Step) stream(residual *ops.Tensor) Stream {
	st.residual[0] = residual
	return st.residual[:]
}

// emit names an intermediate and shows it to the observer.
func (st *Step) emit(e ops.Executor, name string, layer int, t *ops.Tensor) *ops.Tensor {
	t.Name, t.Layer = name, layer
	if st.Observe != nil {
		st.Observe(name, layer, t.Rows, t.Cols, e.Download(t))
	}
	return t
}

// emitRoutes shows the chosen experts and their weights to the observer, ids as whole numbers.
func (st *Step) emitRoutes(e ops.Executor, layer int, r *ops.Routes) {
	if st.Observe == nil {
		return
	}
	chosen, weights := e.Chosen(r)
	ids := make([]float32, len(chosen))
	for i, id := range chosen {
		ids[i] = float32(id)
	}
	st.Observe("ffn_moe_topk", layer, r.Rows, r.TopK, ids)
	st.Observe("ffn_moe_weights", layer, r.Rows, r.TopK, weights)
}

// constructor reads the hyper-parameters and declares the tensors; mistakes are collected in the loader.
type constructor func(cfg *weights.Config, l *loader) (Model, error)

var registry = map[string]constructor{}

// register adds an architecture under its config.json model_type; called from init.
func register(modelType string, c constructor) { registry[modelType] = c }

// Architectures lists the model types that can be run, sorted.
func Architectures() []string { return slices.Sorted(maps.Keys(registry)) }

// ErrUnsupported reports a model type without an architecture here.
type ErrUnsupported struct{ ModelType string }

func (e *ErrUnsupported) Error() string {
	return fmt.Sprintf("architecture %q is not supported; coli runs %s", e.ModelType, strings.Join(Architectures(), ", "))
}

// Load binds a checkpoint's tensors to its architecture. Every tensor the architecture needs must be there with its shape, and no
// tensor may be left over; errors list all that are wrong.
func Load(c *weights.Checkpoint) (Model, error) {
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	if cfg.ModelType == "" {
		return nil, &weights.Error{
			Err: weights.ErrMissingKey, File: cfg.File, Key: cfg.Key("model_type"), Offset: -1, Try: "check that the file is complete, and the model's",
		}
	}
	construct, ok := registry[cfg.ModelType]
	if !ok {
		return nil, &ErrUnsupported{cfg.ModelType}
	}
	if n := len(c.Tensors()); cfg.NumHiddenLayers > n {
		return nil, &weights.Error{
			Err: weights.ErrValue, File: cfg.File, Key: cfg.Key("num_hidden_layers"), Offset: -1,
			What: fmt.Sprintf("%d layers, but the checkpoint has %d tensors in all", cfg.NumHiddenLayers, n),
			Try:  "check that config and weights belong to the same model",
		}
	}
	l := newLoader(c)
	m, err := construct(cfg, l)
	if err != nil {
		return nil, err
	}
	if err := l.finish(); err != nil {
		return nil, err
	}
	return m, nil
}
