// Package engine runs a loaded model: sessions with their cache, prefill in chunks, decode, and the loop that turns a prompt into text.
//
// What does not live here: the layers (package model), their execution (packages ops/cpu and ops/gpu), drawing a token (engine/sampler) and
// finding stop strings (engine/stop), command-line parsing and anything printed (cmd/coli).
package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/chat"
	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/model"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/cpu"
	"github.com/coli-moe/coli/ops/gpu"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
	"github.com/coli-moe/coli/tokenizer"
	"github.com/coli-moe/coli/weights"
)

// DefaultChunk is the number of prompt rows of one step. Every chunk reads all weights once, so it is as large as activations allow.
const DefaultChunk = 512

// Options of Load. The zero value takes every default.
type Options struct {
	Threads int // 0: the physical cores this process may use
	Chunk   int // rows of a prefill step; 0: DefaultChunk
	Context int // tokens that sessions will hold, as far as that is known; 0: as many as the model can
	// RAM is the most memory for routed experts, in bytes; 0 takes what is free. Experts that do not fit are read from disk when they are
	// routed to.
	RAM      int64
	Readers  int             // reads of experts at a time; 0: balanced, from as many as keep a drive busy
	Direct   prefetcher.Mode // whether experts are read past the page cache
	Prefetch Prefetch        // "" is PrefetchAuto
	Depth    int             // experts predicted for a layer, unless Prefetch is PrefetchOff; 0: balanced, from as many as a token is routed to
	Horizon  int             // layers ahead that are predicted; 0: balanced, from the next one
	// Deterministic makes what is read, and where it stays, follow the routing alone. The answer does not depend on it.
	Deterministic bool
	// Device chooses the device that layers run on: its index or a part of its name, as package device lists them; DeviceNone for none.
	// "" is the best one that is likely to be faster than the CPU, if there is one.
	Device    string
	GPULayers GPULayers // how many layers run on the device
	// DeviceOptions are how the device is opened; Select is not looked at.
	DeviceOptions device.Options
	// History returns the pairs routed in earlier runs, by layer and expert, layers outermost: the hottest are read at the start. It is
	// called once, and may be nil.
	History func(modelType string, layers, experts int) []uint64
	Trace   bool // record what the actors do, for WriteTrace
	Measure bool // time the actors' messages, for Live
	Profile bool // tell what the time of steps goes into, for Parts; it costs two looks at the clock for each op
	// Probe measures the drive, for several models of a process maybe; it is the caller's to close, after them. nil: the model opens one of
	// its own if it reads experts from disk.
	Probe *probe.Probe
	// Note is called with lines for the user, by any goroutine; may be nil.
	Note func(string)
	// Progress is called from Load's goroutine while weights are paged in, with bytes done and in total.
	Progress func(done, total int64)

	open   func(path string, direct bool) (prefetcher.File, error) // tests: files that fail
	fake   func(m *Model) (*card, error)                           // tests: devices that fail
	choose func() messages.Policy                                  // tests: how experts are read in the next step
}

// Model is a checkpoint ready to run. Its sessions share the executors; one goroutine at a time may use a model and its sessions.
type Model struct {
	Checkpoint *weights.Checkpoint
	Config     *weights.Config
	// ThreadsWhy says how Threads was decided.
	ThreadsWhy string
	// PlaceWhy says where the routed experts of the CPU's layers live, and why.
	PlaceWhy string
	// LayersWhy says which layers run on a device, and why no more of them; "" where there is no device and none was asked for.
	LayersWhy string

	net       model.Model
	exec      *cpu.Executor
	clock     *ops.Clock // nil without Options.Profile
	binding   binding
	chunk     int
	threads   int
	tokenizer func() (*tokenizer.Tokenizer, error)
	template  func() (*chat.Template, error)

	room         room
	deviceName   string
	retired      gpu.Stats // of a device that is not used any more
	retiredTimes []device.Timing

	rt           *actors.Runtime // of the device's actors and of system's; nil without either
	system       *actors.System  // nil without routed experts
	routed       []uint64        // before the step, by layer and expert
	probe        *probe.Probe    // nil unless experts are read from disk
	ownProbe     bool            // and not Options.Probe
	choose       func() messages.Policy
	predict      func(layer int, experts []int32) // of the step under way; nil: it does not
	depth        int                              // experts predicted for a layer and row,
	horizon      int                              // and for how many layers ahead
	firstExperts int                              // the CPU's first layer with routed experts
	request      int64                            // bytes of a read of an expert; 0: none is read from disk
	driveRate    float64                          // bytes a second; 0 if it was not measured
	failures     int                              // steps computed without the pipeline
	said         map[string]bool                  // what they failed of, as far as it was said
	repeatSaid   bool
	note         func(string)
	live         live
}

// Load opens a checkpoint (a file or a directory, see weights.Open), binds it to its architecture and pages its weights in.
func Load(ctx context.Context, path string, opt Options) (m *Model, err error) {
	found := look(opt)
	defer func() { err = errors.Join(err, found.end()) }()
	c, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	if m, err = bind(ctx, path, c, opt, found); err != nil {
		c.Close()
		return nil, err
	}
	return m, nil
}

// bind returns a model whose weights are where they are used.
func bind(ctx context.Context, path string, c *weights.Checkpoint, opt Options, found *search) (*Model, error) {
	m, err := prepare(path, c, opt)
	if err != nil {
		return nil, err
	}
	// The vocabulary is parsed while the weights are paged in; whoever needs it waits for it and gets its error.
	go m.tokenizer()
	m.exec = cpu.New(m.threads)
	if opt.Profile {
		m.clock = new(ops.Clock)
		m.exec.Measure(m.clock)
	}
	if err := m.load(ctx, opt, found); err != nil {
		return nil, errors.Join(err, m.stop())
	}
	return m, nil
}

// prepare returns a model of which nothing is loaded.
func prepare(path string, c *weights.Checkpoint, opt Options) (*Model, error) {
	if opt.Threads > MaxThreads {
		return nil, fmt.Errorf("--threads %d: at most %d are useful; 0 takes the physical cores", opt.Threads, MaxThreads)
	}
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	m := &Model{Checkpoint: c, Config: cfg, chunk: opt.Chunk, threads: opt.Threads, ThreadsWhy: "asked for", choose: opt.choose, note: opt.Note}
	if m.note == nil {
		m.note = func(string) {}
	}
	if m.chunk <= 0 {
		m.chunk = DefaultChunk
	}
	m.tokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return loadTokenizer(path, c) })
	m.template = sync.OnceValues(func() (*chat.Template, error) { return loadTemplate(path, c, cfg) })
	if m.net, err = model.Load(c); err != nil {
		return nil, err
	}
	if m.threads <= 0 {
		m.threads, m.ThreadsWhy = defaultThreads()
	}
	return m, nil
}

// load brings the weights to where they are used: layers to the device, as far as they fit, and into memory what the CPU needs.
func (m *Model) load(ctx context.Context, opt Options, found *search) error {
	p, err := m.settleIn(opt, found) // before the long part, since it may refuse
	if err != nil {
		return err
	}
	planned := m.binding
	if opt.Progress == nil {
		opt.Progress = func(int64, int64) {}
	}
	done, err := m.upload(ctx, opt.Progress)
	if err != nil {
		return err
	}
	if m.binding.n < planned.n || m.binding.head != planned.head {
		if p, err = m.place(opt); err != nil {
			return err
		}
	}
	return m.start(ctx, opt, p, done)
}

// settleIn decides, before anything is loaded, which layers go to a device and where the experts of the others live. A plan and a load do
// it alike.
func (m *Model) settleIn(opt Options, found *search) (p place, err error) {
	if opt.Context != 0 {
		if _, err := m.contextSize(opt.Context); err != nil { // no session would have it
			return p, err
		}
	}
	if err := m.plan(opt, found); err != nil {
		return p, err
	}
	return m.place(opt)
}

// place decides what memory is used for. What a device that shares the CPU's takes is set aside first.
func (m *Model) place(opt Options) (p place, err error) {
	r, b := &m.room, &m.binding
	r.clear()
	if r.ram == nil {
		if r.ram, err = ledger.New(ledger.System()); err != nil {
			return p, err
		}
	}
	r.device, r.name, r.planned = nil, "", nil
	if b.card != nil {
		r.device, r.name, r.planned = b.card.ledger, b.card.name, b.entries()
		if b.card.shared {
			total := int64(0)
			for _, e := range r.planned {
				total += e.Bytes
			}
			if r.layers, err = r.grant("layers on "+r.name, total); err != nil {
				return p, fmt.Errorf("%w or give fewer --gpu-layers", err)
			}
		}
	}
	p, err = m.decide(opt)
	m.PlaceWhy = p.why
	return p, err
}

// runtime returns the actors' runtime, a new one if there is none.
func (m *Model) runtime(opt Options) *actors.Runtime {
	if m.rt == nil {
		m.rt = actors.Start(actors.Options{Trace: opt.Trace, Measure: opt.Measure, OnEvent: func(e actors.Event) {
			if e.Kind != actors.GaveUp { // that is said with what becomes of the layers
				m.note(e.String())
			}
		}})
	}
	return m.rt
}

// Close frees the device, ends the actors and the threads and unmaps the weights. No session may be in use.
func (m *Model) Close() error {
	err := m.stop()
	m.tokenizer() // the background load must be over before its file is unmapped
	return errors.Join(err, m.Checkpoint.Close())
}

// stop ends what runs: the device's work first, since it needs the device's actors.
func (m *Model) stop() error {
	err := m.detach()
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	switch {
	case m.system != nil:
		err = errors.Join(err, m.system.Close(ctx))
	case m.rt != nil:
		err = errors.Join(err, m.rt.Stop(ctx))
	}
	if m.probe != nil && m.ownProbe {
		err = errors.Join(err, m.probe.Close())
	}
	if m.exec != nil {
		m.exec.Close()
	}
	return err
}

// closeWait bounds how long reads that hang may hold the end of the program up.
const closeWait = 15 * time.Second

// Threads is the number of CPU threads.
func (m *Model) Threads() int { return m.threads }

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

// Stats count what has been computed since a model was loaded.
type Stats struct {
	CPU    cpu.Stats
	Device gpu.Stats // zero without a device
}

// Pairs is the number of (row, expert) pairs computed.
func (s Stats) Pairs() int64 { return s.CPU.Pairs + s.Device.Pairs }

// Stats returns the counters since the model was loaded. For the engine's goroutine, as all but Live.
func (m *Model) Stats() Stats {
	s := Stats{m.exec.Stats(), m.retired}
	if c := m.binding.card; c != nil {
		s.Device = c.Stats()
	}
	m.publish(s)
	return s
}

// newStates returns empty layer states for one conversation.
func (m *Model) newStates() [][]*ops.KV {
	states := make([][]*ops.KV, m.net.Layers())
	for il := range states {
		states[il] = []*ops.KV{ops.NewKV(m.net.State(il))}
	}
	return states
}
