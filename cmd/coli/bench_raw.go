package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coli-moe/coli/bench"
	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/format"
)

// onOffFlag is a list of "on" and "off".
func onOffFlag(words ...string) wordsFlag {
	return wordsFlag{words, func(word string) error {
		if word != "on" && word != "off" {
			return fmt.Errorf("%q is neither on nor off", word)
		}
		return nil
	}}
}

func (l *wordsFlag) bools() (all []bool) {
	for _, w := range l.words {
		all = append(all, w == "on")
	}
	return all
}

// repetitionTime makes the flag of how long a repetition takes.
func repetitionTime(f *pflag.FlagSet, d *time.Duration, preset time.Duration) {
	f.DurationVar(d, "time", preset, "how long a repetition takes")
}

func checkTime(d time.Duration) error {
	if d <= 0 {
		return usageError{fmt.Errorf("--time %v: want more than nothing, 1s for example", d)}
	}
	return nil
}

const ioLong = `Measure what the drive gives at random places, by size of the requests, goroutines that make them, and way to read: past the page cache
(direct, the way coli reads experts), through it (buffered), or by touching the pages of a mapping (mmap). It is the figure that all reading of
experts is compared with.

FILE, or the files of the folder DIR or of a model (-m), are read and not written to. Without any, a file of --file-size is made in --dir, and
removed in the end.

With --state cold the files are evicted from the page cache before each repetition, and what goes through the cache reads each place once: a
repetition is over when all has been read. Direct reads do not look at the cache. Where the kernel lets coli (coli doctor says so), the block
layer is measured too: requests that a read became, the time they waited and were in the drive. --probe on,off tells what that costs.`

// ioFlags are the flags of `coli bench io`.
type ioFlags struct {
	model    string
	dir      string
	fileSize string
	sizes    sizesFlag
	readers  intsFlag
	modes    wordsFlag
	probe    wordsFlag
	time     time.Duration
	remove   func() error // the file that was made
}

// newBenchIOCmd returns `coli bench io`.
func newBenchIOCmd() *cobra.Command {
	f := &ioFlags{
		sizes: sizesFlag{"4KiB", "64KiB", "256KiB", "1MiB", "4MiB", "16MiB"}, readers: intsFlag{1, 2, 4, 8},
		modes: wordsFlag{[]string{"direct"}, func(w string) error { _, err := prefetcher.ParseWay(w); return err }},
		probe: onOffFlag("on"), remove: func() error { return nil },
	}
	cmd := newExperimentCmd(experimentCmd{
		name: "io", short: "What the drive gives, by request size, readers and way to read", long: ioLong,
		example: "  coli bench io\n  coli bench io model.gguf --size 1MiB-16MiB*4 --readers 1,4 --mode direct,buffered,mmap\n" +
			"  coli bench io -m model.coli --size 4KiB --readers 4 --probe on,off -r 20",
		states: []bench.State{bench.Cold, bench.Warm, bench.Rotating},
		define: func(cmd *cobra.Command) {
			group(cmd, "Files", func(fs *pflag.FlagSet) {
				fs.StringVarP(&f.model, "model", "m", "", "read the files of the model at `PATH`")
				fs.StringVar(&f.dir, "dir", ".", "make a file in the folder `DIR`, if none is given")
				fs.StringVar(&f.fileSize, "file-size", "2GiB", "of so many `bytes`")
			})
			group(cmd, "Reads, each a list", func(fs *pflag.FlagSet) {
				fs.Var(&f.sizes, "size", "bytes of a request")
				fs.Var(&f.readers, "readers", "goroutines that read at the same time")
				fs.Var(&f.modes, "mode", "direct, buffered, mmap")
				fs.Var(&f.probe, "probe", "measure the block layer meanwhile: on, off")
			})
			group(cmd, "Measurement", func(fs *pflag.FlagSet) { repetitionTime(fs, &f.time, time.Second) })
		},
		build: f.build,
	})
	cmd.Use = "io [FILE|DIR]"
	cmd.Args = cobra.MaximumNArgs(1)
	measure := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return errors.Join(measure(cmd, args), f.remove()) }
	return cmd
}

func (f *ioFlags) build(ctx context.Context, b *benchRun) (bench.Experiment, error) {
	cfg := bench.IOConfig{Readers: f.readers, Probe: f.probe.bools(), State: b.state, Time: f.time, Seed: b.seed}
	if err := errors.Join(checkTime(f.time), between("readers", f.readers, 1, prefetcher.MaxReaders)); err != nil {
		return nil, err
	}
	var largest int64
	for _, text := range f.sizes {
		size, err := ledger.ParseSize(text, 0)
		if err != nil {
			return nil, usageError{fmt.Errorf("--size %s: %w", text, err)}
		}
		cfg.Sizes, largest = append(cfg.Sizes, size), max(largest, size)
	}
	for _, word := range f.modes.words {
		way, err := prefetcher.ParseWay(word)
		if err != nil {
			return nil, err
		}
		cfg.Ways = append(cfg.Ways, way)
	}
	err := cfg.Check()
	if err != nil {
		return nil, err
	}
	if cfg.Files, err = f.files(b); err != nil {
		return nil, err
	}
	if cfg.Files == nil {
		path, err := f.make(ctx, b, largest)
		if err != nil {
			return nil, err
		}
		cfg.Files = []string{path}
	}
	return bench.NewIO(cfg)
}

// files are those that the command line names, nil if it names none.
func (f *ioFlags) files(b *benchRun) ([]string, error) {
	flags := b.cmd.Flags()
	own := flags.Changed("dir") || flags.Changed("file-size")
	switch path := flags.Arg(0); {
	case path != "" && f.model != "":
		return nil, usageError{fmt.Errorf("%s and -m %s: want one of the two", path, f.model)}
	case path == "" && f.model == "":
		return nil, nil
	case own:
		return nil, usageError{errors.New("--dir and --file-size are for a file that coli makes, when none is given")}
	case path != "":
		return bench.RegularFiles(path)
	}
	c, err := weights.Open(f.model)
	if err != nil {
		return nil, err
	}
	return c.Files(), c.Close()
}

// make writes a file to be read, with room for the largest request of every reader.
func (f *ioFlags) make(ctx context.Context, b *benchRun, largest int64) (path string, err error) {
	size, err := ledger.ParseSize(f.fileSize, 0)
	if err != nil {
		return "", usageError{fmt.Errorf("--file-size %s: %w", f.fileSize, err)}
	}
	if b.resume != "" {
		return "", usageError{errors.New("--resume goes on with the same file, and without FILE a new one is made each time: name one")}
	}
	most := int64(1)
	for _, n := range f.readers {
		most = max(most, int64(n))
	}
	if size < largest*most {
		return "", usageError{fmt.Errorf("--file-size %s: %d readers of %s each need %s at least", f.fileSize, most, ledger.FormatSize(largest),
			ledger.FormatSize(largest*most))}
	}
	dir := filepath.Clean(f.dir)
	path, remove, err := bench.MakeFile(ctx, dir, size, b.seed, func() {
		b.say(fmt.Sprintf("writing a file of %s in %s, to be removed in the end; given a FILE, that is read instead", ledger.FormatSize(size), dir))
	})
	if err == nil {
		f.remove = remove
	}
	return path, err
}

const kernelsLong = `Measure how fast matrices are multiplied in each format, and attention is computed, by the executor and with the threads that models use: with
one row of activations, as in decoding, where memory is the limit and GB/s of weights, or of keys and values, count, and with many, as in
reading a prompt, where arithmetic is (GOPS). Each figure stands beside a plain read of the same memory, made before and after it.

With several instruction sets (--cpu) and several numbers of rows the table says what each is worth beside the first, and beside one row at a
time. What is read lies in huge pages where the system has them, and is more than the caches hold.`

// newBenchKernelsCmd returns `coli bench kernels`.
func newBenchKernelsCmd() *cobra.Command {
	var names []string
	for _, f := range format.All() {
		names = append(names, strings.ToLower(f.String()))
	}
	formats := wordsFlag{names, func(word string) error { _, err := parseFormat(word, names); return err }}
	work := wordsFlag{bench.KernelOps[:1], func(word string) error {
		var op string
		return choose(&op, word, bench.KernelOps)
	}}
	isas := wordsFlag{parse: checkSet}
	heads := wordsFlag{[]string{"16x16x128", "32x4x128"}, func(word string) error { _, err := parseHeads(word); return err }}
	rows, threads, depths := intsFlag{1, 64}, intsFlag{0}, intsFlag{512, 2048}
	var shape, bytes string
	var d time.Duration
	return newExperimentCmd(experimentCmd{
		name: "kernels", short: "How fast matrices are multiplied, by format, and attention is computed", long: kernelsLong,
		example: "  coli bench kernels\n  coli bench kernels --format q4_k,q8_0 --rows 1,16,512 -t 1,2\n" +
			"  coli bench kernels --cpu all --plot plots/\n  coli bench kernels --op attention --heads 32x4x128 -d 512-8192*4 --rows 1,512",
		define: func(cmd *cobra.Command) {
			group(cmd, "Work, each a list", func(f *pflag.FlagSet) {
				f.Var(&work, "op", strings.Join(bench.KernelOps, ", "))
				f.Var(&formats, "format", "of the weights of matmul")
				f.Lookup("format").DefValue = "all"
				f.Var(&heads, "heads", "of attention: of queries x of keys and values x columns of each")
				f.VarP(&depths, "n-depth", "d", "positions before the first row of attention")
				f.Var(&rows, "rows", "of activations")
			})
			group(cmd, "Settings, each a list", func(f *pflag.FlagSet) {
				f.Var(&isas, "cpu", "instruction sets: avx512, avx2, generic, or all that there are (default: the best)")
				f.VarP(&threads, "threads", "t", "CPU threads, 0 for the physical cores this process may use")
			})
			group(cmd, "Memory", func(f *pflag.FlagSet) {
				f.StringVar(&shape, "shape", "2048x2048", "`ROWSxCOLUMNS` of a matrix")
				f.StringVar(&bytes, "bytes", "", "of all matrices, keys and values, gone through in turn (default: twice what the caches hold)")
			})
			group(cmd, "Measurement", func(f *pflag.FlagSet) { repetitionTime(f, &d, 100*time.Millisecond) })
		},
		build: func(_ context.Context, b *benchRun) (bench.Experiment, error) {
			cfg := bench.KernelsConfig{
				Ops: work.words, CPUs: isas.words, Rows: rows, Depths: depths, Memory: benchMemory(), Time: d, Seed: b.seed,
			}
			err := errors.Join(checkTime(d), between("rows", rows, 1, many), between("threads", threads, 0, engine.MaxThreads),
				between("n-depth", depths, 0, many))
			if _, e := fmt.Sscanf(shape+" ", "%dx%d ", &cfg.MatrixRows, &cfg.Cols); e != nil || cfg.MatrixRows < 1 || cfg.Cols < 1 {
				err = errors.Join(err, usageError{fmt.Errorf("--shape %s: want ROWSxCOLUMNS, 2048x2048 for example", shape)})
			}
			if bytes != "" {
				var e error
				if cfg.Bytes, e = ledger.ParseSize(bytes, 0); e != nil {
					err = errors.Join(err, usageError{fmt.Errorf("--bytes %s: %w", bytes, e)})
				}
			}
			if err != nil {
				return nil, err
			}
			cfg.Threads = threadCounts(threads)
			if slices.Contains(cfg.CPUs, allSets) {
				cfg.CPUs = kernels.Sets()
			}
			for _, name := range formats.words {
				f, err := parseFormat(name, names)
				if err != nil {
					return nil, err
				}
				cfg.Formats = append(cfg.Formats, f)
			}
			for _, word := range heads.words {
				h, err := parseHeads(word)
				if err != nil {
					return nil, err
				}
				cfg.Heads = append(cfg.Heads, h)
			}
			return bench.NewKernels(cfg)
		},
	})
}

// allSets stands for every instruction set that the machine has.
const allSets = "all"

// checkSet is an error if the machine does not have an instruction set.
func checkSet(word string) error {
	if sets := kernels.Sets(); word != allSets && !slices.Contains(sets, word) {
		return fmt.Errorf("%q is none of the instruction sets that this machine has: %s, or %s of them", word, strings.Join(sets, ", "), allSets)
	}
	return nil
}

// parseHeads reads the heads of attention: of queries, of keys and values, and columns of each.
func parseHeads(word string) (a ops.Attention, err error) {
	if _, err := fmt.Sscanf(word+" ", "%dx%dx%d ", &a.Heads, &a.KVHeads, &a.HeadDim); err != nil || max(a.Heads, a.KVHeads, a.HeadDim) > many {
		return a, fmt.Errorf("%q is not heads of queries x of keys and values x columns of each, 32x4x128 for example", word)
	}
	return a, nil
}

// parseFormat returns the format of a name in any case; the error has the nearest of names.
func parseFormat(name string, names []string) (format.Format, error) {
	f, err := format.Parse(name)
	if err == nil {
		return f, nil
	}
	if near := nearest(strings.ToLower(name), names); near != "" {
		return f, fmt.Errorf("no format is called %q; did you mean %s?", name, near)
	}
	return f, fmt.Errorf("no format is called %q; there are %s", name, strings.Join(names, ", "))
}

// threadCounts puts the number of physical cores in the place of 0.
func threadCounts(list []int) (all []int) {
	for _, n := range list {
		if n == 0 {
			n, _ = engine.DefaultThreads()
		}
		all = append(all, n)
	}
	return all
}

const mailboxLong = `Measure what coli's actors cost: the latency of a message, to an actor that parks when it is idle and to one that spins, from a sender that
waits for the answer and from one that goes on computing; messages in a row; and a MoE step of a model with all of its experts in memory, beside
the same work without actors ("over direct"). Experts in slots are not split over threads like mapped ones, which may win more than actors
cost; so the difference may be negative. Times are taken from outside: --measure and --trace tell what it costs if actors take them too.`

// newBenchMailboxCmd returns `coli bench mailbox`.
func newBenchMailboxCmd() *cobra.Command {
	tests := wordsFlag{bench.MailboxTests, func(word string) error {
		var test string
		return choose(&test, word, bench.MailboxTests)
	}}
	measure, trace := onOffFlag("off", "on"), onOffFlag("off", "on")
	threads := intsFlag{0}
	var path string
	var d time.Duration
	return newExperimentCmd(experimentCmd{
		name: "mailbox", short: "What actors cost: latency, throughput, a MoE step", long: mailboxLong,
		example: "  coli bench mailbox\n  coli bench mailbox --test step -m model.gguf -t 1,2",
		define: func(cmd *cobra.Command) {
			group(cmd, "Model", func(f *pflag.FlagSet) {
				f.StringVarP(&path, "model", "m", "", "`PATH` of the model whose MoE steps are made (default: the built-in model)")
			})
			group(cmd, "Messages, each a list", func(f *pflag.FlagSet) {
				f.Var(&tests, "test", strings.Join(bench.MailboxTests, ", "))
				f.VarP(&threads, "threads", "t", "CPU threads of steps, 0 for the physical cores this process may use")
				f.Var(&measure, "measure", "have actors take the times of messages, as for --metrics: on, off")
				f.Var(&trace, "trace", "have actors record what they do, as for --trace of coli run: on, off")
			})
			group(cmd, "Measurement", func(f *pflag.FlagSet) { repetitionTime(f, &d, 200*time.Millisecond) })
		},
		build: func(_ context.Context, b *benchRun) (bench.Experiment, error) {
			if err := errors.Join(checkTime(d), between("threads", threads, 0, engine.MaxThreads)); err != nil {
				return nil, err
			}
			cfg := bench.MailboxConfig{
				Tests: tests.words, Threads: threadCounts(threads), Memory: benchMemory(), Measure: measure.bools(), Trace: trace.bools(), Time: d,
				Seed: b.seed,
			}
			if strings.Contains(tests.String(), "step") {
				var err error
				if cfg.Model, err = modelPath(b.cmd, path); err != nil {
					return nil, err
				}
			}
			return bench.NewMailbox(cfg)
		},
	})
}
