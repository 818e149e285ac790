// Package router turns a router's logits into the experts of a row: gating function, top-k, normalisation and scale.
//
// What does not live here: the matrix that makes the logits (package model) and where the experts are (the executors).
package router

import "math"

// Gating is the function that turns logits into selection scores and weights.
type Gating uint8

// The gating functions.
const (
	// SoftmaxTopK takes the softmax over all experts, then the top k of it.
	SoftmaxTopK Gating = iota
)

// Params says how the experts of a row are chosen.
type Params struct {
	Gating    Gating
	TopK      int  // experts a row
	Normalize bool // divide the chosen weights by their sum (norm_topk_prob)
}

// Route chooses the experts of one row from its logits: ids in rank order (highest score first, ties to the lowest id) and their
// weights, both of length TopK. scratch has at least len(logits) values.
func Route(ids []int32, weights, logits, scratch []float32, p Params) {
	prob := scratch[:len(logits)]
	softmax(prob, logits)
	for rank := range p.TopK {
		best := 0
		for e, v := range prob {
			if v > prob[best] {
				best = e
			}
		}
		ids[rank], weights[rank] = int32(best), prob[best]
		prob[best] = float32(math.Inf(-1))
	}
	if p.Normalize {
		var sum float32
		for _, w := range weights[:p.TopK] {
			sum += w
		}
		for i := range weights[:p.TopK] {
			weights[i] /= sum
		}
	}
}

func softmax(dst, x []float32) {
	top := x[0]
	for _, v := range x[1:] {
		top = max(top, v)
	}
	var sum float64
	for i, v := range x {
		e := math.Exp(float64(v - top))
		dst[i] = float32(e)
		sum += e
	}
	for i := range dst {
		dst[i] = float32(float64(dst[i]) / sum)
	}
}
