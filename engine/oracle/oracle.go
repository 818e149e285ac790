// Package oracle compares a model's run with the outputs of a reference implementation that were stored beside the checkpoint: greedy
// ids, logits, hidden states and routing.
//
// Two shapes of folder are read, both a checkpoint with an oracle.json: the seeded fixtures of testdata/oracles (fixture.go), and a
// trained model with its greedy continuations (continuations.go).
//
// What does not live here: running the model (package engine) and printing (cmd/coli).
package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
)

// tolerance is how many times the reference's own float noise a value may be off. The noise is what the logits move by when the
// embedding is perturbed by 1e-6 (relative), or what a second implementation differed by: sums in another order stay well below 8 of it.
const tolerance = 8

// floor is the smallest tolerance relative to the largest absolute value of a tensor: about 80 float32 roundings.
const floor = 1e-5

// Oracle is what a reference implementation said about a checkpoint.
type Oracle struct {
	Dir     string
	prompts []prompt
}

// prompt is an input with its reference outputs.
type prompt struct {
	ids    []int32
	greedy []int32
	margin []float64 // top1-top2 distance of the logits at each greedy step; may be shorter than greedy
	want   []expectation
}

// expectation is a named intermediate, or rows of it. Expectations are in the order of computation.
type expectation struct {
	name    string // as engine.Session.Observe names it
	layer   int    // -1 outside the layers
	from    int    // the first row
	cols    int
	at      []int     // the columns given; nil for all
	data    []float32 // [rows, cols], or [rows, len(at)]
	allowed float64   // largest absolute difference
}

// Names of intermediates that the engine gives and the oracles have.
const (
	embed        = "embed"
	routerLogits = "ffn_moe_logits"
	topkIDs      = "ffn_moe_topk"
	topkWeights  = "ffn_moe_weights"
	layerOut     = "layer_out"
	finalNorm    = "final_norm"
	logits       = "logits"
)

// file is the name of the reference outputs in their folder.
const file = "oracle.json"

// Open reads the reference outputs of the folder dir.
func Open(dir string) (*Oracle, error) {
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil, fmt.Errorf("%s: no such file; give a folder that holds a checkpoint and its %s", path, file)
	case err != nil:
		return nil, err
	}
	prompts, err := parse(dir, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, p := range prompts {
		if len(p.ids) == 0 || len(p.greedy) == 0 {
			return nil, fmt.Errorf("%s: a prompt without token ids or greedy continuation; only oracles of text generators can be run", path)
		}
	}
	return &Oracle{Dir: dir, prompts: prompts}, nil
}

// parse tells the two shapes apart by the keys they have.
func parse(dir string, data []byte) ([]prompt, error) {
	var kind struct {
		Schema *int
		Greedy json.RawMessage
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return nil, err
	}
	switch {
	case kind.Schema != nil && *kind.Schema == 1:
		return parseFixture(dir, data)
	case kind.Schema != nil:
		return nil, fmt.Errorf("schema %d is not known; coli reads schema 1", *kind.Schema)
	case kind.Greedy != nil:
		return parseContinuations(data)
	}
	return nil, errors.New(`neither "schema" nor "greedy" is there: this is no oracle that coli knows`)
}

// noise is a reference's float noise relative to its largest logit.
type noise float64

func newNoise(change, absmax float64) (noise, error) {
	if !(change >= 0) || !(absmax > 0) || math.IsInf(change, 0) || math.IsInf(absmax, 0) {
		return 0, fmt.Errorf("noise %g of logits up to %g: both must be finite and the latter positive", change, absmax)
	}
	return noise(change / absmax), nil
}

// allowed is the largest difference a tensor with these values may show.
func (n noise) allowed(data []float32) float64 {
	top := 0.0
	for _, v := range data {
		top = max(top, math.Abs(float64(v)))
	}
	return max(tolerance*float64(n), floor) * top
}
