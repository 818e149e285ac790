// Package router turns a router's logits into the experts of a row: gating function, selection bias, group limit, top-k, normalisation
// and scale. It also keeps the usage history, how often each expert was routed to.
//
// What does not live here: the matrix that makes the logits (package model) and where the experts are (package tier).
package router

import (
	"fmt"
	"math"
)

// Gating is the function that turns logits into scores.
type Gating uint8

// The gating functions, by the names of the field.
const (
	// SoftmaxTopK takes the softmax over all experts, then the top k of it (Mixtral, OLMoE, Qwen3).
	SoftmaxTopK Gating = iota
	// TopKSoftmax takes the top k of the logits, then the softmax over these (gpt-oss).
	TopKSoftmax
	// Sigmoid scores each expert for itself (DeepSeek V3, GLM, Kimi, MiMo, MiniMax).
	Sigmoid
	// SqrtSoftplus scores each expert with sqrt(ln(1 + e^logit)) (DeepSeek V4).
	SqrtSoftplus
)

// Params says how the experts of a row are chosen.
type Params struct {
	Gating    Gating
	TopK      int  // experts a row (num_experts_per_tok)
	Normalize bool // divide the chosen weights by their sum (norm_topk_prob)
	// Scale multiplies the weights, after normalisation (routed_scaling_factor). 0 is 1.
	Scale float32
	// Bias is added to an expert's score to choose, and not in its weight (e_score_correction_bias). One value an expert; nil is none.
	Bias []float32
	// Groups is into how many equal runs of experts the layer is cut, and TopKGroups from how many of them experts are taken: the groups
	// whose two best selection scores have the highest sums (n_group, topk_group). 0 or 1 group is no limit.
	Groups, TopKGroups int
}

// maxGroups bounds n_group, whose scores Route keeps on its stack. Models have 8 at most.
const maxGroups = 64

// tiny is added to the sum that weights are divided by (1e-20 in the published implementations), for the case that all scores are 0.
const tiny = 1e-20

// Check says what Route could not do with these parameters and that number of experts.
func (p Params) Check(experts int) error {
	switch grouped := p.Groups > 1; {
	case p.Gating > SqrtSoftplus:
		return fmt.Errorf("router: no gating function %d", p.Gating)
	case p.TopK < 1 || p.TopK > experts:
		return fmt.Errorf("router: the top %d of %d experts (num_experts_per_tok)", p.TopK, experts)
	case p.Bias != nil && len(p.Bias) != experts:
		return fmt.Errorf("router: %d selection biases for %d experts (e_score_correction_bias)", len(p.Bias), experts)
	case grouped && (p.Groups > maxGroups || experts%p.Groups != 0):
		return fmt.Errorf("router: %d experts in %d groups (n_group); at most %d, all equal", experts, p.Groups, maxGroups)
	case grouped && (p.TopKGroups < 1 || p.TopKGroups > p.Groups || p.TopKGroups*(experts/p.Groups) < p.TopK):
		return fmt.Errorf("router: the top %d experts of %d groups of %d (topk_group)", p.TopK, p.TopKGroups, experts/p.Groups)
	}
	return nil
}

// Route chooses the experts of one row from its logits: ids in rank order (highest selection score first, ties to the lowest id) and their
// weights, both of length TopK. scratch has at least len(logits) values. The parameters have passed Check for that many experts.
// Whatever the logits, the ids are distinct and those of experts; logits that are not numbers are chosen last.
func Route(ids []int32, weights, logits, scratch []float32, p Params) {
	choice := scratch[:len(logits)]
	g := scores(choice, logits, p.Gating)
	for e, b := range p.Bias {
		choice[e] += b
	}
	ids, weights = ids[:p.TopK], weights[:p.TopK]
	topK(ids, choice, p)
	if p.Gating == TopKSoftmax {
		var sum float64
		for _, id := range ids {
			sum += math.Exp(float64(logits[id] - logits[ids[0]]))
		}
		for i, id := range ids {
			weights[i] = float32(math.Exp(float64(logits[id]-logits[ids[0]])) / sum)
		}
	} else {
		for i, id := range ids {
			weights[i] = g.score(logits[id])
		}
	}
	scale := p.Scale
	if scale == 0 {
		scale = 1
	}
	if p.Normalize {
		var sum float32
		for _, w := range weights {
			sum += w
		}
		sum += tiny
		for i := range weights {
			weights[i] /= sum
		}
	}
	if scale != 1 {
		for i := range weights {
			weights[i] *= scale
		}
	}
}

// gate is a gating function with what it needs to know of all logits.
type gate struct {
	kind Gating
	top  float32 // softmax: the highest logit
	sum  float64 // softmax: of exp(logit - top)
}

// scores fills dst with every expert's score, before bias, and returns the gate that gives the same again.
func scores(dst, logits []float32, kind Gating) gate {
	g := gate{kind: kind}
	if kind != SoftmaxTopK {
		for e, l := range logits {
			dst[e] = g.score(l)
		}
		return g
	}
	g.top = logits[0]
	for _, l := range logits[1:] {
		g.top = max(g.top, l)
	}
	for e, l := range logits {
		x := math.Exp(float64(l - g.top))
		dst[e] = float32(x)
		g.sum += x
	}
	for e, x := range dst {
		dst[e] = float32(float64(x) / g.sum)
	}
	return g
}

// score is an expert's score, before bias.
func (g gate) score(logit float32) float32 {
	x := float64(logit)
	switch g.kind {
	case SoftmaxTopK:
		return float32(float64(float32(math.Exp(float64(logit-g.top)))) / g.sum)
	case Sigmoid:
		return float32(1 / (1 + math.Exp(-x)))
	case SqrtSoftplus:
		return float32(math.Sqrt(max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))))
	default: // TopKSoftmax chooses by the logits
		return logit
	}
}

// topK fills ids with the experts of the highest selection scores, of the groups that count.
func topK(ids []int32, choice []float32, p Params) {
	if p.Groups <= 1 {
		insert(ids, 0, choice, 0, len(choice))
		return
	}
	var sums [maxGroups]float32
	size := len(choice) / p.Groups
	for g := range p.Groups {
		sums[g] = twoBest(choice[g*size : (g+1)*size])
	}
	n := 0
	for g := range p.Groups {
		ahead := 0 // groups that are chosen before this one
		for other := range p.Groups {
			if better(sums[other], sums[g]) || other < g && !better(sums[g], sums[other]) {
				ahead++
			}
		}
		if ahead < p.TopKGroups {
			n = insert(ids, n, choice, g*size, (g+1)*size)
		}
	}
}

// insert puts the experts from first to before end into ids, of which n are filled in order of rank, and returns how many are now.
func insert(ids []int32, n int, choice []float32, first, end int) int {
	for e := first; e < end; e++ {
		if n == len(ids) && !better(choice[e], choice[ids[n-1]]) {
			continue
		}
		i := n
		if n == len(ids) {
			i--
		} else {
			n++
		}
		for ; i > 0 && better(choice[e], choice[ids[i-1]]); i-- {
			ids[i] = ids[i-1]
		}
		ids[i] = int32(e)
	}
	return n
}

// twoBest is the sum of a group's two highest selection scores.
func twoBest(choice []float32) float32 {
	if len(choice) == 1 {
		return choice[0]
	}
	first, second := choice[0], choice[1]
	if better(second, first) {
		first, second = second, first
	}
	for _, c := range choice[2:] {
		if better(c, first) {
			first, second = c, first
		} else if better(c, second) {
			second = c
		}
	}
	return first + second
}

// better says whether a ranks before b. Anything ranks before what is not a number.
func better(a, b float32) bool { return a > b || b != b && a == a }
