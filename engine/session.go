package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"

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
	all    []int // scratch: row numbers of a step
}

// NewSession returns an empty session that holds up to size tokens; 0 takes the model's own maximum. A larger size than the model was
// trained for is refused, since the result would be noise.
func (m *Model) NewSession(size int) (*Session, error) {
	limit := m.Config.MaxPositionEmbeddings
	switch {
	case size < 0:
		return nil, fmt.Errorf("--ctx-size %d: a context cannot be negative; 0 takes the model's maximum of %d", size, limit)
	case size == 0:
		size = limit
	case limit > 0 && size > limit:
		return nil, fmt.Errorf("--ctx-size %d: the model was trained for at most %d tokens; use %d or less, or 0 for the maximum", size, limit, limit)
	}
	if size <= 0 {
		return nil, errors.New("the checkpoint does not say how long a context it supports; give --ctx-size")
	}
	s := &Session{m: m, size: size}
	s.step.State = m.newStates()
	return s, nil
}

// Size is the most tokens the session may hold.
func (s *Session) Size() int { return s.size }

// Tokens are the tokens held, prompt and answer; valid until the session is used again.
func (s *Session) Tokens() []int32 { return s.tokens }

// Truncate forgets the tokens from n on.
func (s *Session) Truncate(n int) {
	if n >= len(s.tokens) {
		return
	}
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
	err := s.forward(ctx, ids, false, func(_ int, l []float32) { logits = l })
	return logits, err
}

// ForwardAll appends ids and calls fn with the logits that follow each of them, by position in the session. The logits are valid during
// the call.
func (s *Session) ForwardAll(ctx context.Context, ids []int32, fn func(pos int, logits []float32)) error {
	return s.forward(ctx, ids, true, fn)
}

func (s *Session) forward(ctx context.Context, ids []int32, all bool, fn func(pos int, logits []float32)) error {
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
	for len(ids) > 0 {
		n := min(len(ids), s.m.chunk)
		last := n == len(ids)
		from := n
		switch {
		case all:
			from = 0
		case last:
			from = n - 1
		}
		if err := s.chunk(ctx, ids[:n], from, fn); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// chunk runs one step over ids and hands fn the logits of the rows from `from` on.
func (s *Session) chunk(ctx context.Context, ids []int32, from int, fn func(pos int, logits []float32)) error {
	pos := len(s.tokens)
	begin := s.m.begin(ctx, &s.step)
	logits, err := s.run(ctx, ids, from, s.Observe)
	if err != nil {
		return err
	}
	s.m.end(begin, len(ids))
	if logits != nil && !finite(logits.Data) {
		return s.locate(ctx, ids, from)
	}
	s.tokens = append(s.tokens, ids...)
	if logits != nil {
		for r := range logits.Rows {
			fn(pos+from+r, logits.Row(r))
		}
	}
	return nil
}

// run computes a step; the logits are nil when no row asks for them. A chunk of a large model takes a minute, so ctx is looked at before
// each layer. Rows of layer state that a cancelled step wrote lie behind the tokens held, and the next step writes them anew.
func (s *Session) run(ctx context.Context, ids []int32, from int, observe ops.Observer) (_ *ops.Tensor, err error) {
	// A page of a mapped file that can no longer be read, and an expert that could not be had at all, come as panics out of an op.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverStep(&err)
	st, net, exec := &s.step, s.m.net, s.m.exec
	exec.Reset()
	st.Tokens, st.Observe = ids, observe
	st.Places, s.all = st.Places[:0], s.all[:0]
	for r := range ids {
		st.Places = append(st.Places, ops.Place{Pos: len(s.tokens) + r})
		if r >= from {
			s.all = append(s.all, r)
		}
	}
	x := net.Embed(exec, st)
	for il := range net.Layers() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		x = net.Layer(exec, st, il, x)
	}
	if len(s.all) == 0 {
		return nil, nil
	}
	logits := net.Head(exec, st, x, s.all)
	exec.Download(logits)
	return logits, nil
}

// recoverStep turns the panics that a step's input can cause into errors; a panic that is a mistake of coli's stays one.
func recoverStep(err *error) {
	switch p := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }: // runtime's memory fault
		*err = errors.New("a weight file was truncated, or could not be read, while it was in use; check the disk and the file, and start again")
	case *ops.Failure:
		*err = p.Err
	default:
		panic(p)
	}
}

// locate repeats a step that gave non-finite logits and names the first intermediate that was not finite. Positions are written again
// with the same values, so the repetition sees what the first run saw.
func (s *Session) locate(ctx context.Context, ids []int32, from int) error {
	var first *NonFiniteError
	_, err := s.run(ctx, ids, from, func(name string, layer, _, _ int, data []float32) {
		if first == nil && !finite(data) {
			first = &NonFiniteError{name, layer}
		}
	})
	switch {
	case first != nil:
		return first
	case err != nil:
		return err
	}
	return &NonFiniteError{"logits", -1}
}

func finite(x []float32) bool {
	for _, v := range x {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return false
		}
	}
	return true
}
