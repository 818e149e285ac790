package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// continuations is oracle.json of a trained model: greedy texts in float32, the largest logits that follow each prompt and, for the first
// prompt, all of them and the experts of every position.
type continuations struct {
	Greedy []struct {
		IDs         []int32
		GreedyIDs   []int32       `json:"greedy_ids"`
		Gap         float64       `json:"smallest_top1_top2_gap"`
		FirstLogits []float32     `json:"first_logits"` // rounded to 1e-5
		FirstTop10  [][2]float64  `json:"first_top10"`  // id and logit, rounded to 1e-5
		Experts     [][][]float32 `json:"experts_by_layer_and_position"`
	}
	Checks struct {
		Difference float64 `json:"max_abs_logit_difference"` // of two implementations
		AbsMax     float64 `json:"max_abs_logit"`
	}
}

// rounding is half of the last digit of the logits in the file.
const rounding = 0.5e-5

func parseContinuations(data []byte) ([]prompt, error) {
	var c continuations
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, err
	}
	n, err := newNoise(c.Checks.Difference, c.Checks.AbsMax)
	if err != nil {
		return nil, err
	}
	prompts := make([]prompt, 0, len(c.Greedy))
	for _, in := range c.Greedy {
		if len(in.IDs) == 0 {
			return nil, errors.New("a prompt has no ids")
		}
		p := prompt{ids: in.IDs, greedy: in.GreedyIDs}
		for il, rows := range in.Experts {
			e, err := experts(il, rows, len(in.IDs))
			if err != nil {
				return nil, err
			}
			p.want = append(p.want, e)
		}
		if row := in.FirstLogits; len(row) > 0 {
			p.want = append(p.want, expectation{
				name: logits, layer: -1, from: len(in.IDs) - 1, cols: len(row), data: row,
				allowed: n.allowed(row) + rounding,
			})
		} else if len(in.FirstTop10) > 0 {
			e, err := top(in.FirstTop10, len(in.IDs)-1, n)
			if err != nil {
				return nil, err
			}
			p.want = append(p.want, e)
		}
		prompts = append(prompts, p)
	}
	return prompts, nil
}

// top are the largest logits of a row, as pairs of id and logit.
func top(pairs [][2]float64, row int, n noise) (expectation, error) {
	e := expectation{name: logits, layer: -1, from: row}
	for _, p := range pairs {
		id := int(p[0])
		if id < 0 || float64(id) != p[0] {
			return e, fmt.Errorf("first_top10: %g is no token id", p[0])
		}
		e.at, e.data = append(e.at, id), append(e.data, float32(p[1]))
	}
	e.allowed = n.allowed(e.data) + rounding
	return e, nil
}

// experts is the routing of layer il, [positions][top_k] ids in any order.
func experts(il int, rows [][]float32, positions int) (expectation, error) {
	if len(rows) != positions || positions == 0 || len(rows[0]) == 0 {
		return expectation{}, fmt.Errorf("experts_by_layer_and_position: layer %d has no experts, or %d rows for %d tokens", il, len(rows), positions)
	}
	e := expectation{name: topkIDs, layer: il, cols: len(rows[0])}
	for _, ids := range rows {
		if len(ids) != e.cols {
			return expectation{}, errors.New("experts_by_layer_and_position: rows of different length")
		}
		e.data = append(e.data, slices.Sorted(slices.Values(ids))...)
	}
	return e, nil
}
