// Package engine runs a loaded model: sessions with their cache, prefill in chunks, decode, and the loop that turns a prompt into text.
//
// What does not live here: the layers (package model), their execution (package ops/cpu), drawing a token (engine/sampler) and finding
// stop strings (engine/stop), command-line parsing and anything printed (cmd/coli).
package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/coli-moe/coli/chat"
	"github.com/coli-moe/coli/model"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/cpu"
	"github.com/coli-moe/coli/tokenizer"
	"github.com/coli-moe/coli/weights"
)

// DefaultChunk is the number of prompt rows of one step. Every chunk reads all weights once, so it is as large as activations allow.
const DefaultChunk = 512

// Options of Load. The zero value takes every default.
type Options struct {
	Threads int // 0: the physical cores this process may use
	Chunk   int // rows of a prefill step; 0: DefaultChunk
	// Progress is called from Load's goroutine while weights are paged in, with bytes done and in total.
	Progress func(done, total int64)
}

// Model is a checkpoint ready to run. Its sessions share one executor; one goroutine at a time may use a model and its sessions.
type Model struct {
	Checkpoint *weights.Checkpoint
	Config     *weights.Config
	// ThreadsWhy says how Threads was decided.
	ThreadsWhy string

	net       model.Model
	exec      *cpu.Executor
	chunk     int
	tokenizer func() (*tokenizer.Tokenizer, error)
	template  func() (*chat.Template, error)
}

// Load opens a checkpoint (a file or a directory, see weights.Open), binds it to its architecture and pages its weights in.
func Load(ctx context.Context, path string, opt Options) (*Model, error) {
	c, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	m, err := bind(ctx, path, c, opt)
	if err != nil {
		c.Close()
		return nil, err
	}
	return m, nil
}

func bind(ctx context.Context, path string, c *weights.Checkpoint, opt Options) (*Model, error) {
	if opt.Threads > maxThreads {
		return nil, fmt.Errorf("--threads %d: at most %d are useful; 0 takes the physical cores", opt.Threads, maxThreads)
	}
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	m := &Model{Checkpoint: c, Config: cfg, chunk: opt.Chunk, ThreadsWhy: "asked for"}
	if m.chunk <= 0 {
		m.chunk = DefaultChunk
	}
	m.tokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return loadTokenizer(path, c) })
	m.template = sync.OnceValues(func() (*chat.Template, error) { return loadTemplate(path, c, cfg) })
	// The vocabulary is parsed while the weights are paged in; whoever needs it waits for it and gets its error.
	go m.tokenizer()
	net, err := model.Load(c)
	if err != nil {
		return nil, err
	}
	if fits(c) {
		if err := c.Populate(ctx, opt.Progress); err != nil {
			return nil, err
		}
	}
	threads := opt.Threads
	if threads <= 0 {
		threads, m.ThreadsWhy = defaultThreads()
	}
	m.net, m.exec = net, cpu.New(threads)
	return m, nil
}

// fits says whether paging the whole checkpoint in leaves the machine room for other pages; what does not fit is read when touched.
func fits(c *weights.Checkpoint) bool {
	var total int64
	for _, t := range c.Tensors() {
		total += t.Size
	}
	free := availableBytes()
	return free == 0 || total < free/10*9
}

// Close ends the threads and unmaps the weights. No session may be in use.
func (m *Model) Close() error {
	m.exec.Close()
	m.tokenizer() // the background load must be over before its file is unmapped
	return m.Checkpoint.Close()
}

// Threads is the number of CPU threads.
func (m *Model) Threads() int { return m.exec.Threads() }

// Tokenizer returns the checkpoint's vocabulary.
func (m *Model) Tokenizer() (*tokenizer.Tokenizer, error) { return m.tokenizer() }

// Template returns the checkpoint's chat template, or chat.ErrNoTemplate.
func (m *Model) Template() (*chat.Template, error) { return m.template() }

func loadTokenizer(path string, c *weights.Checkpoint) (*tokenizer.Tokenizer, error) {
	if g := c.GGUF(); g != nil {
		vocab, err := tokenizer.VocabFromGGUF(g)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		t, err := tokenizer.FromGGUF(vocab)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return t, nil
	}
	return tokenizer.FromJSON(filepath.Join(c.Dir(), "tokenizer.json"))
}

// loadTemplate finds the chat template in the GGUF metadata or beside the checkpoint.
func loadTemplate(path string, c *weights.Checkpoint, cfg *weights.Config) (*chat.Template, error) {
	g := c.GGUF()
	if g == nil {
		return chat.FromDir(c.Dir())
	}
	source, ok := g.String("tokenizer.chat_template")
	if !ok {
		return nil, fmt.Errorf("%s: %w", path, chat.ErrNoTemplate)
	}
	tokens, _ := g.Strings("tokenizer.ggml.tokens")
	text := func(id *int) string {
		if id == nil || *id >= len(tokens) {
			return ""
		}
		return tokens[*id]
	}
	eos := ""
	if id, ok := g.Uint("tokenizer.ggml.eos_token_id"); ok && id < uint64(len(tokens)) {
		eos = tokens[id]
	}
	return chat.New(path, source, chat.Specials{BOS: text(cfg.BOS), EOS: eos, Pad: text(cfg.PAD)})
}

// Stats are the executor's counters since the model was loaded.
func (m *Model) Stats() cpu.Stats { return m.exec.Stats() }

// newStates returns empty layer states for one conversation.
func (m *Model) newStates() [][]*ops.KV {
	states := make([][]*ops.KV, m.net.Layers())
	for il := range states {
		states[il] = []*ops.KV{ops.NewKV(m.net.State(il))}
	}
	return states
}
