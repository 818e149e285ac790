package engine

import (
	"cmp"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coli-moe/coli/engine/sampler"
	"github.com/coli-moe/coli/internal/sharedtest"
)

func load(t *testing.T, path string, opt Options) *Model {
	t.Helper()
	if opt.fake == nil { // whatever this machine has
		opt.Device = cmp.Or(opt.Device, DeviceNone)
	}
	m, err := Load(t.Context(), path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func session(t *testing.T, m *Model, size int) *Session {
	t.Helper()
	s, err := m.NewSession(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// storyFile is the model that ships with coli. It is read where it lies, so that the test binary goes without it.
var storyFile = filepath.Join("..", "internal", "embedded", "tiny-moe-Q8_0.gguf")

func story(t *testing.T, opt Options) *Model {
	t.Helper()
	return load(t, storyFile, opt)
}

func prompt(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(3 + i*37%300)
	}
	return ids
}

// TestChunksAndThreads: neither the size of a prefill step nor the number of threads changes a bit of the logits.
func TestChunksAndThreads(t *testing.T) {
	for _, name := range []string{"olmoe", "olmoe_sharded", "qwen3_moe"} {
		var want []float32
		for _, opt := range []Options{{Chunk: 512, Threads: 1}, {Chunk: 1, Threads: 2}, {Chunk: 7, Threads: 3}} {
			m := load(t, sharedtest.Testdata("oracles", name), opt)
			got, err := session(t, m, 0).Forward(t.Context(), prompt(50))
			if err != nil {
				t.Fatal(err)
			}
			if want == nil {
				want = slices.Clone(got)
			} else if !slices.Equal(got, want) {
				t.Errorf("%s: logits with %+v differ", name, opt)
			}
		}
	}
}

func TestForwardAllAgreesWithForward(t *testing.T) {
	m := load(t, sharedtest.Testdata("oracles", "olmoe"), Options{Chunk: 4})
	ids := prompt(11)
	all := map[int][]float32{}
	err := session(t, m, 0).ForwardAll(t.Context(), ids, func(pos int, logits []float32) { all[pos] = slices.Clone(logits) })
	if err != nil {
		t.Fatal(err)
	}
	s := session(t, m, 0)
	for pos, id := range ids {
		logits, err := s.Forward(t.Context(), []int32{id})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(logits, all[pos]) {
			t.Errorf("logits at position %d differ", pos)
		}
	}
}

func TestTruncateForgets(t *testing.T) {
	m := load(t, sharedtest.Testdata("oracles", "qwen3_moe"), Options{})
	s, fresh := session(t, m, 0), session(t, m, 0)
	a, b := prompt(20), append(prompt(9), 5, 6, 7)
	if _, err := s.Forward(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if n := s.reuse(b); n != 9 {
		t.Errorf("%d tokens kept, want the common prefix of 9", n)
	}
	got, err := s.Forward(t.Context(), b[9:])
	if err != nil {
		t.Fatal(err)
	}
	got = slices.Clone(got)
	want, err := fresh.Forward(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Error("a truncated session gives other logits than a fresh one")
	}
	// The last token is always computed again: its logits are wanted.
	if n := s.reuse(b); n != len(b)-1 {
		t.Errorf("%d tokens kept of the same prompt, want %d", n, len(b)-1)
	}
}

func TestRefusals(t *testing.T) {
	m := load(t, sharedtest.Testdata("oracles", "olmoe"), Options{})
	if _, err := m.NewSession(257); err == nil || !strings.Contains(err.Error(), "257") || !strings.Contains(err.Error(), "256") {
		t.Errorf("a context beyond the model's: %v does not give both numbers", err)
	}
	if _, err := m.NewSession(-1); err == nil {
		t.Error("a negative context was accepted")
	}
	if _, err := Load(t.Context(), sharedtest.Testdata("oracles", "olmoe"), Options{Threads: 1 << 20}); err == nil ||
		!strings.Contains(err.Error(), "--threads 1048576") {
		t.Errorf("a million threads: %v", err)
	}
	s := session(t, m, 16)
	_, err := s.Forward(t.Context(), prompt(17))
	var full *ContextError
	if !errors.As(err, &full) || full.Tokens != 17 || full.Size != 16 {
		t.Errorf("17 tokens in a context of 16: %v", err)
	}
	var outside *TokenError
	if _, err := s.Forward(t.Context(), []int32{320}); !errors.As(err, &outside) {
		t.Errorf("token 320 of a vocabulary of 320: %v", err)
	}
	if _, err := s.Forward(t.Context(), nil); err == nil {
		t.Error("an empty prompt was accepted")
	}
	if len(s.Tokens()) != 0 {
		t.Errorf("refused tokens were kept: %v", s.Tokens())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Forward(ctx, prompt(3)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
}

// logitsOf returns what follows ids.
func logitsOf(t *testing.T, s *Session, ids []int32) []float32 {
	t.Helper()
	logits, err := s.Forward(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(logits)
}

// TestCancelledStep: a step ends at the next layer, not at the end of its chunk, and leaves a session that goes on as if it had not begun.
func TestCancelledStep(t *testing.T) {
	m := load(t, sharedtest.Testdata("oracles", "olmoe"), Options{})
	want := logitsOf(t, session(t, m, 0), prompt(12))

	s := session(t, m, 0)
	logitsOf(t, s, prompt(12)[:5])
	ctx, cancel := context.WithCancel(t.Context())
	deepest := 0
	s.Observe = func(_ string, layer, _, _ int, _ []float32) {
		if layer == 1 {
			cancel()
		}
		deepest = max(deepest, layer)
	}
	if _, err := s.Forward(ctx, prompt(12)[5:]); !errors.Is(err, context.Canceled) || deepest != 1 {
		t.Errorf("cancelled in layer 1: computed layer %d, error %v", deepest, err)
	}
	if len(s.Tokens()) != 5 {
		t.Errorf("the session holds %d tokens, want the 5 from before", len(s.Tokens()))
	}
	s.Observe = nil
	if got := logitsOf(t, s, prompt(12)[5:]); !slices.Equal(got, want) {
		t.Error("the logits after a cancelled step differ")
	}
}

// TestContextError: the advice to raise --ctx-size is given only where it can be followed.
func TestContextError(t *testing.T) {
	m := load(t, sharedtest.Testdata("oracles", "olmoe"), Options{})
	for _, c := range []struct {
		size int
		want string
	}{
		{16, "300 tokens do not fit the context of 16 tokens, which holds the answer too; shorten the prompt or raise --ctx-size, up to 256"},
		{0, "300 tokens do not fit the context of 256 tokens, which holds the answer too; shorten the prompt"},
	} {
		if _, err := session(t, m, c.size).Forward(t.Context(), prompt(300)); err == nil || err.Error() != c.want {
			t.Errorf("%v\nwant %s", err, c.want)
		}
	}
}

// TestNonFiniteNamesLayer: a damaged weight is reported with the layer it is in, and the session keeps nothing of the step.
func TestNonFiniteNamesLayer(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(sharedtest.Testdata("oracles", "olmoe"))); err != nil {
		t.Fatal(err)
	}
	intact := load(t, dir, Options{})
	w, ok := intact.Checkpoint.Lookup("model.layers.2.self_attn.o_proj.weight")
	if !ok {
		t.Fatal("the fixture has no o_proj")
	}
	f, err := os.OpenFile(w.File, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	bits := math.Float32bits(float32(math.NaN()))
	if _, err := f.WriteAt([]byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)}, w.Offset); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s := session(t, load(t, dir, Options{}), 0)
	_, err = s.Forward(t.Context(), prompt(5))
	var bad *NonFiniteError
	if !errors.As(err, &bad) || bad.Layer != 2 || bad.Name != "attn_out" {
		t.Fatalf("error %v, want attn_out of layer 2", err)
	}
	if len(s.Tokens()) != 0 {
		t.Errorf("the session kept %d tokens of a failed step", len(s.Tokens()))
	}
}

func sample(t *testing.T, p sampler.Params) *sampler.Sampler {
	t.Helper()
	s, err := sampler.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGenerate(t *testing.T) {
	m := story(t, Options{})
	tok, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode("Once upon a time")
	greedy := sampler.Params{RepeatPenalty: 1, TopP: 1}
	ask := func(ctx context.Context, size int, r Request) (Result, string, error) {
		t.Helper()
		var text strings.Builder
		emit := r.Emit
		r.Prompt = ids
		r.Emit = func(s string) error {
			text.WriteString(s)
			if emit != nil {
				return emit(s)
			}
			return nil
		}
		res, err := session(t, m, size).Generate(ctx, r)
		return res, text.String(), err
	}

	res, whole, err := ask(t.Context(), 0, Request{Sampler: sample(t, greedy), MaxTokens: 40})
	if err != nil || res.Reason != ReasonLength || res.Generated != 40 || len(whole) < 40 {
		t.Fatalf("greedy: %+v %v %q", res, err, whole)
	}
	if res.PairsPerToken != 32 {
		t.Errorf("%v experts a token, want 4 in each of 8 layers", res.PairsPerToken)
	}

	word := strings.Fields(whole)[12]
	res, text, err := ask(t.Context(), 0, Request{Sampler: sample(t, greedy), MaxTokens: 40, Stop: []string{word}})
	before, _, _ := strings.Cut(whole, word)
	if err != nil || res.Reason != ReasonStop || text != before {
		t.Errorf("stop at %q: %+v %v %q, want %q", word, res, err, text, before)
	}

	res, _, err = ask(t.Context(), len(ids)+5, Request{Sampler: sample(t, greedy), MaxTokens: -1})
	if err != nil || res.Reason != ReasonContext {
		t.Errorf("full context: %+v %v", res, err)
	}

	if _, _, err = ask(t.Context(), len(ids), Request{Sampler: sample(t, greedy), MaxTokens: 1}); err == nil {
		t.Error("a prompt that fills the context was accepted")
	}

	seeded := sampler.Params{Temperature: 0.9, TopP: 1, RepeatPenalty: 1, Seed: 7}
	_, one, err1 := ask(t.Context(), 0, Request{Sampler: sample(t, seeded), MaxTokens: 30})
	_, two, err2 := ask(t.Context(), 0, Request{Sampler: sample(t, seeded), MaxTokens: 30})
	if err1 != nil || err2 != nil || one != two {
		t.Errorf("same seed: %q and %q", one, two)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	res, _, err = ask(ctx, 0, Request{Sampler: sample(t, greedy), MaxTokens: 40, Emit: func(string) error {
		if n++; n == 3 {
			cancel()
		}
		return nil
	}})
	if !errors.Is(err, context.Canceled) || res.Reason != ReasonInterrupted || res.Generated >= 40 {
		t.Errorf("cancelled: %+v %v", res, err)
	}

	boom := errors.New("pipe closed")
	if _, _, err = ask(t.Context(), 0, Request{Sampler: sample(t, greedy), MaxTokens: 40, Emit: func(string) error { return boom }}); !errors.Is(err, boom) {
		t.Errorf("an emit error came back as %v", err)
	}
}

// notes are the lines said to the user.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) add(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, line)
}

func (n *notes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := n.lines
	n.lines = nil
	return lines
}
