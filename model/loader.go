package model

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/format"
)

// loader binds a checkpoint's tensors to what an architecture declares. It collects mistakes, so that a wrong file is reported whole.
type loader struct {
	c        *weights.Checkpoint
	used     map[string]bool
	problems []error
	partial  bool // a layer's experts were not all asked for: what is left over says nothing
	rotary   *ops.Rope
}

func newLoader(c *weights.Checkpoint) *loader { return &loader{c: c, used: map[string]bool{}} }

// scope prefixes the two names a tensor may have: the released one (config.json checkpoints) and GGUF's.
type scope struct {
	*loader
	hf, gguf string
}

func (l *loader) global() scope { return scope{l, "model.", ""} }

func (l *loader) layer(il int) scope {
	return scope{l, fmt.Sprintf("model.layers.%d.", il), fmt.Sprintf("blk.%d.", il)}
}

// matrix declares a weight matrix [rows, cols].
func (s scope) matrix(rows, cols int, hf, gguf string) *ops.Matrix {
	t := s.find(true, []int{rows, cols}, hf, gguf)
	if t == nil {
		return nil
	}
	return s.bind(t)
}

// vector declares a vector of n values.
func (s scope) vector(n int, hf, gguf string) *ops.Vector {
	return s.decode(s.find(true, []int{n}, hf, gguf))
}

// bias declares a bias of n values, which a checkpoint has where its configuration says so; GGUF files do not say, so there it is
// optional.
func (s scope) bias(has bool, n int, hf, gguf string) *ops.Vector {
	isGGUF := s.c.GGUF() != nil
	if !has && !isGGUF {
		return nil
	}
	return s.decode(s.find(!isGGUF, []int{n}, hf, gguf))
}

// find looks a tensor up under its two names and checks its shape; it returns nil where that fails.
func (s scope) find(required bool, shape []int, hf, gguf string) *weights.Tensor {
	names := []string{s.hf + hf}
	if s.c.GGUF() != nil {
		names[0] = s.gguf + gguf
	}
	if t, ok := s.c.Lookup(names...); ok {
		s.used[t.Name] = true
	} else if !required {
		return nil
	}
	found, err := s.c.Require(weights.Need{Names: names, Shape: shape})
	if err != nil {
		s.fail(err)
		return nil
	}
	return found[0]
}

func (l *loader) fail(err error) { l.problems = append(l.problems, err) }

// maxProblems is how many mistakes are reported.
const maxProblems = 8

// full says that looking further would report nothing more. Every layer asks, since a wrong file can have thousands.
func (l *loader) full() bool { return len(l.problems) >= maxProblems }

// rope returns the rotary embedding of all layers. It is made after the shape of a matrix has vouched for head_dim.
func (l *loader) rope(cfg *weights.Config) *ops.Rope {
	if l.rotary == nil {
		l.rotary = ops.NewRope(cfg.HeadDim, cfg.HeadDim, cmp.Or(cfg.RopeTheta, 10000)) // the library's default
	}
	return l.rotary
}

func (l *loader) bind(t *weights.Tensor) *ops.Matrix {
	data, err := l.c.LoadRows(t)
	if err != nil {
		l.fail(err)
		return nil
	}
	rowBytes, err := t.Format.RowBytes(t.Shape[1])
	if err != nil {
		l.fail(fmt.Errorf("%s: tensor %s: %w", t.File, t.Name, err))
		return nil
	}
	return &ops.Matrix{Name: t.Name, Format: t.Format, Rows: t.Shape[0], Cols: t.Shape[1], RowBytes: rowBytes, Data: data}
}

func (l *loader) decode(t *weights.Tensor) *ops.Vector {
	if t == nil {
		return nil
	}
	data, err := l.c.LoadRows(t)
	if err != nil {
		l.fail(err)
		return nil
	}
	v := &ops.Vector{Name: t.Name, Data: make([]float32, t.Shape[0])}
	if err := format.Decode(t.Format, v.Data, data); err != nil {
		l.fail(fmt.Errorf("%s: tensor %s: %w", t.File, t.Name, err))
	}
	return v
}

// expertTable is the routed experts of one layer, all addressable in memory: mapped files, or, for fp8 with scales, rows assembled when an
// expert is first asked for.
type expertTable struct {
	layer   int
	experts [][3]func() *ops.Matrix
}

func (x *expertTable) Len() int { return len(x.experts) }

func (x *expertTable) Layer() int { return x.layer }

func (x *expertTable) Expert(e int) (gate, up, down *ops.Matrix) {
	m := &x.experts[e]
	return m[0](), m[1](), m[2]()
}

// expert binds a matrix of a routed expert; nil after a mistake.
func (l *loader) expert(t *weights.Tensor) func() *ops.Matrix {
	if t.Scale == nil {
		m := l.bind(t)
		if m == nil {
			return nil
		}
		return func() *ops.Matrix { return m }
	}
	// Its shape and format have been checked; what is left to fail is the system's mapping.
	return sync.OnceValue(func() *ops.Matrix {
		m := l.bind(t)
		if m == nil {
			panic(l.problems[len(l.problems)-1])
		}
		return m
	})
}

// experts declares the n routed experts of layer il: gate and up [inter, hidden], down [hidden, inter]. It stops at the first mistake:
// the other experts would repeat it.
func (l *loader) experts(il, n, inter, hidden int) ops.ExpertSet {
	table := &expertTable{il, make([][3]func() *ops.Matrix, n)}
	for e := range n {
		gate, up, down, err := l.c.Expert(il, e)
		if err != nil {
			l.fail(err)
			return nil
		}
		for i, t := range []*weights.Tensor{gate, up, down} {
			want := []int{inter, hidden}
			if i == 2 {
				want = []int{hidden, inter}
			}
			if !slices.Equal(t.Shape, want) {
				l.fail(&weights.Error{
					Err: weights.ErrShape, File: t.File, Tensor: t.Name, Offset: t.Offset,
					What: fmt.Sprintf("expert %d of layer %d is %v, the configuration says %v", e, il, t.Shape, want),
					Try:  "check that config and weights belong to the same model",
				})
				return nil
			}
			whole, _, _ := strings.Cut(t.Name, "[") // a part is named after its tensor, with its index
			l.used[whole] = true
			if table.experts[e][i] = l.expert(t); table.experts[e][i] == nil {
				return nil
			}
		}
	}
	return table
}

// noExpert fails if layer il has an expert n, one more than configured: parts of a stacked tensor have no names that would be left over.
func (l *loader) noExpert(il, n int) {
	if more, _, _, err := l.c.Expert(il, n); err == nil {
		l.fail(&weights.Error{
			Err: weights.ErrShape, File: more.File, Tensor: more.Name, Offset: more.Offset,
			What: fmt.Sprintf("layer %d has more than the %d experts of the configuration", il, n),
			Try:  "check that config and weights belong to the same model",
		})
	}
}

// finish reports everything that was wrong, tensors that nothing asked for included: one that is missing may be there by another name.
func (l *loader) finish() error {
	if !l.partial && !l.full() {
		err := l.c.CheckKnown(func(name string) bool {
			// Old checkpoints store the frequencies of the default rotary embedding, which are computed.
			return l.used[name] || strings.HasSuffix(name, ".rotary_emb.inv_freq")
		})
		if err != nil {
			l.fail(err)
		}
	}
	if len(l.problems) > maxProblems {
		l.problems = append(l.problems[:maxProblems:maxProblems], errors.New("and more problems"))
	}
	return errors.Join(l.problems...)
}
