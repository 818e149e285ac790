// Package synth writes synthetic models: GGUF files with the geometry of a real Mixture-of-Experts model and random weights, for
// benchmarks and tests. Their sizes, formats, routing and speed are those of the real thing; their words are noise. llama.cpp opens
// them too, so that the two can be timed side by side.
//
// What does not live here: the formats and their encoders (package weights/format), and reading GGUF (package weights/gguf).
package synth

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/coli-moe/coli/weights/format"
)

// Options say which model to write. The zero value of a field takes the default stated there.
type Options struct {
	Arch    string        // general.architecture of GGUF, olmoe or qwen3moe; default: Like's
	Like    string        // a name of Geometries; default: the first of them that has this Arch
	Experts format.Format // of the routed experts' gate, up and down matrices; default Q4_K
	Dense   format.Format // of the other matrices; the router is F32, like the norms; default Q8_0
	Layers  int           // default: the geometry's
	Vocab   int           // tokens; default: the geometry's
	// NumExperts, TopK and ExpertFFN are the routed experts of a layer, those a token takes, and their intermediate size; default: the
	// geometry's. They make a model whose experts have a wanted size and number.
	NumExperts, TopK, ExpertFFN int
	// Skew is the exponent of Zipf's law that the popularity of a layer's experts follows; 0 leaves it to chance, which is nearly flat.
	Skew float64
	Seed uint64 // equal options give equal files
}

// geometry holds a model's hyper-parameters under the field's names.
type geometry struct {
	name, arch            string
	layers, hidden        int
	heads, kvHeads        int
	headDim               int
	experts, topK         int
	expertFFN, ffn        int // intermediate size of an expert, and what feed_forward_length says
	context, vocab        int
	ropeTheta, rmsNormEps float32
	headNorm              bool // q and k are normalised head by head, not as a whole
}

// geometries lists the models to imitate, an architecture's default first; the figures are those of the models' config.json.
var geometries = []geometry{
	{
		name: "olmoe-1b-7b", arch: "olmoe", layers: 16, hidden: 2048, heads: 16, kvHeads: 16, headDim: 128, experts: 64, topK: 8,
		expertFFN: 1024, ffn: 1024, context: 4096, vocab: 50304, ropeTheta: 1e4, rmsNormEps: 1e-5,
	},
	{
		name: "qwen3-30b-a3b", arch: "qwen3moe", layers: 48, hidden: 2048, heads: 32, kvHeads: 4, headDim: 128, experts: 128, topK: 8,
		expertFFN: 768, ffn: 6144, context: 40960, vocab: 151936, ropeTheta: 1e6, rmsNormEps: 1e-6, headNorm: true,
	},
	{
		name: "olmoe-tiny", arch: "olmoe", layers: 2, hidden: 256, heads: 4, kvHeads: 4, headDim: 64, experts: 8, topK: 2,
		expertFFN: 256, ffn: 256, context: 512, vocab: 320, ropeTheta: 1e4, rmsNormEps: 1e-5,
	},
	{
		name: "qwen3-tiny", arch: "qwen3moe", layers: 2, hidden: 256, heads: 8, kvHeads: 2, headDim: 64, experts: 8, topK: 2,
		expertFFN: 256, ffn: 512, context: 512, vocab: 320, ropeTheta: 1e6, rmsNormEps: 1e-6, headNorm: true,
	},
}

// Geometries lists the names Options.Like takes.
func Geometries() []string {
	var out []string
	for _, g := range geometries {
		out = append(out, g.name)
	}
	return out
}

// resolve fills in o's defaults and returns the geometry with o's overrides.
func (o *Options) resolve() (geometry, error) {
	i := slices.IndexFunc(geometries, func(g geometry) bool {
		return (o.Like == "" || o.Like == g.name) && (o.Arch == "" || o.Arch == g.arch)
	})
	if i < 0 {
		var known []string
		for _, g := range geometries {
			known = append(known, fmt.Sprintf("%s (%s)", g.name, g.arch))
		}
		var asked []string
		if o.Like != "" {
			asked = append(asked, fmt.Sprintf("--like %q", o.Like))
		}
		if o.Arch != "" {
			asked = append(asked, fmt.Sprintf("--arch %q", o.Arch))
		}
		return geometry{}, fmt.Errorf("%s: no such geometry; there are %s", strings.Join(asked, " "), strings.Join(known, ", "))
	}
	g := geometries[i]
	o.Experts, o.Dense = cmp.Or(o.Experts, format.Q4_K), cmp.Or(o.Dense, format.Q8_0)
	if o.Layers < 0 || o.Layers > maxLayers {
		return g, fmt.Errorf("%d layers; the number must lie between 1 and %d, or be 0 for %s's %d", o.Layers, maxLayers, g.name, g.layers)
	}
	if o.Vocab != 0 && (o.Vocab < minVocab || o.Vocab > maxVocab) {
		return g, fmt.Errorf("a vocabulary of %d; it must have between %d and %d tokens, or be 0 for %s's %d",
			o.Vocab, minVocab, maxVocab, g.name, g.vocab)
	}
	g.layers, g.vocab = cmp.Or(o.Layers, g.layers), cmp.Or(o.Vocab, g.vocab)
	g.experts, g.topK, g.expertFFN = cmp.Or(o.NumExperts, g.experts), cmp.Or(o.TopK, g.topK), cmp.Or(o.ExpertFFN, g.expertFFN)
	if g.arch == "olmoe" {
		g.ffn = g.expertFFN // that is where olmoe says it
	}
	switch {
	case g.experts < 1 || g.experts > maxExperts:
		return g, fmt.Errorf("%d experts; there must be between 1 and %d", g.experts, maxExperts)
	case g.topK < 1 || g.topK > g.experts:
		return g, fmt.Errorf("%d of %d experts a token; choose at least one and no more than there are", g.topK, g.experts)
	case g.expertFFN < 1 || g.expertFFN > maxFFN:
		return g, fmt.Errorf("experts %d wide; the width must lie between 1 and %d", g.expertFFN, maxFFN)
	case o.Skew < 0 || o.Skew > maxSkew || math.IsNaN(o.Skew):
		return g, fmt.Errorf("a skew of %v; it must lie between 0 and %v", o.Skew, maxSkew)
	}
	for _, f := range []format.Format{o.Experts, o.Dense} {
		if !f.CanEncode() {
			return g, fmt.Errorf("coli cannot write the format %s; choose one of %s", f, strings.Join(writable(), ", "))
		}
		if f.Info().GGML < 0 {
			return g, fmt.Errorf("GGUF has no type for the format %s; choose one of %s", f, strings.Join(writable(), ", "))
		}
	}
	return g, nil
}

// Limits that keep a mistyped number from filling the disk.
const (
	maxLayers  = 1024
	maxVocab   = 1 << 22
	maxExperts = 1024
	maxFFN     = 1 << 20
	maxSkew    = 4.0
)

// writable names the formats Options takes.
func writable() (out []string) {
	for _, f := range format.All() {
		if f.CanEncode() && f.Info().GGML >= 0 {
			out = append(out, f.String())
		}
	}
	return out
}

// tensor is one tensor of the plan. dims are in GGUF's order: columns first, then rows, then experts.
type tensor struct {
	name   string
	format format.Format
	dims   []int
	mean   float32 // of its values; their standard deviation is std
	std    float32
	offset int64 // from the start of the data section
	size   int64

	first   func(row int) float32 // column 0, rows counted from the tensor's beginning; nil: like the others
	silence bool                  // the first row of each matrix is zero
}

// plan lists the tensors of the model, placed one after the other.
func plan(g geometry, o Options) ([]tensor, error) {
	var out []tensor
	matrix := func(name string, f format.Format, dims ...int) {
		// With this spread a row times a normalised activation is a standard normal deviate: logits stay sensible, nothing overflows.
		out = append(out, tensor{name: name + ".weight", format: f, dims: dims, std: float32(1 / math.Sqrt(float64(dims[0])))})
	}
	norm := func(name string, n int) {
		out = append(out, tensor{name: name + ".weight", format: format.F32, dims: []int{n}, mean: 1, std: 0.05})
	}
	q, kv := g.heads*g.headDim, g.kvHeads*g.headDim
	qNorm, kNorm := q, kv
	if g.headNorm {
		qNorm, kNorm = g.headDim, g.headDim
	}
	matrix("token_embd", o.Dense, g.hidden, g.vocab)
	out[0].std = 1 // the token itself outweighs what layers add, so that tokens differ in the experts they take
	for l := range g.layers {
		b := fmt.Sprintf("blk.%d.", l)
		norm(b+"attn_norm", g.hidden)
		matrix(b+"attn_q", o.Dense, g.hidden, q)
		matrix(b+"attn_k", o.Dense, g.hidden, kv)
		matrix(b+"attn_v", o.Dense, g.hidden, kv)
		matrix(b+"attn_output", o.Dense, q, g.hidden)
		norm(b+"attn_q_norm", qNorm)
		norm(b+"attn_k_norm", kNorm)
		norm(b+"ffn_norm", g.hidden)
		matrix(b+"ffn_gate_inp", format.F32, g.hidden, g.experts)
		matrix(b+"ffn_gate_exps", o.Experts, g.hidden, g.expertFFN, g.experts)
		matrix(b+"ffn_up_exps", o.Experts, g.hidden, g.expertFFN, g.experts)
		matrix(b+"ffn_down_exps", o.Experts, g.expertFFN, g.hidden, g.experts)
	}
	norm("output_norm", g.hidden)
	matrix("output", o.Dense, g.hidden, g.vocab)
	if o.Skew > 0 {
		skew(out, g, o)
	}

	var offset int64
	for i := range out {
		t := &out[i]
		row, err := t.format.RowBytes(t.dims[0])
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w; choose a format with a smaller block, such as Q8_0", t.name, err)
		}
		t.offset, t.size = offset, int64(row)
		for _, n := range t.dims[1:] {
			t.size *= int64(n)
		}
		offset = align(offset + t.size)
	}
	return out, nil
}

// Write writes the model that o describes to path. A file already there is replaced only once the new one is complete; after an error
// or when ctx is cancelled no part of the new one is left. progress, if not nil, is called from this goroutine with the bytes written
// and the file's size.
func Write(ctx context.Context, path string, o Options, progress func(done, total int64)) error {
	g, err := o.resolve()
	if err != nil {
		return err
	}
	tensors, err := plan(g, o)
	if err != nil {
		return err
	}
	head := header(metadata(g, o), tensors)
	last := tensors[len(tensors)-1]
	total := int64(len(head)) + align(last.offset+last.size)
	return replaceFile(path, total, func(w io.Writer) error {
		return write(&output{ctx: ctx, w: w, total: total, progress: progress}, head, tensors, o.Seed)
	})
}

// write emits the file: head, then every tensor with its padding.
func write(out *output, head []byte, tensors []tensor, seed uint64) error {
	if _, err := out.Write(head); err != nil {
		return err
	}
	pools := make(map[poolKey]*pool)
	for i, t := range tensors {
		key := poolKey{t.format, gcd(t.dims[0], maxChunk), t.mean, t.std}
		if pools[key] == nil {
			p, err := newPool(key, seed)
			if err != nil {
				return fmt.Errorf("tensor %s: %w", t.name, err)
			}
			pools[key] = p
		}
		if err := pools[key].fill(out, &t, newRand(seed, uint64(i))); err != nil {
			return err
		}
		if _, err := out.Write(make([]byte, align(t.size)-t.size)); err != nil {
			return err
		}
	}
	return nil
}

// output counts what passes to w and stops when ctx is cancelled.
type output struct {
	ctx         context.Context
	w           io.Writer
	done, total int64
	progress    func(done, total int64)
}

func (o *output) Write(p []byte) (int, error) {
	if err := context.Cause(o.ctx); err != nil {
		return 0, err
	}
	n, err := o.w.Write(p)
	o.done += int64(n)
	if o.progress != nil {
		o.progress(o.done, o.total)
	}
	return n, err
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
