package cpu

import "github.com/coli-moe/coli/ops"

// arena hands out tensors and takes all of them back at once. The n-th tensor of a step has the shape it had in the step before, so
// memory is reused by order of request and a steady state allocates nothing.
type arena struct {
	tensors []*ops.Tensor
	used    int
}

func (a *arena) reset() { a.used = 0 }

func (a *arena) tensor(name string, layer, rows, cols int) *ops.Tensor {
	if a.used == len(a.tensors) {
		a.tensors = append(a.tensors, &ops.Tensor{Aux: new(input)})
	}
	t := a.tensors[a.used]
	a.used++
	n := rows * cols
	if cap(t.Data) < n {
		t.Data = make([]float32, n)
	}
	t.Name, t.Layer, t.Rows, t.Cols, t.Data = name, layer, rows, cols, t.Data[:n]
	touch(t)
	return t
}
