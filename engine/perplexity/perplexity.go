// Package perplexity measures how well a model predicts a text, by llama.cpp's convention, so that figures can be set side by side.
//
// The token ids of the text are cut into windows of n_ctx; each window is evaluated on its own from an empty cache, and the tokens at
// positions n_ctx/2+1 … n_ctx-1 are scored. The result is exp of the mean negative log-likelihood over all scored tokens.
//
// Tokenizing is the caller's matter: once, without BOS, without recognising control tokens.
package perplexity

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/coli-moe/coli/engine"
)

// DefaultContext is llama.cpp's window.
const DefaultContext = 512

// Options of Measure.
type Options struct {
	Context int // tokens of a window, at least 4; 0: DefaultContext
	Windows int // how many windows to score; 0: as many as the text has
	// Progress is called after each window with its number, from 1, and the perplexity so far.
	Progress func(window int, perplexity float64)
}

// Result of Measure.
type Result struct {
	Perplexity float64 `json:"perplexity"`
	Error      float64 `json:"standard_error"` // of Perplexity
	Context    int     `json:"context"`
	Windows    int     `json:"windows"`
	Scored     int     `json:"tokens_scored"`
}

// Measure scores ids. Fewer ids than one window, or than the windows asked for, are an error.
func Measure(ctx context.Context, m *engine.Model, ids []int32, opt Options) (Result, error) {
	n := opt.Context
	if n == 0 {
		n = DefaultContext
	}
	if n < 4 {
		return Result{}, fmt.Errorf("--ctx-size %d: a window needs at least 4 tokens", n)
	}
	windows := len(ids) / n
	switch {
	case windows == 0:
		return Result{}, fmt.Errorf("the text has %d tokens, less than one window of %d; use a longer text or a smaller --ctx-size", len(ids), n)
	case opt.Windows < 0 || opt.Windows > windows:
		return Result{}, fmt.Errorf("--chunks %d: the text has %d windows of %d tokens; give at most as many, or 0 for all", opt.Windows, windows, n)
	case opt.Windows > 0:
		windows = opt.Windows
	}
	s, err := m.NewSession(n)
	if err != nil {
		return Result{}, err
	}
	defer s.Close()
	var sum likelihood
	for w := range windows {
		s.Truncate(0)
		window := ids[w*n : (w+1)*n]
		half := n / 2
		if _, err := s.Forward(ctx, window[:half]); err != nil {
			return Result{}, err
		}
		err := s.ForwardAll(ctx, window[half:n-1], func(pos int, logits []float32) {
			sum.add(negLogProb(logits, window[pos+1]))
		})
		if err != nil {
			return Result{}, err
		}
		if opt.Progress != nil {
			ppl, _ := sum.perplexity()
			opt.Progress(w+1, ppl)
		}
	}
	ppl, dev := sum.perplexity()
	return Result{Perplexity: ppl, Error: dev, Context: n, Windows: windows, Scored: sum.n}, nil
}

// negLogProb is -ln softmax(logits)[id], in nats.
func negLogProb(logits []float32, id int32) float64 {
	top := float64(slices.Max(logits))
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l) - top)
	}
	return math.Log(sum) + top - float64(logits[id])
}

// likelihood adds up negative log-probabilities.
type likelihood struct {
	n           int
	sum, square float64
}

func (l *likelihood) add(nll float64) {
	l.n++
	l.sum += nll
	l.square += nll * nll
}

// perplexity returns exp of the mean and its standard error, which is that of the mean carried through exp to first order.
func (l *likelihood) perplexity() (ppl, dev float64) {
	n := float64(l.n)
	mean := l.sum / n
	ppl = math.Exp(mean)
	if variance := l.square/n - mean*mean; l.n > 1 && variance > 0 {
		dev = ppl * math.Sqrt(variance/(n-1))
	}
	return ppl, dev
}
