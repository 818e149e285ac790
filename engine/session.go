package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"

	"github.com/coli-moe/coli/engine/sampler"
	"github.com/coli-moe/coli/model"
	"github.com/coli-moe/coli/ops"
)

// Session is one conversation: the tokens seen so far and the layer states that belong to them.
type Session struct {
	// Observe is called with every named intermediate of a step while set; it slows a step down.
	Observe ops.Observer

	m      *Model
	size   int // context: the most tokens it may hold
	tokens []int32
	step   model.Step
	held   int64 // bytes of layer state
	all    []int // scratch: row numbers of a step
	seen   int   // intermediates of a step that Observe was shown
}

// NewSession returns an empty session that holds up to size tokens; 0 takes the model's own maximum. A larger size than the model was
// trained for is refused, since the result would be noise.
func (m *Model) NewSession(size int) (*Session, error) {
	size, err := m.contextSize(size)
	if err != nil {
		return nil, err
	}
	s := &Session{m: m, size: size}
	s.step.State = m.newStates()
	return s, nil
}

// contextSize is how many tokens a session of the size asked for holds.
func (m *Model) contextSize(size int) (int, error) {
	limit := m.Config.MaxPositionEmbeddings
	switch {
	case size < 0:
		return 0, fmt.Errorf("--ctx-size %d: a context cannot be negative; 0 takes the model's maximum of %d", size, limit)
	case size == 0:
		size = min(limit, maxContext)
	case limit > 0 && size > limit:
		return 0, fmt.Errorf("--ctx-size %d: the model was trained for at most %d tokens; use %d or less, or 0 for the maximum", size, limit, limit)
	}
	switch {
	case size <= 0:
		return 0, errors.New("the checkpoint does not say how long a context it supports; give --ctx-size")
	case size > maxContext:
		return 0, fmt.Errorf("--ctx-size %d: at most %d tokens can be told apart", size, maxContext)
	}
	return size, nil
}

// maxContext keeps positions, and the bytes of any model's layer state, far from what their types hold.
const maxContext = 1 << 30

// Size is the most tokens the session may hold.
func (s *Session) Size() int { return s.size }

// Tokens are the tokens held, prompt and answer; valid until the session is used again.
func (s *Session) Tokens() []int32 { return s.tokens }

// Close frees what a device holds for the session, which must not be used afterwards. It may be left out before the model is closed.
func (s *Session) Close() {
	if c := s.m.binding.card; c != nil {
		_ = c.Release(slices.Concat(s.step.State...)...) // a device that fails at this has its steps to say so
	}
	s.step.State = nil
	s.account()
}

// Truncate forgets the tokens from n on.
func (s *Session) Truncate(n int) {
	if n >= len(s.tokens) {
		return
	}
	_ = s.m.settle() // if it fails, so does the next step, which goes to the CPU
	s.tokens = s.tokens[:n]
	for _, layer := range s.step.State {
		for _, kv := range layer {
			kv.Truncate(n)
		}
	}
}

// ContextError reports tokens that do not fit the context.
type ContextError struct {
	Tokens int // of the prompt, or of all that the session was to hold
	Size   int // of the context
	Limit  int // the largest context of the model
}

func (e *ContextError) Error() string {
	try := "shorten the prompt"
	if e.Size < e.Limit {
		try += fmt.Sprintf(" or raise --ctx-size, up to %d", e.Limit)
	}
	return fmt.Sprintf("%d tokens do not fit the context of %d tokens, which holds the answer too; %s", e.Tokens, e.Size, try)
}

func (s *Session) tooLong(tokens int) error {
	return &ContextError{tokens, s.size, max(s.size, s.m.Config.MaxPositionEmbeddings)}
}

// TokenError reports a token id outside the vocabulary.
type TokenError struct {
	ID   int32
	Size int
}

func (e *TokenError) Error() string {
	return fmt.Sprintf("token %d is outside the model's vocabulary of %d; tokenizer and weights do not belong together", e.ID, e.Size)
}

// NonFiniteError reports that a step produced NaN or infinity.
type NonFiniteError struct {
	Name  string // the first intermediate at fault
	Layer int    // its layer, -1 outside the layers
}

func (e *NonFiniteError) Error() string {
	where := fmt.Sprintf("layer %d", e.Layer)
	if e.Layer < 0 {
		where = "outside the layers"
	}
	return fmt.Sprintf("the model produced a non-finite value in %s (%s); the weights are damaged or of a format that is not what they declare", e.Name, where)
}

// Forward appends ids, in chunks, and returns the logits [vocab_size] that follow the last of them, valid until the next call. When ctx
// is cancelled, a layer later at most, the session holds the chunks that were completed.
func (s *Session) Forward(ctx context.Context, ids []int32) ([]float32, error) {
	var logits []float32
	err := s.forward(ctx, ids, want{}, func(_ int, p prediction) { logits = p.logits })
	return logits, err
}

// Greedy appends ids and returns what greedy decoding needs after the last of them: its logits as Forward does or, where the head is on a
// device, which finds the largest one's token, that token and no logits.
func (s *Session) Greedy(ctx context.Context, ids []int32) (token int32, logits []float32, err error) {
	var p prediction
	err = s.forward(ctx, ids, want{greedy: true}, func(_ int, last prediction) { p = last })
	return p.token, p.logits, err
}

// next appends ids and returns what follows the last of them, for sam to draw from.
func (s *Session) next(ctx context.Context, ids []int32, sam *sampler.Sampler) (p prediction, err error) {
	err = s.forward(ctx, ids, want{greedy: sam.Greedy()}, func(_ int, last prediction) { p = last })
	return p, err
}

// want says what a step is computed for: the logits after the last of its rows, unless one of these is set.
type want struct {
	all    bool // those after every row
	greedy bool // no logits, where the device can tell the largest one's token
}

// prediction is what follows a token.
type prediction struct {
	logits []float32 // [vocab_size]; nil where token was found on the device
	token  int32     // of the largest logit
}

// draw returns the next token.
func (p prediction) draw(sam *sampler.Sampler) (int32, error) {
	if p.logits == nil {
		return p.token, nil
	}
	return sam.Sample(p.logits)
}

// ForwardAll appends ids and calls fn with the logits that follow each of them, by position in the session. The logits are valid during
// the call.
func (s *Session) ForwardAll(ctx context.Context, ids []int32, fn func(pos int, logits []float32)) error {
	return s.forward(ctx, ids, want{all: true}, func(pos int, p prediction) { fn(pos, p.logits) })
}

func (s *Session) forward(ctx context.Context, ids []int32, w want, fn func(pos int, p prediction)) error {
	if len(ids) == 0 {
		return errors.New("nothing to compute: the prompt has no tokens")
	}
	if n := len(s.tokens) + len(ids); n > s.size {
		return s.tooLong(n)
	}
	for _, id := range ids {
		if id < 0 || int(id) >= s.m.Config.VocabSize {
			return &TokenError{id, s.m.Config.VocabSize}
		}
	}
	s.reserve(len(s.tokens) + len(ids))
	decoding := len(ids) == 1 && len(s.tokens) > 0
	for len(ids) > 0 {
		n := min(len(ids), s.m.chunk)
		if w.all && s.m.binding.head {
			n = min(n, headRows)
		}
		last := n == len(ids)
		from := n
		switch {
		case w.all:
			from = 0
		case last:
			from = n - 1
		}
		if err := s.chunk(ctx, ids[:n], from, w.greedy, fn); err != nil {
			return err
		}
		s.m.computed(n, decoding)
		ids = ids[n:]
	}
	return nil
}

// reserveStep is what room for layer state is rounded up to, in tokens: a short question does not take room again for each word of its answer.
const reserveStep = 256

// reserve takes memory for the layer state of n tokens, before any step that writes it: rows of a long prompt, hundreds of megabytes, would
// be copied again and again if room came with each chunk.
func (s *Session) reserve(n int) {
	n, grown := min((n+reserveStep-1)/reserveStep*reserveStep, s.size), false
	for _, layer := range s.step.State {
		for _, kv := range layer {
			if kv.Holds(n) {
				continue
			}
			_ = s.m.settle() // rows on their way arrive before the memory moves; if it fails, so does the next step, which goes to the CPU
			kv.Reserve(n, s.size)
			grown = true
		}
	}
	if grown {
		s.account()
	}
}

// chunk runs one step over ids and hands fn what follows the rows from `from` on.
func (s *Session) chunk(ctx context.Context, ids []int32, from int, greedy bool, fn func(pos int, p prediction)) error {
	s.m.clock.Start()
	defer s.m.clock.Stop()
	pos := len(s.tokens)
	begin := s.m.begin(ctx, len(ids))
	s.m.remember()
	out, err := s.run(ctx, ids, from, greedy)
	if err == nil && !out.finite() {
		out, err = s.locate(ctx, ids, from)
	}
	if err != nil {
		return err
	}
	s.m.end(begin, len(ids))
	s.tokens = append(s.tokens, ids...)
	for r := range len(ids) - from {
		fn(pos+from+r, out.row(r, s.m.Config.VocabSize))
	}
	return nil
}

// output is what a step ends in, for each row that was asked for.
type output struct {
	logits []float32 // [rows, vocab_size]
	tokens []int32   // of the largest logits, -1 where one is not finite; logits are nil then
}

func (o output) finite() bool { return finite(o.logits) && !slices.Contains(o.tokens, -1) }

func (o output) row(r, vocab int) prediction {
	if o.tokens != nil {
		return prediction{token: o.tokens[r]}
	}
	return prediction{logits: o.logits[r*vocab : (r+1)*vocab : (r+1)*vocab]}
}

// run computes a step. Where the device fails it computes it once more, from its tokens, on the CPU: the host has what the earlier steps
// left. An intermediate is observed once.
func (s *Session) run(ctx context.Context, ids []int32, from int, greedy bool) (output, error) {
	s.seen = 0
	observe := s.Observe
	if observe != nil {
		observe = func(name string, layer, rows, cols int, data []float32) {
			s.seen++
			s.Observe(name, layer, rows, cols, data)
		}
	}
	out, err := s.try(ctx, ids, from, greedy, observe)
	if failure, ok := errors.AsType[*deviceError](err); ok {
		s.m.abandon(failure.err)
		s.m.recount()
		if observe != nil {
			observe = func(name string, layer, rows, cols int, data []float32) {
				if s.seen--; s.seen < 0 {
					s.Observe(name, layer, rows, cols, data)
				}
			}
		}
		out, err = s.try(ctx, ids, from, greedy, observe)
	}
	return out, err
}

// deviceError is what the device failed of in a step.
type deviceError struct{ err error }

func (e *deviceError) Error() string { return e.err.Error() }

func (e *deviceError) Unwrap() error { return e.err }

// try computes a step on the executors its layers are bound to. A chunk of a large model takes a minute, so ctx is looked at before each
// layer. Rows of layer state that a cancelled step wrote lie behind the tokens held, and the next step writes them anew.
func (s *Session) try(ctx context.Context, ids []int32, from int, greedy bool, observe ops.Observer) (out output, err error) {
	st, m := &s.step, s.m
	var exec ops.Executor = m.exec
	// A page of a mapped file that can no longer be read, and an expert that could not be had at all, come as panics out of an op; so does
	// whatever the device fails of.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverStep(&err, func() bool { return exec != ops.Executor(m.exec) })
	m.exec.Reset()
	if m.binding.card != nil {
		m.binding.card.Reset()
	}
	st.Tokens, st.Observe = ids, observe
	st.Places, s.all = st.Places[:0], s.all[:0]
	for r := range ids {
		st.Places = append(st.Places, ops.Place{Pos: len(s.tokens) + r})
		if r >= from {
			s.all = append(s.all, r)
		}
	}
	exec = m.at(0)
	m.enter(exec)
	x := m.net.Embed(exec, st)
	for il := range m.net.Layers() {
		if err := ctx.Err(); err != nil {
			return output{}, err
		}
		x, exec = handOver(m.at(il), exec, x), m.at(il)
		m.enter(exec)
		st.Predict = nil
		if exec == ops.Executor(m.exec) {
			st.Predict, st.Depth, st.Horizon = m.predict, m.depth, m.horizon
		}
		x = m.net.Layer(exec, st, il, x)
	}
	if len(s.all) > 0 {
		x, exec = handOver(m.at(m.net.Layers()), exec, x), m.at(m.net.Layers())
		m.enter(exec)
		logits := m.net.Head(exec, st, x, s.all)
		if greedy && m.binding.head {
			out.tokens = m.binding.card.ArgMax(logits)
		} else {
			out.logits = exec.Download(logits)
		}
	}
	if m.binding.card != nil {
		m.enter(m.binding.card)
		if err := m.binding.card.Flush(); err != nil {
			return output{}, &deviceError{err}
		}
	}
	m.enter(m.exec)
	return out, nil
}

// recoverStep turns the panics that a step's input, or the device it runs on, can cause into errors; a panic that is a mistake of coli's
// stays one.
func recoverStep(err *error, onDevice func() bool) {
	switch p := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }: // runtime's memory fault
		*err = errors.New("a weight file was truncated, or could not be read, while it was in use; check the disk and the file, and start again")
	case *ops.Failure:
		if *err = p.Err; onDevice() {
			*err = &deviceError{p.Err}
		}
	default:
		panic(p)
	}
}

// locate repeats a step that gave non-finite logits, on the CPU, and names the first intermediate that was not finite. Positions are
// written again with the same values, so the repetition sees what the first run saw. Where the CPU finds nothing wrong the device computes
// wrongly: it is not used any more, and the repetition is the step.
func (s *Session) locate(ctx context.Context, ids []int32, from int) (output, error) {
	suspect := s.m.binding.card != nil
	s.m.account() // what the step has routed, to be forgotten
	if err := s.m.settle(); err != nil {
		s.m.abandon(err)
	}
	bound := s.m.binding
	s.m.binding = binding{}
	out, first, err := s.scan(ctx, ids, from)
	if suspect && first != nil && !s.stateFinite() {
		if err = s.replay(ctx); err == nil {
			out, first, err = s.scan(ctx, ids, from)
		}
	}
	s.m.binding = bound
	switch {
	case err != nil:
		return output{}, err
	case first != nil:
		return output{}, first
	case !suspect:
		return output{}, &NonFiniteError{"logits", -1}
	case bound.card != nil:
		s.m.abandon(errors.New("it computes values that are not finite where the CPU's are"))
	}
	return out, nil
}

// scan computes a step once more and says which intermediate was the first that is not finite; nil if all are.
func (s *Session) scan(ctx context.Context, ids []int32, from int) (out output, first *NonFiniteError, err error) {
	s.m.recount()
	out, err = s.try(ctx, ids, from, false, func(name string, layer, _, _ int, data []float32) {
		if first == nil && !finite(data) {
			first = &NonFiniteError{name, layer}
		}
	})
	return out, first, err
}

// stateFinite says whether the layer state of the tokens held is. Nobody has looked at the logits of all of them.
func (s *Session) stateFinite() bool {
	for _, layer := range s.step.State {
		for _, kv := range layer {
			n := min(len(s.tokens), kv.Len())
			if !finite(kv.K[:n*kv.Spec.KWidth]) || !finite(kv.V[:n*kv.Spec.VWidth]) {
				return false
			}
		}
	}
	return true
}

// replay computes the layer state of the tokens held once more. If it is cancelled the session holds those that it came to.
func (s *Session) replay(ctx context.Context) error {
	held := s.tokens
	s.tokens = held[:0]
	for n := 0; n < len(held); n = len(s.tokens) {
		ids := held[n:min(n+s.m.chunk, len(held))]
		if _, err := s.try(ctx, ids, len(ids), false, nil); err != nil {
			return err
		}
		s.tokens = held[:n+len(ids)]
	}
	return nil
}

func finite(x []float32) bool {
	for _, v := range x {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return false
		}
	}
	return true
}
