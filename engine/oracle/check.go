package oracle

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/engine/sampler"
)

// Report is what Check found.
type Report struct {
	Prompts []PromptReport `json:"prompts"`
	Hidden  Group          `json:"hidden_states"` // embedding, layers' outputs and final norm
	Routing Group          `json:"routing"`       // router logits, expert ids and weights
	// First is the difference that explains the others best; nil where all agrees: the first of an intermediate in the order of
	// computation, or, where no intermediate differs, the first of a logit or greedy id.
	First *Difference `json:"first_difference,omitempty"`

	inside, outcome *Difference
}

// PromptReport is the result of one prompt.
type PromptReport struct {
	Tokens     int     `json:"prompt_tokens"`
	Matched    int     `json:"greedy_matched"` // greedy ids before the first that differs
	Greedy     int     `json:"greedy_ids"`
	Difference float64 `json:"largest_logit_difference"`
	Allowed    float64 `json:"allowed"`
	Logits     int     `json:"logits_compared"`
}

// Group sums up intermediates of one kind.
type Group struct {
	Tensors   int     `json:"tensors"`
	Values    int     `json:"values"`
	Differ    int     `json:"tensors_that_differ"`
	OfAllowed float64 `json:"largest_share_of_allowed"` // largest difference divided by what its tensor allows; ids, which allow none, left out
}

// Difference is a value outside its tolerance.
type Difference struct {
	Prompt  int     `json:"prompt_tokens"` // length of the prompt
	Layer   int     `json:"layer"`         // -1 outside the layers
	Name    string  `json:"name"`
	Row     int     `json:"row"` // position in the prompt; of "greedy", the step
	Column  int     `json:"column"`
	Got     float64 `json:"got"`  // "greedy" and expert ids as numbers
	Want    float64 `json:"want"` // likewise
	Allowed float64 `json:"allowed"`
	Margin  float64 `json:"margin,omitempty"` // of "greedy": by how much the reference preferred its id
}

const greedy = "greedy"

func (d *Difference) String() string {
	if d.Name == greedy {
		s := fmt.Sprintf("prompt of %d tokens, greedy step %d: id %.0f, the reference has %.0f", d.Prompt, d.Row, d.Got, d.Want)
		if d.Margin > 0 {
			s += fmt.Sprintf(" (ahead by %.4g)", d.Margin)
		}
		return s
	}
	where := ""
	if d.Layer >= 0 {
		where = fmt.Sprintf("layer %d, ", d.Layer)
	}
	return fmt.Sprintf("prompt of %d tokens, %s%s, row %d, column %d: %.7g, the reference has %.7g (%.2g apart, allowed %.2g)",
		d.Prompt, where, d.Name, d.Row, d.Column, d.Got, d.Want, math.Abs(d.Got-d.Want), d.Allowed)
}

// Check runs every prompt on m, which must be the oracle's checkpoint. A difference is reported, not an error; errors are runs that
// failed and references that do not fit the model.
func (o *Oracle) Check(ctx context.Context, m *engine.Model) (*Report, error) {
	r := &Report{}
	for i := range o.prompts {
		if err := r.prompt(ctx, m, &o.prompts[i]); err != nil {
			return nil, fmt.Errorf("prompt of %d tokens: %w", len(o.prompts[i].ids), err)
		}
	}
	r.First = cmp.Or(r.inside, r.outcome)
	return r, nil
}

func (r *Report) prompt(ctx context.Context, m *engine.Model, p *prompt) error {
	s, err := m.NewSession(len(p.ids) + len(p.greedy))
	if err != nil {
		return err
	}
	defer s.Close()
	seen := newRecording(p.want)
	s.Observe = func(name string, layer, rows, cols int, data []float32) {
		if name != logits { // those are taken as a caller gets them
			seen.observe(name, layer, rows, cols, data)
		}
	}
	err = s.ForwardAll(ctx, p.ids, func(_ int, row []float32) { seen.observe(logits, -1, 1, len(row), row) })
	if err != nil {
		return err
	}
	s.Observe = nil
	seen.sortExperts()
	out := PromptReport{Tokens: len(p.ids), Greedy: len(p.greedy)}
	for i := range p.want {
		if err := r.compare(&out, &p.want[i], seen); err != nil {
			return err
		}
	}
	if err := r.continuation(ctx, s, p, &out, seen.lastLogits()); err != nil {
		return err
	}
	r.Prompts = append(r.Prompts, out)
	return nil
}

// compare checks one expectation and files the result where it belongs.
func (r *Report) compare(out *PromptReport, e *expectation, seen recording) error {
	largest, first, err := e.compare(seen)
	if err != nil {
		return err
	}
	if first != nil {
		first.Prompt = out.Tokens
	}
	var group *Group
	switch e.name {
	case logits:
		r.outcome = cmp.Or(r.outcome, first)
		out.Logits += len(e.data)
		if largest >= out.Difference {
			out.Difference, out.Allowed = largest, e.allowed
		}
		return nil
	case routerLogits, topkIDs, topkWeights:
		group = &r.Routing
	default:
		group = &r.Hidden
	}
	r.inside = cmp.Or(r.inside, first)
	group.Tensors++
	group.Values += len(e.data)
	if first != nil {
		group.Differ++
	}
	if e.allowed > 0 {
		group.OfAllowed = max(group.OfAllowed, largest/e.allowed)
	}
	return nil
}

// continuation decodes greedily, through end-of-text ids, until an id differs.
func (r *Report) continuation(ctx context.Context, s *engine.Session, p *prompt, out *PromptReport, row []float32) error {
	params := sampler.Defaults()
	params.Temperature = 0
	choose, err := sampler.New(params)
	if err != nil {
		return err
	}
	for step, want := range p.greedy {
		got, err := choose.Sample(row)
		if err != nil {
			return err
		}
		if got != want {
			d := &Difference{Prompt: out.Tokens, Layer: -1, Name: greedy, Row: step, Got: float64(got), Want: float64(want)}
			if step < len(p.margin) {
				d.Margin = p.margin[step]
			}
			r.outcome = cmp.Or(r.outcome, d)
			return nil
		}
		out.Matched++
		if out.Matched == len(p.greedy) {
			return nil
		}
		if row, err = s.Forward(ctx, []int32{got}); err != nil {
			return err
		}
	}
	return nil
}

// compare returns the largest absolute difference and the first value outside the tolerance.
func (e *expectation) compare(seen recording) (largest float64, first *Difference, err error) {
	got := seen[key{e.name, e.layer}]
	width := e.cols
	if e.at != nil {
		width = len(e.at)
	}
	rows := len(e.data) / width
	switch {
	case got.cols == 0:
		return 0, nil, fmt.Errorf("the run has no %s in layer %d, the reference has; they are of different architectures", e.name, e.layer)
	case e.at == nil && got.cols != e.cols || e.at != nil && slices.Max(e.at) >= got.cols || (e.from+rows)*got.cols > len(got.data):
		return 0, nil, fmt.Errorf("%s of layer %d has %d rows of %d values, which does not fit the reference; they are of different models",
			e.name, e.layer, len(got.data)/got.cols, got.cols)
	}
	for i, want := range e.data {
		row, col := e.from+i/width, i%width
		if e.at != nil {
			col = e.at[col]
		}
		v := got.data[row*got.cols+col]
		d := math.Abs(float64(v) - float64(want))
		largest = max(largest, d)
		if !(d <= e.allowed) && first == nil {
			first = &Difference{Layer: e.layer, Name: e.name, Row: row, Column: col, Got: float64(v), Want: float64(want), Allowed: e.allowed}
		}
	}
	return largest, first, nil
}

type key struct {
	name  string
	layer int
}

// recording collects the intermediates that are asked for, the chunks of a prompt one after another.
type recording map[key]*values

type values struct {
	cols int
	data []float32
}

func newRecording(want []expectation) recording {
	seen := recording{{logits, -1}: {}}
	for _, e := range want {
		seen[key{e.name, e.layer}] = &values{}
		if e.name == topkIDs || e.name == topkWeights { // each is sorted with the other
			seen[key{topkIDs, e.layer}], seen[key{topkWeights, e.layer}] = &values{}, &values{}
		}
	}
	return seen
}

func (r recording) observe(name string, layer, _, cols int, data []float32) {
	if v, ok := r[key{name, layer}]; ok {
		v.cols = cols
		v.data = append(v.data, data...)
	}
}

func (r recording) lastLogits() []float32 {
	v := r[key{logits, -1}]
	return v.data[len(v.data)-v.cols:]
}

// sortExperts orders each row's experts by id, as the references do; the engine gives them in rank order.
func (r recording) sortExperts() {
	for k, ids := range r {
		if k.name != topkIDs || ids.cols == 0 {
			continue
		}
		weights := r[key{topkWeights, k.layer}]
		type pair struct{ id, weight float32 }
		row := make([]pair, ids.cols)
		for at := 0; at < len(ids.data); at += ids.cols {
			for i := range row {
				row[i] = pair{ids.data[at+i], weights.data[at+i]}
			}
			slices.SortFunc(row, func(a, b pair) int { return cmp.Compare(a.id, b.id) })
			for i, p := range row {
				ids.data[at+i], weights.data[at+i] = p.id, p.weight
			}
		}
	}
}
