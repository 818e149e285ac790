package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/limits"
	"github.com/coli-moe/coli/probe"
	"github.com/coli-moe/coli/weights"
)

// Setting is a model and how it is loaded. Every setting of an experiment meets every amount of work: these are its arms.
type Setting struct {
	Path    string  // of the model
	Params  []Param // what tells it from the other settings
	Options engine.Options
}

// ModelConfig is what the experiments that run a model have in common.
type ModelConfig struct {
	Settings []Setting
	Depths   []int // tokens that a session holds before those that are timed
	State    State // what Execute is told too
	Seed     uint64
	// Text is a file whose tokens the model is given. Without one they are drawn from the vocabulary, each as likely: routing then is flatter
	// than a text's. In either case every arm is given the same ones, and what the model answers plays no part.
	Text string
	// Parts has steps tell what their time goes into, which takes about a hundredth of it from a model of some megabytes.
	Parts bool
	Note  func(string) // lines for the user; nil: nobody reads them
	// Load opens a model; nil is engine.Load.
	Load func(context.Context, string, engine.Options) (*engine.Model, error)
	// Closing is told of a model that is about to be closed; may be nil.
	Closing func(*engine.Model)
}

// modelInfo is what a checkpoint says of itself.
type modelInfo struct {
	files   []string
	limit   int   // tokens of a context, 0 where unknown
	experts int64 // bytes of all routed experts
	topK    int   // of a token in a layer
	kv      int64 // bytes of keys and values of a token
}

// models are the models of an experiment. Its arms are opened by one goroutine.
type models struct {
	ModelConfig
	info   []modelInfo // by setting
	text   []byte
	shared []*sharedModel // by setting: those whose state nobody changes; nil while no arm has it open
	watch  watch
	rates  map[int]float64 // of a plain read of memory, bytes a second, by threads
	said   map[string]bool
	most   int // tokens of the longest session
}

type sharedModel struct {
	*engine.Model
	release func() error
	users   int
}

// newModels looks at the models' files, so that what cannot be run at all is known before anything is.
func newModels(cfg ModelConfig) (*models, error) {
	x := &models{ModelConfig: cfg, shared: make([]*sharedModel, len(cfg.Settings)), rates: map[int]float64{}, said: map[string]bool{}}
	if x.Load == nil {
		x.Load = engine.Load
	}
	if len(x.Depths) == 0 {
		x.Depths = []int{0}
	}
	known := map[string]modelInfo{}
	for _, s := range cfg.Settings {
		info, ok := known[s.Path]
		if !ok {
			var err error
			if info, err = inspect(s.Path); err != nil {
				return nil, err
			}
			known[s.Path] = info
		}
		x.info = append(x.info, info)
	}
	if cfg.Text != "" {
		var err error
		if x.text, err = os.ReadFile(cfg.Text); err != nil {
			return nil, fmt.Errorf("the text of the trace: %w", err)
		}
		if len(bytes.TrimSpace(x.text)) == 0 {
			return nil, fmt.Errorf("the text of the trace: %s is empty", cfg.Text)
		}
	}
	return x, nil
}

func inspect(path string) (info modelInfo, err error) {
	c, err := weights.Open(path)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	cfg, err := c.Config()
	if err != nil {
		return info, err
	}
	return modelInfo{
		files: slices.Clone(c.Files()), limit: cfg.MaxPositionEmbeddings, experts: c.ExpertBytes(), topK: cfg.NumExpertsPerTok,
		kv: int64(cfg.NumHiddenLayers) * int64(cfg.NumKeyValueHeads) * int64(cfg.HeadDim) * 2 * 4,
	}, nil
}

// ExpertBytes are the bytes of all routed experts of a model; 0 for one without.
func ExpertBytes(path string) (int64, error) {
	info, err := inspect(path)
	return info.experts, err
}

// Files are those of the models.
func (x *models) Files() (all []string) {
	for _, info := range x.info {
		for _, f := range info.files {
			if !slices.Contains(all, f) {
				all = append(all, f)
			}
		}
	}
	return all
}

// Describe adds the devices that settings run layers on.
func (x *models) Describe(env *Env) {
	var names []string
	looked := map[string]bool{}
	for i := range x.Settings {
		opt := &x.Settings[i].Options
		if opt.Device == engine.DeviceNone || opt.GPULayers == "0" || looked[opt.Device] {
			continue
		}
		looked[opt.Device] = true
		o := opt.DeviceOptions
		o.Select = opt.Device
		d, err := device.Open(o)
		if err != nil {
			continue // opening the arm says what is wrong, if a device was asked for
		}
		if info := d.Info(); (wantsDevice(opt) || info.Type == device.Discrete) && !slices.Contains(names, info.Name) {
			names = append(names, info.Name)
		}
		if err := d.Close(); err != nil {
			x.note(err.Error())
		}
	}
	env.GPU = strings.Join(names, ", ")
}

// fits is an error if an amount of work needs a longer context than a model has. Each that an experiment has is asked for before any is done.
func (x *models) fits(test string, tokens int) error {
	x.most = max(x.most, tokens)
	for i, info := range x.info {
		if info.limit > 0 && tokens > info.limit {
			return badSetting("%s needs a context of %d tokens, and %s was trained for %d; use a smaller --n-depth or fewer tokens",
				test, tokens, x.Settings[i].Path, info.limit)
		}
	}
	return nil
}

// test names an amount of work as llama-bench does: "tg128 @ d512".
func test(kind string, n, depth int) string {
	if depth == 0 {
		return fmt.Sprintf("%s%d", kind, n)
	}
	return fmt.Sprintf("%s%d @ d%d", kind, n, depth)
}

// alone is more memory than there is: an arm of so many bytes is never kept open beside another one.
const alone = 1 << 50

// bytes is the memory that an open arm of setting i holds, with a session of so many tokens, beyond what is mapped.
func (x *models) bytes(i, tokens int) int64 {
	const others = 64 << 20 // activations of a chunk, mailboxes, the vocabulary
	opt := &x.Settings[i].Options
	if opt.Device != engine.DeviceNone && len(x.Settings) > 1 {
		return alone // what a model leaves of the device's memory would decide what the next one gets
	}
	experts := opt.RAM
	if experts == 0 {
		if l, err := ledger.New(ledger.System()); err == nil {
			experts, _ = l.Free()
		}
	}
	if experts >= x.info[i].experts {
		experts = 0 // they are mapped
	}
	return experts + x.info[i].kv*int64(tokens) + others
}

// open loads the model of setting i. One that does not stream is shared by the arms that have it open: nothing of it changes by being used.
func (x *models) open(ctx context.Context, i int) (m *engine.Model, release func() error, err error) {
	s := x.shared[i]
	if s == nil {
		opt := x.Settings[i].Options
		opt.Note, opt.Profile, opt.Context = x.note, x.Parts, x.most
		unwatch := func() error { return nil }
		if opt.RAM > 0 && opt.RAM < x.info[i].experts { // it may stream
			if opt.Probe, err = x.watch.open(); err != nil {
				return nil, nil, err
			}
			unwatch = x.watch.close
		}
		if m, err = x.Load(ctx, x.Settings[i].Path, opt); err != nil {
			if err = errors.Join(err, unwatch()); errors.Is(err, ledger.ErrNoRoom) && len(x.Settings) > 1 {
				err = fmt.Errorf("%w: %w", ErrSkip, err) // others may do with less
			}
			return nil, nil, err
		}
		release = func() error { return errors.Join(x.close(m), unwatch()) }
		if n, _ := m.LayersOnDevice(); n == 0 && wantsDevice(&opt) {
			return nil, nil, errors.Join(fmt.Errorf("no layer is on the device that was asked for: %s", m.LayersWhy), release())
		}
		switch _, streams, err := m.Experts(); {
		case err != nil:
			return nil, nil, errors.Join(err, release())
		case streams:
			return m, release, nil
		}
		s = &sharedModel{Model: m, release: release}
		x.shared[i] = s
	}
	s.users++
	return s.Model, func() error {
		if s.users--; s.users > 0 {
			return nil
		}
		x.shared[i] = nil
		return s.release()
	}, nil
}

// watch is the probe that models share: each with its own would have every request measured as often.
type watch struct {
	probe *probe.Probe
	users int
}

func (w *watch) open() (_ *probe.Probe, err error) {
	if w.users == 0 {
		if w.probe, err = probe.Open(probe.Options{}); err != nil {
			return nil, err
		}
	}
	w.users++
	return w.probe, nil
}

func (w *watch) close() error {
	if w.users--; w.users > 0 {
		return nil
	}
	return w.probe.Close()
}

func (x *models) close(m *engine.Model) error {
	if x.Closing != nil {
		x.Closing(m)
	}
	return m.Close()
}

// wantsDevice says whether somebody asked for layers on a device, rather than leave it to what there is.
func wantsDevice(opt *engine.Options) bool {
	switch {
	case opt.Device == engine.DeviceNone || opt.GPULayers == "0":
		return false
	case opt.GPULayers == "" || opt.GPULayers == engine.GPUAuto:
		return opt.Device != ""
	}
	return true
}

// note says a line once.
func (x *models) note(line string) {
	if x.Note != nil && !x.said[line] {
		x.said[line] = true
		x.Note(line)
	}
}

// memoryRate is the rate of a plain read with so many threads, measured at its first use; 0 if it cannot be, which is said.
func (x *models) memoryRate(ctx context.Context, threads int) float64 {
	const long = 300 * time.Millisecond
	if _, ok := x.rates[threads]; !ok {
		rate, err := engine.MemoryRate(ctx, threads, long)
		switch {
		case ctx.Err() != nil:
			return 0
		case err != nil:
			x.note(fmt.Sprintf("the rate of memory is unknown, and so are the bounds: %v", err))
		}
		x.rates[threads] = rate
	}
	return x.rates[threads]
}

// measureMemory adds the rate of a plain read of memory to a sample.
func (s *session) measureMemory(ctx context.Context, out *Sample) error {
	if rate := s.x.memoryRate(ctx, s.m.Threads()); rate > 0 {
		out.Values[memoryGBs] = rate / 1e9
	}
	return ctx.Err()
}

// trace is the tokens that a model is given.
type trace struct {
	seed  uint64
	vocab int
	text  []int32 // nil: they are drawn
}

// trace returns the trace of a model.
func (x *models) trace(m *engine.Model) (trace, error) {
	t := trace{seed: x.Seed, vocab: m.Config.VocabSize}
	if x.text != nil {
		tok, err := m.Tokenizer()
		if err != nil {
			return t, fmt.Errorf("the text of the trace needs the model's tokenizer: %w", err)
		}
		t.text = tok.Encode(string(x.text))
	}
	return t, nil
}

// piece returns the first n tokens of a piece of the trace. Of a text it is what follows so many equally long pieces, from the beginning
// again where it ends; pieces that are drawn have nothing in common.
func (t *trace) piece(number, n int) []int32 {
	ids := make([]int32, n)
	if len(t.text) > 0 {
		for i := range ids {
			at := (number*n + i) % len(t.text)
			if at < 0 { // warm-up is made with pieces before the first
				at += len(t.text)
			}
			ids[i] = t.text[at]
		}
		return ids
	}
	rng := rand.New(rand.NewPCG(t.seed, uint64(number)))
	for i := range ids {
		ids[i] = rng.Int32N(int32(t.vocab))
	}
	return ids
}

// session is an open arm's: the model, and what is computed with it.
type session struct {
	*engine.Session
	x       *models
	setting int
	m       *engine.Model
	release func() error
	trace   trace
	device  int // layers on it when the arm was opened
}

// session opens an arm of setting i with room for so many tokens.
func (x *models) session(ctx context.Context, i, tokens int) (*session, error) {
	m, release, err := x.open(ctx, i)
	if err != nil {
		return nil, err
	}
	s := &session{x: x, setting: i, m: m, release: release}
	s.device, _ = m.LayersOnDevice()
	if s.trace, err = x.trace(m); err == nil {
		s.Session, err = m.NewSession(tokens)
	}
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return s, nil
}

// Model is the model of the arm, for who looks at it while it is at work.
func (s *session) Model() *engine.Model { return s.m }

// Close ends the session, and the model with the last one.
func (s *session) Close() error {
	s.Session.Close()
	return s.release()
}

// piece is the number of the trace's piece that repetition rep is made with; warm-up, of rotating arms, has one of its own.
func (x *models) piece(rep int) int {
	if x.State == Warm {
		return 1
	}
	return rep + 1
}

// ids are the first n tokens of a piece of the trace.
func (s *session) ids(number, n int) []int32 {
	if text := len(s.trace.text); s.x.State == Rotating && text > 0 && (number+1)*n > text {
		s.x.note(fmt.Sprintf("%s has %d tokens and begins again: not every repetition has text of its own", s.x.Text, text))
	}
	return s.trace.piece(number, n)
}

// check is an error if the device has failed since the arm was opened: what was measured would be the CPU.
func (s *session) check() error {
	if n, _ := s.m.LayersOnDevice(); n != s.device {
		return fmt.Errorf("the device failed while it was measured: %s", s.m.LayersWhy)
	}
	return nil
}

// notes say where the model's weights are and what computes with them, but not how experts are read, which is among the settings, nor how
// much memory was left.
func (s *session) notes() []string {
	place, _, _ := strings.Cut(s.m.PlaceWhy, "; reads at a time")
	if what, bytes, ok := strings.Cut(place, " in memory: "); ok {
		bytes, _, _ = strings.Cut(bytes, " of ")
		place = what + " in memory: " + bytes
	}
	notes := []string{place, fmt.Sprintf("threads: %d (%s)", s.m.Threads(), s.m.ThreadsWhy)}
	if s.m.LayersWhy != "" {
		notes = append(notes, s.m.LayersWhy)
	}
	opt := &s.x.Settings[s.setting].Options
	if opt.Measure {
		notes = append(notes, "actors took the times of their messages, to be shown")
	}
	if opt.DeviceOptions.Profile {
		notes = append(notes, "the device took the times of its ops")
	}
	return notes
}

// bound is what memory, and the drive at the given rate, allow for work. ok is false where a rate that is needed is not known: a device's.
func (s *session) bound(ctx context.Context, w limits.Work, drive float64) (b limits.Bound, ok bool) {
	b = limits.Decode(w, limits.PerTier{limits.RAM: s.x.memoryRate(ctx, s.m.Threads()), limits.Disk: drive})
	return b, b.Overlapped > 0
}

// parts are the seconds of a token, by what they were spent on, from what the model had spent before and has now. Parts without time are left
// out.
func parts(before, now []engine.Part, tokens int) (list []Part) {
	for i, p := range now {
		if d := p.Time - before[i].Time; d > 0 {
			list = append(list, Part{p.Name, d.Seconds() / float64(tokens)})
		}
	}
	return list
}
