// Package inspect describes a checkpoint without running it: sizes, formats and the kernels they get on this processor. It works on
// architectures that coli cannot run too, as far as their tensors' names go.
//
// What does not live here: opening files (package weights) and printing (cmd/coli).
package inspect

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coli-moe/coli/chat"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/model"
	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/format"
)

// Info describes a checkpoint.
type Info struct {
	Name         string `json:"name"`
	Architecture string `json:"architecture"`
	Runs         bool   `json:"runs"` // coli has the architecture
	Files        int    `json:"files"`
	Bytes        int64  `json:"bytes"` // of all tensors
	// Parameters are the values of all tensors. Active are those that take part in one token: of the routed experts top-k, all others whole,
	// the embedding included; 0 where the file does not say how many experts a token takes.
	Parameters int64 `json:"parameters"`
	Active     int64 `json:"active_parameters"`
	Layers     int   `json:"layers"`
	Context    int   `json:"context"`    // the longest context it was trained for, 0 where not given
	Vocabulary int   `json:"vocabulary"` // tokens

	Experts      Experts  `json:"experts"`
	Tokenizer    string   `json:"tokenizer"` // kind of vocabulary, "" without one
	ChatTemplate bool     `json:"chat_template"`
	Classes      []Class  `json:"tensors"`
	Warnings     []string `json:"warnings"`
}

// Experts are the routed experts. Count is 0 for a dense model.
type Experts struct {
	Count  int `json:"count"`  // in a layer
	TopK   int `json:"top_k"`  // of them, a token
	Layers int `json:"layers"` // that have experts
	// Bytes of one expert; they differ where layers have different formats. 0 in a layout that package weights does not know.
	MinBytes int64 `json:"min_bytes"`
	MaxBytes int64 `json:"max_bytes"`
}

// Class is the tensors of one role in one format.
type Class struct {
	Role          string  `json:"role"`
	Format        string  `json:"format"`
	Tensors       int     `json:"tensors"`
	Parameters    int64   `json:"parameters"`
	Bytes         int64   `json:"bytes"` // scales kept in tensors of their own included
	BitsPerWeight float64 `json:"bits_per_weight"`
	// Kernel is the instruction set that multiplies these matrices on this processor; "" for what is not multiplied (vectors, the rows of an
	// embedding) and for formats coli does not compute with. A kernel that is not Direct decodes each row first.
	Kernel string `json:"kernel,omitempty"`
	Direct bool   `json:"direct"`
}

// Checkpoint describes c.
func Checkpoint(c *weights.Checkpoint) (*Info, error) {
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	in := &Info{
		Name: name(c, cfg), Architecture: cfg.ModelType, Runs: slices.Contains(model.Architectures(), cfg.ModelType),
		Files: len(c.Files()), Layers: cfg.NumHiddenLayers, Context: cfg.MaxPositionEmbeddings, Vocabulary: cfg.VocabSize,
		Experts: Experts{Count: cfg.NumExperts, TopK: cfg.NumExpertsPerTok}, Warnings: []string{},
	}
	in.tensors(c)
	if err := in.tokenizer(c); err != nil {
		return nil, err
	}
	if !in.Runs {
		in.warn("%s", (&model.ErrUnsupported{ModelType: cfg.ModelType}).Error())
	}
	return in, nil
}

func (in *Info) warn(format string, args ...any) {
	in.Warnings = append(in.Warnings, fmt.Sprintf(format, args...))
}

// name is the publisher's, or that of the file or folder.
func name(c *weights.Checkpoint, cfg *weights.Config) string {
	for _, key := range []string{"general.name", "_name_or_path"} {
		if s, ok := cfg.Raw[key].(string); ok && s != "" {
			return s
		}
	}
	if c.GGUF() != nil {
		return strings.TrimSuffix(filepath.Base(c.Files()[0]), ".gguf")
	}
	if abs, err := filepath.Abs(c.Dir()); err == nil {
		return filepath.Base(abs)
	}
	return filepath.Base(c.Dir())
}

type tensorRole struct {
	name    string
	pattern *regexp.Regexp
}

// roles of tensors in the order they are shown in, with what their names look like in released checkpoints and in GGUF; the first that
// matches holds.
var roles = []tensorRole{
	{"embedding", regexp.MustCompile(`embed_tokens|token_embd|embeddings\.weight|wte\b`)},
	{"norm", regexp.MustCompile(`(?i)norm`)},
	{"attention", regexp.MustCompile(`attn|attention`)},
	{"router", regexp.MustCompile(`(mlp|moe|block_sparse_moe)\.(gate|router)\.|ffn_gate_inp|exp_probs_b`)},
	{"shared expert", regexp.MustCompile(`shared_expert|_shexp`)},
	{"expert gate+up", regexp.MustCompile(`experts\.gate_up_proj|ffn_gate_up_exps`)},
	{"expert gate", regexp.MustCompile(`experts\.\d+\.(gate_proj|w1)|ffn_gate_exps`)},
	{"expert up", regexp.MustCompile(`experts\.\d+\.(up_proj|w3)|ffn_up_exps`)},
	{"expert down", regexp.MustCompile(`experts\.(\d+\.)?(down_proj|w2)|ffn_down_exps`)},
	{"dense mlp", regexp.MustCompile(`mlp|ffn_`)},
	{"head", regexp.MustCompile(`lm_head|^output\.weight`)},
	{"other", regexp.MustCompile(``)},
}

func role(tensor string) int {
	return slices.IndexFunc(roles, func(r tensorRole) bool { return r.pattern.MatchString(tensor) })
}

// layerOf finds the layer number in a tensor's name.
var layerOf = regexp.MustCompile(`(?:layers|blk|h)\.(\d+)\.`)

// tensors fills in everything that is counted.
func (in *Info) tensors(c *weights.Checkpoint) {
	type classKey struct {
		role   int
		format string
		vector bool
	}
	classes := map[classKey]*Class{}
	scales := map[*weights.Tensor]bool{}
	for _, t := range c.Tensors() {
		scales[t.Scale], scales[t.Packed()] = true, true
	}
	_, head := c.Lookup("lm_head.weight", "output.weight")
	var routed int64
	sparse := map[string]bool{} // layers with experts
	for _, t := range c.Tensors() {
		if scales[t] {
			continue
		}
		k := classKey{role(t.Name), t.Type, len(t.Shape) < 2}
		if t.Format != format.Unknown {
			k.format = t.Format.String()
		}
		cl := classes[k]
		if cl == nil {
			cl = &Class{Role: roles[k.role].name, Format: k.format}
			classes[k] = cl
			if !k.vector && t.Packed() == nil && (cl.Role != "embedding" || !head) { // a tied embedding is multiplied as the head
				in.kernel(cl, t.Format)
			}
		}
		values, bytes := int64(t.Rows())*int64(t.Cols()), storedBytes(t)
		cl.Tensors++
		cl.Parameters += values
		cl.Bytes += bytes
		cl.BitsPerWeight = float64(8*cl.Bytes) / float64(cl.Parameters)
		in.Parameters += values
		in.Bytes += bytes
		if strings.HasPrefix(cl.Role, "expert") {
			routed += values
			if m := layerOf.FindStringSubmatch(t.Name); m != nil {
				sparse[m[1]] = true
			}
		}
	}
	order := slices.SortedFunc(maps.Keys(classes), func(a, b classKey) int {
		return cmp.Or(cmp.Compare(a.role, b.role), cmp.Compare(a.format, b.format), cmp.Compare(classes[b].Bytes, classes[a].Bytes))
	})
	for _, k := range order {
		in.Classes = append(in.Classes, *classes[k])
	}
	slices.Sort(in.Warnings)
	in.Warnings = slices.Compact(in.Warnings)
	switch e := &in.Experts; {
	case routed == 0:
		in.Active = in.Parameters
	case e.Count > 0 && e.TopK > 0:
		in.Active = in.Parameters - routed + routed/int64(e.Count)*int64(e.TopK)
	}
	in.expertBytes(c, sparse)
}

// storedBytes is the size of a tensor with its scales.
func storedBytes(t *weights.Tensor) int64 {
	bytes := t.Size
	for _, scales := range []*weights.Tensor{t.Scale, t.Packed()} {
		if scales != nil {
			bytes += scales.Size
		}
	}
	return bytes
}

// kernel says what multiplies the class and warns of what is slow.
func (in *Info) kernel(cl *Class, f format.Format) {
	k := kernels.For(f)
	if k == nil {
		in.warn("%s: coli has no kernel for this type", cl.Format)
		return
	}
	cl.Kernel, cl.Direct = k.ISA, k.Direct
	best := kernels.For(format.Q8_0).ISA // every instruction set has this one
	if best == "generic" {
		in.warn("all kernels are plain Go, 10 to 100 times slower than those for AVX2, which this processor lacks or COLI_CPU leaves out")
	}
	switch {
	case !k.Direct:
		in.warn("%s: no direct kernel, each row is decoded to float32 first: slower", cl.Format)
	case k.ISA == "generic" && best != k.ISA:
		in.warn("%s: computed by plain Go code, not with %s: slower", cl.Format, best)
	}
}

// expertBytes measures the first expert of each layer; layouts that package weights does not know are left out.
func (in *Info) expertBytes(c *weights.Checkpoint, layers map[string]bool) {
	e := &in.Experts
	e.Layers = len(layers)
	for layer := range layers {
		il, err := strconv.Atoi(layer)
		if err != nil {
			continue
		}
		gate, up, down, err := c.Expert(il, 0)
		if err != nil {
			continue
		}
		n := storedBytes(gate) + storedBytes(up) + storedBytes(down)
		if e.MinBytes == 0 || n < e.MinBytes {
			e.MinBytes = n
		}
		e.MaxBytes = max(e.MaxBytes, n)
	}
}

// tokenizer says what vocabulary and chat template the checkpoint brings.
func (in *Info) tokenizer(c *weights.Checkpoint) error {
	if g := c.GGUF(); g != nil {
		in.Tokenizer, _ = g.String("tokenizer.ggml.model")
		if pre, ok := g.String("tokenizer.ggml.pre"); ok {
			in.Tokenizer += ", pre-tokenizer " + pre
		}
		_, in.ChatTemplate = g.String("tokenizer.chat_template")
	} else {
		kind, err := jsonTokenizer(filepath.Join(c.Dir(), "tokenizer.json"))
		if err != nil {
			return err
		}
		in.Tokenizer = kind
		_, err = chat.FromDir(c.Dir())
		in.ChatTemplate = !errors.Is(err, chat.ErrNoTemplate)
		if err != nil && in.ChatTemplate {
			in.warn("the chat template cannot be used: %v", err)
		}
	}
	if in.Tokenizer == "" {
		in.warn("no tokenizer: the model cannot read or write text")
	}
	return nil
}

// jsonTokenizer is the kind of vocabulary in a tokenizer.json, "" without the file.
func jsonTokenizer(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var file struct{ Model struct{ Type string } }
	if err := json.Unmarshal(data, &file); err != nil {
		return "", fmt.Errorf("%s: %w; download the file again", path, err)
	}
	if file.Model.Type == "" {
		file.Model.Type = "BPE" // what the library takes when the file does not say
	}
	return file.Model.Type + ", tokenizer.json", nil
}
