package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/coli-moe/coli/engine/sampler"
	"github.com/coli-moe/coli/engine/stop"
)

// Reason says why an answer ended.
type Reason string

// The reasons.
const (
	ReasonEOS         Reason = "end"         // the model ended it
	ReasonStop        Reason = "stop"        // a stop string appeared
	ReasonLength      Reason = "length"      // MaxTokens were generated
	ReasonContext     Reason = "context"     // the context is full
	ReasonInterrupted Reason = "interrupted" // the caller cancelled
)

// Request is one prompt to answer.
type Request struct {
	Prompt    []int32 // the whole conversation; what the session already holds of it is not computed again
	Sampler   *sampler.Sampler
	MaxTokens int // most tokens to generate; negative: until the context is full
	Stop      []string
	// Emit receives the answer's text as it comes, whole runes, nothing of a stop string. An error from it ends the answer.
	Emit func(text string) error
}

// Result is what an answer cost.
type Result struct {
	Reason       Reason
	PromptTokens int // of the request
	CachedTokens int // of these, already held by the session
	Generated    int // tokens drawn, an end-of-text token not counted
	Prefill      time.Duration
	Decode       time.Duration // from the first token's logits to the end
	// PairsPerToken is the number of routed experts computed for a token, over all layers.
	PairsPerToken float64
	// Experts is what the expert pipeline did for the answer; nil where all experts are in memory.
	Experts *ExpertStats
}

// EOS are the ids that end an answer: the union of config and generation_config, and of the vocabulary's end-of-turn tokens.
func (m *Model) EOS() []int32 {
	ids := make([]int32, 0, len(m.Config.EOS))
	for _, id := range m.Config.EOS {
		ids = append(ids, int32(id))
	}
	return ids
}

// Generate answers a request: it computes what the session lacks of the prompt, then draws tokens until one of the reasons to end. When
// ctx is cancelled the result so far is returned with ReasonInterrupted and ctx's error.
func (s *Session) Generate(ctx context.Context, r Request) (Result, error) {
	res := Result{PromptTokens: len(r.Prompt), Reason: ReasonLength}
	tok, err := s.m.Tokenizer()
	if err != nil {
		return res, err
	}
	match, err := stop.New(r.Stop)
	if err != nil {
		return res, err
	}
	if len(r.Prompt) >= s.size {
		return res, s.tooLong(len(r.Prompt)) // one token of room is needed for an answer
	}
	res.CachedTokens = s.reuse(r.Prompt)
	before := s.m.Stats()
	experts, streams, err := s.m.Experts()
	if err != nil {
		return res, err
	}
	start := time.Now()
	last, err := s.next(ctx, r.Prompt[res.CachedTokens:], r.Sampler)
	res.Prefill = time.Since(start)
	if err != nil {
		return res, interrupted(&res, err)
	}
	r.Sampler.Reset()
	for _, id := range r.Prompt {
		r.Sampler.Accept(id)
	}

	eos := s.m.EOS()
	stream := tok.NewStream(false)
	decode := time.Now()
	finish := func(err error) (Result, error) {
		res.Decode = time.Since(decode)
		rows := len(s.tokens) - res.CachedTokens // computed for this answer: the last token drawn may not be among them
		if now, _, ferr := s.m.Experts(); streams && ferr == nil {
			now.Figures = now.Since(experts.Figures)
			res.Experts = &now
		}
		res.PairsPerToken = float64(s.m.Stats().Pairs()-before.Pairs()) / float64(max(rows, 1))
		return res, interrupted(&res, err)
	}
	emit := func(text string) error {
		if text == "" {
			return nil
		}
		return r.Emit(text)
	}
	for r.MaxTokens < 0 || res.Generated < r.MaxTokens {
		id, err := last.draw(r.Sampler)
		if err != nil {
			return finish(err)
		}
		if slices.Contains(eos, id) {
			res.Reason = ReasonEOS
			break
		}
		r.Sampler.Accept(id)
		res.Generated++
		text, stopped := match.Push(stream.Push(id))
		if err := emit(text); err != nil {
			return finish(err)
		}
		if stopped {
			res.Reason = ReasonStop
			return finish(nil)
		}
		if len(s.tokens) >= s.size {
			res.Reason = ReasonContext
			break
		}
		if res.Generated == r.MaxTokens {
			break
		}
		if last, err = s.next(ctx, []int32{id}, r.Sampler); err != nil {
			return finish(errors.Join(err, flush(stream.Flush(), match, emit)))
		}
	}
	return finish(flush(stream.Flush(), match, emit))
}

// flush emits what the stream and the stop matcher held back.
func flush(tail string, match *stop.Matcher, emit func(string) error) error {
	text, stopped := match.Push(tail)
	if !stopped {
		text += match.Flush()
	}
	return emit(text)
}

// interrupted sets the reason when err is a cancellation.
func interrupted(res *Result, err error) error {
	if errors.Is(err, context.Canceled) {
		res.Reason = ReasonInterrupted
	}
	return err
}

// reuse keeps the longest prefix of prompt that the session holds, at most all but its last token (whose logits are wanted), forgets
// the rest, and returns its length.
func (s *Session) reuse(prompt []int32) int {
	n := 0
	for n < min(len(s.tokens), len(prompt)-1) && s.tokens[n] == prompt[n] {
		n++
	}
	n = max(n, 0)
	s.Truncate(n)
	return n
}
