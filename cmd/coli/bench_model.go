package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/prefetcher"
)

// statesHelp says what --state means where a model is run.
const statesHelp = `Every arm is given the same tokens, whatever the model answers: tokens drawn with --seed, each of the vocabulary as likely, or those of
--trace-text. Tokenizing and sampling are not timed. --state rotating gives each repetition tokens of its own, warm the same ones that
have been computed before, which is the best that caches can do, and cold opens the model anew with its files evicted from the page cache.`

const ramHelp = "A percentage of --ram is one of the bytes of all routed experts, here as in all of coli bench, not of the free memory."

// modelFlags are the flags of the experiments that run a model: the matrix of its settings, and what they have in common.
type modelFlags struct {
	models                          []string
	depths                          intsFlag
	threads, chunks                 intsFlag
	devices, layers                 wordsFlag
	ram                             sizesFlag
	readers, prefetchDepth, horizon intsFlag
	prefetch, direct                wordsFlag
	text                            string
	parts, gpuProfile               bool
	warmup                          int
}

// define makes the flags; work are those that say how much is computed.
func (f *modelFlags) define(cmd *cobra.Command, work func(*pflag.FlagSet)) {
	group(cmd, "Model", func(fs *pflag.FlagSet) {
		fs.StringArrayVarP(&f.models, "model", "m", nil, "`PATH` of a model; may be repeated (default: the built-in model)")
	})
	group(cmd, "Work", func(fs *pflag.FlagSet) {
		work(fs)
		f.depths = intsFlag{0}
		fs.VarP(&f.depths, "n-depth", "d", "tokens that the context holds before those that are timed")
		fs.StringVar(&f.text, "trace-text", "", "tokens of the text in `FILE` instead of drawn ones")
		fs.BoolVar(&f.parts, "parts", f.parts, "tell what a token's time goes into; it costs a small model about 1 %")
	})
}

// place makes the flags that say where weights live and what computes with them. balanced experiments have their own for how experts are read.
func (f *modelFlags) place(cmd *cobra.Command, reading bool, ram string) {
	group(cmd, "Settings, each a list", func(fs *pflag.FlagSet) {
		fs.VarP(&f.threads, "threads", "t", "CPU threads, 0 for the physical cores this process may use")
		fs.Var(&f.chunks, "chunk", fmt.Sprintf("tokens of a prompt computed in one step (default %d)", engine.DefaultChunk))
		fs.Var(&f.ram, "ram", ram)
		if reading {
			fs.Var(&f.readers, "readers", "experts read from disk at the same time, 0 to have it decided")
			f.prefetch.parse = func(s string) error { return new(engine.Prefetch).Set(s) }
			fs.Var(&f.prefetch, "prefetch", "read experts before they are asked for: auto, on, off")
			fs.Var(&f.prefetchDepth, "prefetch-depth", "experts predicted for a layer, 0 to have it decided")
			fs.Var(&f.horizon, "prefetch-horizon", "layers ahead that are predicted, 0 to have it decided")
		}
		f.direct.parse = func(s string) error { _, err := prefetcher.ParseMode(s); return err }
		fs.Var(&f.direct, "direct", "read experts past the page cache: auto, on, off")
		fs.Var(&f.devices, "device", "run layers on these: N, NAME or none, as coli devices lists them")
		f.layers.parse = func(s string) error { return new(layersFlag).Set(s) }
		fs.Var(&f.layers, "gpu-layers", "most layers on the device: auto, all or N")
	})
}

// profiles makes the flag that has a device's time measured.
func (f *modelFlags) profiles(fs *pflag.FlagSet) {
	fs.BoolVar(&f.gpuProfile, "gpu-profile", false, "print where the device's time went, by op, warm-up included; measuring it costs some")
}

// axis is a setting with the values that it takes: a dimension of the matrix.
type axis struct {
	name   string
	values []string // none: the default alone, which is not spoken of
	set    func(o *engine.Options, value string) error
}

// number makes an axis of whole numbers, 0 of which has the value decided.
func number(name string, list []int, least, most int, set func(*engine.Options, int)) (a axis, err error) {
	a = axis{name: name, set: func(o *engine.Options, value string) error {
		n, err := strconv.Atoi(value)
		if value == auto {
			n, err = 0, nil
		}
		set(o, n)
		return err
	}}
	for _, n := range list {
		value := strconv.Itoa(n)
		if n == 0 {
			value = auto
		}
		a.values = append(a.values, value)
	}
	return a, between(name, list, least, most)
}

// between is an error if a number of a list is out of range.
func between(name string, list []int, least, most int) error {
	for _, n := range list {
		if n < least || n > most {
			return usageError{fmt.Errorf("--%s %d: want a number from %d to %d", name, n, least, most)}
		}
	}
	return nil
}

// many is more than any number here makes sense.
const many = 1 << 20

// auto is the value of a setting that is left to coli.
const auto = "auto"

// axes are the dimensions of the matrix beside models and --ram.
func (f *modelFlags) axes() ([]axis, error) {
	var failed error
	add := func(a axis, err error) axis {
		failed = errors.Join(failed, err)
		return a
	}
	all := []axis{
		{"device", f.devices.words, func(o *engine.Options, value string) error {
			var d deviceFlag
			err := d.Set(value)
			o.Device = string(d)
			return err
		}},
		{"gpu-layers", f.layers.words, func(o *engine.Options, value string) error {
			var l layersFlag
			err := l.Set(value)
			o.GPULayers = l.GPULayers
			return err
		}},
		add(number("threads", f.threads, 0, many, func(o *engine.Options, n int) { o.Threads = n })),
		add(number("chunk", f.chunks, 1, many, func(o *engine.Options, n int) { o.Chunk = n })),
		add(number("readers", f.readers, 0, prefetcher.MaxReaders, func(o *engine.Options, n int) { o.Readers = n })),
		{"prefetch", f.prefetch.words, func(o *engine.Options, value string) error { return o.Prefetch.Set(value) }},
		add(number("prefetch-depth", f.prefetchDepth, 0, many, func(o *engine.Options, n int) { o.Depth = n })),
		add(number("prefetch-horizon", f.horizon, 0, many, func(o *engine.Options, n int) { o.Horizon = n })),
		{"direct", f.direct.words, func(o *engine.Options, value string) (err error) {
			o.Direct, err = prefetcher.ParseMode(value)
			return err
		}},
	}
	return all, failed
}

// config is what the flags ask for, with every combination of the settings.
func (f *modelFlags) config(b *benchRun) (cfg bench.ModelConfig, err error) {
	cfg = bench.ModelConfig{
		Depths: f.depths, State: b.state, Seed: b.seed, Text: f.text, Parts: f.parts, Note: b.say,
		Load: func(ctx context.Context, path string, opt engine.Options) (*engine.Model, error) {
			return loadModel(ctx, path, opt, true)
		},
	}
	axes, err := f.axes()
	if err != nil {
		return cfg, err
	}
	paths := f.models
	if len(paths) == 0 {
		path, err := modelPath(b.cmd, "")
		if err != nil {
			return cfg, err
		}
		paths = []string{path}
	}
	if d := (deviceOptions{profile: f.gpuProfile}); f.gpuProfile {
		cfg.Closing = func(m *engine.Model) { d.printProfile(b.cmd.ErrOrStderr(), m) }
	}
	for _, path := range paths {
		s := bench.Setting{Path: path, Options: engine.Options{Measure: b.measure()}}
		(&deviceOptions{profile: f.gpuProfile}).apply(&s.Options)
		if info, err := os.Stat(path); len(paths) > 1 || err == nil && info.IsDir() { // files are in every record anyway
			s.Params = []bench.Param{{Name: "model", Value: nameAmong(path, paths)}}
		}
		cfg.Settings = append(cfg.Settings, s)
	}
	for _, a := range axes {
		if cfg.Settings, err = a.multiply(cfg.Settings); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

// nameAmong is the last element of a path, or the whole where another one has the same.
func nameAmong(path string, all []string) string {
	name := filepath.Base(path)
	if slices.ContainsFunc(all, func(other string) bool { return other != path && filepath.Base(other) == name }) {
		return path
	}
	return name
}

// multiply returns every setting with every value of the axis.
func (a *axis) multiply(settings []bench.Setting) (all []bench.Setting, err error) {
	if len(a.values) == 0 {
		return settings, nil
	}
	for _, s := range settings {
		for _, value := range a.values {
			with := s
			with.Params = append(slices.Clone(s.Params), bench.Param{Name: a.name, Value: value})
			if err := a.set(&with.Options, value); err != nil {
				return nil, usageError{fmt.Errorf("--%s %s: %w", a.name, value, err)}
			}
			all = append(all, with)
		}
	}
	return all, nil
}

// modelStates are those of experiments that run a model.
var modelStates = []bench.State{bench.Rotating, bench.Warm, bench.Cold}

const decodeLong = `Measure how fast a model answers: tokens a second, one at a time (tg128), behind --n-depth others (@ d512).

` + statesHelp + "\n\n" + ramHelp

// newBenchDecodeCmd returns `coli bench decode`.
func newBenchDecodeCmd() *cobra.Command {
	var f modelFlags
	gen := intsFlag{128}
	return newExperimentCmd(experimentCmd{
		name: "decode", short: "How fast a model answers, token by token", long: decodeLong, states: modelStates,
		example: "  coli bench decode -m model.gguf -d 0,512,2048\n  coli bench decode -m model.gguf --device 0 --gpu-layers 0,8,all",
		define: func(cmd *cobra.Command) {
			f.define(cmd, func(fs *pflag.FlagSet) { f.generates(fs, &gen, 0) })
			f.place(cmd, true, ramFlag)
			group(cmd, "Profile", f.profiles)
		},
		build: func(_ context.Context, b *benchRun) (bench.Experiment, error) {
			if err := between("n-gen", gen, 1, many); err != nil {
				return nil, err
			}
			cfg, err := f.config(b)
			if err != nil {
				return nil, err
			}
			if cfg.Settings, err = bench.WithRAM(cfg.Settings, f.ram); err != nil {
				return nil, err
			}
			return bench.NewDecode(bench.DecodeConfig{ModelConfig: cfg, Gen: gen, Warmup: f.warmup})
		},
	})
}

const ramFlag = "memory for experts: sizes, or percentages of their bytes (default: what is free)"

// generates makes the flags of how many tokens are computed one by one.
func (f *modelFlags) generates(fs *pflag.FlagSet, gen *intsFlag, warmup int) {
	fs.VarP(gen, "n-gen", "n", "tokens that are timed, one after another")
	fs.IntVar(&f.warmup, "n-warmup", warmup, "tokens before the first that counts, rounded up to whole repetitions, 0 for one")
}

const prefillLong = `Measure how fast a model reads a prompt: tokens a second of so many tokens (pp512), behind --n-depth others (@ d512).

` + statesHelp + "\n\n" + ramHelp

// newBenchPrefillCmd returns `coli bench prefill`.
func newBenchPrefillCmd() *cobra.Command {
	var f modelFlags
	prompt := intsFlag{512}
	return newExperimentCmd(experimentCmd{
		name: "prefill", short: "How fast a model reads a prompt", long: prefillLong, states: modelStates,
		example: "  coli bench prefill -m model.gguf -p 128-2048*2\n  coli bench prefill -m model.gguf --chunk 128,512 -t 1,2",
		define: func(cmd *cobra.Command) {
			f.define(cmd, func(fs *pflag.FlagSet) { fs.VarP(&prompt, "n-prompt", "p", "tokens of the prompt") })
			f.place(cmd, true, ramFlag)
			group(cmd, "Profile", f.profiles)
		},
		build: func(_ context.Context, b *benchRun) (bench.Experiment, error) {
			if err := between("n-prompt", prompt, 1, many); err != nil {
				return nil, err
			}
			cfg, err := f.config(b)
			if err != nil {
				return nil, err
			}
			if cfg.Settings, err = bench.WithRAM(cfg.Settings, f.ram); err != nil {
				return nil, err
			}
			return bench.NewPrefill(bench.PrefillConfig{ModelConfig: cfg, Prompt: prompt})
		},
	})
}

const streamLong = `Decode with a part of the experts in memory and the others on disk, and compare with what memory and drive allow at best: the plain read
rate of memory, and the drive's own rate at the same request size, measured before each repetition.

` + ramHelp + `
All arms must come to the same answers, to the bit: if one does not, the experiment fails.

` + statesHelp + `

Layers stay on the CPU unless --device asks for another place: what is on a device does not come from disk.`

// newBenchStreamCmd returns `coli bench stream`.
func newBenchStreamCmd() *cobra.Command {
	f := modelFlags{parts: true}
	gen := intsFlag{64}
	return newExperimentCmd(experimentCmd{
		name: "stream", short: "A model whose experts come from disk, at several amounts of memory", long: streamLong, states: modelStates,
		example: "  coli bench stream -m model.coli --plot plots/\n  coli bench stream -m model.coli --ram 1GiB,2GiB --prefetch off,auto",
		define: func(cmd *cobra.Command) {
			f.define(cmd, func(fs *pflag.FlagSet) { f.generates(fs, &gen, 128) })
			f.ram = sizesFlag{"10%", "20%", "40%", "60%", "80%", "100%"}
			f.place(cmd, true, "memory for experts: sizes, or percentages of their bytes")
		},
		build: func(_ context.Context, b *benchRun) (bench.Experiment, error) {
			if err := between("n-gen", gen, 1, many); err != nil {
				return nil, err
			}
			cfg, err := f.config(b)
			if err != nil {
				return nil, err
			}
			return bench.NewStream(bench.StreamConfig{
				DecodeConfig: bench.DecodeConfig{ModelConfig: cfg, Gen: gen, Warmup: f.warmup}, RAM: f.ram,
			})
		},
	})
}

const balanceLong = `Decode with fixed ways to read experts from disk, every combination of --readers, --prefetch-depth and --prefetch-horizon, and with the
balancer's choice ("auto"), side by side. The last line on standard error says whether the choice comes within 5 % of the best fixed one.

` + ramHelp + `
All arms must come to the same answers, to the bit: if one does not, the experiment fails.

` + statesHelp

// newBenchBalanceCmd returns `coli bench balance`.
func newBenchBalanceCmd() *cobra.Command {
	f := modelFlags{parts: true}
	gen := intsFlag{64}
	readers, depths, horizons := intsFlag{1, 2, 4}, intsFlag(nil), intsFlag{1, 2}
	autoWarmup := 0
	return newExperimentCmd(experimentCmd{
		name: "balance", short: "Fixed ways to read experts, and the balancer's choice", long: balanceLong, states: modelStates,
		example: "  coli bench balance -m model.coli\n  coli bench balance -m model.coli --ram 10%,40% --readers 1-8*2 --prefetch-depth 0,4,8",
		define: func(cmd *cobra.Command) {
			f.define(cmd, func(fs *pflag.FlagSet) {
				f.generates(fs, &gen, 128)
				fs.IntVar(&autoWarmup, "n-warmup-auto", 384, "the same for the balancer's choice, which has to be tried out")
			})
			group(cmd, "Fixed settings, each a list", func(fs *pflag.FlagSet) {
				fs.Var(&readers, "readers", "experts read from disk at the same time")
				fs.Var(&depths, "prefetch-depth", "experts predicted for a layer, 0 for none (default: 0 and as many as a token uses)")
				fs.Var(&horizons, "prefetch-horizon", "layers ahead that are predicted")
			})
			f.ram = sizesFlag{"20%"}
			f.place(cmd, false, "memory for experts: sizes, or percentages of their bytes")
		},
		build: func(_ context.Context, b *benchRun) (bench.Experiment, error) {
			err := errors.Join(between("n-gen", gen, 1, many), between("readers", readers, 1, prefetcher.MaxReaders),
				between("prefetch-depth", depths, 0, many), between("prefetch-horizon", horizons, 1, many))
			if err != nil {
				return nil, err
			}
			cfg, err := f.config(b)
			if err != nil {
				return nil, err
			}
			return bench.NewBalance(bench.BalanceConfig{
				DecodeConfig: bench.DecodeConfig{ModelConfig: cfg, Gen: gen, Warmup: f.warmup}, RAM: f.ram,
				Readers: readers, Depths: depths, Horizons: horizons, AutoWarmup: autoWarmup,
			})
		},
	})
}
