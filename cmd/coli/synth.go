package main

import (
	"errors"
	"os"
	"strings"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coli-moe/coli/synth"
	"github.com/coli-moe/coli/weights/format"
)

func newSynthCmd() *cobra.Command {
	o := synth.Options{Experts: format.Q4_K, Dense: format.Q8_0}
	var path string
	cmd := &cobra.Command{
		Use:   "synth -o FILE.gguf",
		Short: "Write a model of a known geometry with random weights",
		Long: "Write a GGUF file with the geometry of a known Mixture-of-Experts model, random weights and a small vocabulary.\n" +
			"It is as large and as fast as the model it imitates, and talks nonsense: use it to measure and to test.\n\n" +
			"Random routers treat all experts alike, which trained ones do not; --skew 1 makes a quarter of 64 experts take two thirds of the\n" +
			"tokens. Together with the number and the width of experts that is what caches and disks are measured with.",
		Example: "  coli synth --like olmoe-1b-7b --experts q4_k --dense q8_0 -o olmoe.gguf\n" +
			"  coli synth --arch qwen3moe --layers 4 --vocab 1024 -o small.gguf\n" +
			"  coli synth --like olmoe-1b-7b --num-experts 256 --moe-intermediate-size 2048 --skew 1 -o large.gguf",
		Args: noWords("the file to write is named by -o"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return usageError{errors.New("--output is missing: name the file to write, as in -o model.gguf")}
			}
			ctx, stop := endable(cmd.Context())
			defer stop()
			var progress func(done, total int64)
			if term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
				bar := progressbar.NewOptions64(1, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription("writing"),
					progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(patience/3),
					progressbar.OptionSetPredictTime(false), progressbar.OptionClearOnFinish())
				defer bar.Exit() //nolint:errcheck // a bar that cannot be drawn is no reason to stop
				progress = func(done, total int64) {
					bar.ChangeMax64(total)
					bar.Set64(done) //nolint:errcheck // likewise
				}
			}
			return synth.Write(ctx, path, o, progress)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&path, "output", "o", "", "`FILE` to write; one already there is replaced when the new one is complete")
	flags.StringVar(&o.Arch, "arch", "", "architecture: olmoe or qwen3moe (default: that of --like)")
	flags.StringVar(&o.Like, "like", "", "geometry: "+strings.Join(synth.Geometries(), ", ")+" (default: the first of --arch)")
	flags.Var((*formatFlag)(&o.Experts), "experts", "`FORMAT` of the experts' weights")
	flags.Var((*formatFlag)(&o.Dense), "dense", "`FORMAT` of the other matrices; norms and routers are F32")
	flags.IntVar(&o.Layers, "layers", 0, "number of layers (default: the geometry's)")
	flags.IntVar(&o.Vocab, "vocab", 0, "tokens in the vocabulary (default: the geometry's)")
	flags.IntVar(&o.NumExperts, "num-experts", 0, "routed experts of a layer (default: the geometry's)")
	flags.IntVar(&o.TopK, "num-experts-per-tok", 0, "experts a token takes (default: the geometry's)")
	flags.IntVar(&o.ExpertFFN, "moe-intermediate-size", 0, "width of an expert (default: the geometry's)")
	flags.Float64Var(&o.Skew, "skew", 0, "popularity of experts follows Zipf's law with exponent `S`; 0 leaves it to chance")
	flags.Uint64Var(&o.Seed, "seed", 0, "seed of the weights: equal flags give equal files")
	return cmd
}

// formatFlag is a weight format as a flag's value.
type formatFlag format.Format

func (f *formatFlag) String() string { return format.Format(*f).String() }

func (f *formatFlag) Type() string { return "format" }

func (f *formatFlag) Set(name string) error {
	parsed, err := format.Parse(name)
	*f = formatFlag(parsed)
	return err
}
