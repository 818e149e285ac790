// Package weights opens checkpoints: safetensors (one file, sharded, or in a Hugging Face cache), GGUF (one file or split) and coli
// containers, and presents one catalogue of tensors and one typed config over all of them.
//
// Opening reads headers only. A tensor keeps the name its file gives it; which names an architecture expects, and what it does with
// them, is the matter of package model. Decoding of values is package format's, reading of experts on the hot path package prefetcher's,
// which takes extents from here.
package weights

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/coli-moe/coli/weights/format"
	"github.com/coli-moe/coli/weights/gguf"
	"github.com/coli-moe/coli/weights/internal/badfile"
	"github.com/coli-moe/coli/weights/safetensors"
)

// Checkpoint is an open model. Its methods are safe for concurrent use; Close must come after all others.
type Checkpoint struct {
	dir     string
	files   []*file
	tensors []*Tensor
	byName  map[string]*Tensor
	gguf    *gguf.File // of the first part; nil for safetensors
	config  func() (*Config, error)

	records  map[int][][3]*Tensor // of a coli container: gate, up and down by layer and expert
	metadata int64                // where the GGUF header begins in the first file
	declared map[string]int       // format numbers by tensor, see declarationKey
}

// file is one open weight file.
type file struct {
	path string
	size int64
	f    *os.File
	mapping
}

// Open opens the checkpoint at path: a .gguf file (any part of a split one), a .safetensors file (any shard), a
// model.safetensors.index.json, a model.coli, or a directory with one of these, a Hugging Face cache directory included. Errors are *Error.
func Open(path string) (*Checkpoint, error) {
	src, err := locate(path)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{dir: src.dir, byName: map[string]*Tensor{}, declared: map[string]int{}}
	c.config = sync.OnceValues(c.readConfig)
	if err := c.open(src); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Checkpoint) open(src source) error {
	for i, path := range src.files {
		f, err := os.Open(path)
		if err != nil {
			return osError(path, err)
		}
		fl := &file{path: path, f: f}
		c.files = append(c.files, fl)
		st, err := f.Stat()
		switch {
		case err != nil:
			return osError(path, err)
		case !st.Mode().IsRegular():
			return badfile.In(path, ErrMagic, "not a regular file")
		}
		fl.size = st.Size()
		switch src.kind {
		case kindGGUF:
			err = c.addGGUF(fl, i, len(src.files))
		case kindContainer:
			err = c.addContainer(fl)
		default:
			err = c.addSafetensors(fl, src.index)
		}
		if err != nil {
			return osError(path, err)
		}
	}
	if err := src.checkIndex(c); err != nil {
		return err
	}
	switch src.kind {
	case kindGGUF:
		return c.checkSplit()
	case kindContainer:
		return nil
	}
	c.pairQuantised()
	return c.pairScales()
}

func (c *Checkpoint) addGGUF(fl *file, part, parts int) error {
	g, err := gguf.Read(fl.f, fl.size, fl.path)
	if err != nil {
		return err
	}
	if c.gguf == nil {
		c.gguf = g
	}
	no, _ := g.Uint("split.no")
	count, _ := g.Uint("split.count")
	if no != uint64(part) || max(count, 1) != uint64(parts) {
		return badfile.In(fl.path, ErrMissingShard, "its metadata says part %d of %d, its name part %d of %d", no+1, max(count, 1), part+1, parts).
			Advise("give split files the names they were published under, PREFIX-00001-of-%05d.gguf", max(count, 1))
	}
	for _, t := range g.Tensors {
		if err := c.add(&Tensor{Name: t.Name, Type: t.Type, Format: t.Format, Shape: t.Shape, Offset: t.Offset, Size: t.Size}, fl); err != nil {
			return err
		}
	}
	return nil
}

// checkSplit compares the number of tensors with what the first part says.
func (c *Checkpoint) checkSplit() error {
	if n, ok := c.gguf.Uint("split.tensors.count"); ok && n != uint64(len(c.tensors)) {
		return badfile.In(c.gguf.Path, ErrLayout, "%d tensors in %d parts", len(c.tensors), len(c.files)).
			ForKey(fmt.Sprintf("split.tensors.count = %d", n)).Advise("download all parts of one and the same file")
	}
	return nil
}

// formatOf maps the types of safetensors that matrices use as they are.
var formatOf = map[string]format.Format{"F32": format.F32, "F16": format.F16, "BF16": format.BF16}

// addSafetensors adds the tensors of a file; with an index, those that the index places in it.
func (c *Checkpoint) addSafetensors(fl *file, index map[string]string) error {
	s, err := safetensors.Read(fl.f, fl.size, fl.path)
	if err != nil {
		return err
	}
	if err := c.declare(fl, s.Metadata); err != nil {
		return err
	}
	base := filepath.Base(fl.path)
	for _, t := range s.Tensors {
		if index != nil && index[t.Name] != base {
			continue
		}
		u := &Tensor{Name: t.Name, Type: t.DType, Format: formatOf[t.DType], Shape: t.Shape, Offset: t.Offset, Size: t.Size}
		if err := c.add(u, fl); err != nil {
			return err
		}
	}
	return nil
}

func (c *Checkpoint) add(t *Tensor, fl *file) error {
	if old, ok := c.byName[t.Name]; ok {
		return badfile.At(fl.path, t.Offset, ErrDuplicate, "the tensor is in %s too", filepath.Base(old.File)).Of(t.Name).
			Advise(badfile.TryDownload)
	}
	t.File, t.file = fl.path, fl
	c.byName[t.Name] = t
	c.tensors = append(c.tensors, t)
	return nil
}

// scaleSuffix names the tensor of scales that belongs to a block-quantised fp8 tensor (DeepSeek-V3's convention).
const scaleSuffix = "_scale_inv"

// fp8Tile is the edge of the square that shares one scale.
const fp8Tile = 128

// pairScales joins fp8 tensors with their scales. An fp8 tensor without scales stays in the catalogue with format.Unknown.
func (c *Checkpoint) pairScales() error {
	for _, t := range c.tensors {
		scale, ok := c.byName[t.Name+scaleSuffix]
		if t.Type != "F8_E4M3" || !ok || len(t.Shape) < 2 {
			continue
		}
		n := len(t.Shape)
		want := append([]int{}, t.Shape...)
		want[n-2], want[n-1] = tiles(t.Shape[n-2]), tiles(t.Shape[n-1])
		if scale.Format != format.F32 || !slices.Equal(scale.Shape, want) {
			return badfile.At(scale.File, scale.Offset, ErrShape, "%s %v, tensor %q %v needs F32 %v", scale.Type, scale.Shape, t.Name, t.Shape,
				want).Of(scale.Name).Advise("use a checkpoint quantised in tiles of %d×%d", fp8Tile, fp8Tile)
		}
		t.Format, t.Scale, scale.companion = format.F8E4M3, scale, true
	}
	return nil
}

func tiles(n int) int { return (n + fp8Tile - 1) / fp8Tile }

// Close releases files and mappings; bytes returned by Map and LoadRows are invalid afterwards.
func (c *Checkpoint) Close() error {
	var err error
	for _, f := range c.files {
		err = errors.Join(err, f.unmap(), f.f.Close())
	}
	c.files = nil
	return err
}

// Dir returns the directory that holds the checkpoint and, for safetensors, its config and tokenizer files.
func (c *Checkpoint) Dir() string { return c.dir }

// Files returns the paths of the weight files in order.
func (c *Checkpoint) Files() []string {
	out := make([]string, len(c.files))
	for i, f := range c.files {
		out[i] = f.path
	}
	return out
}

// GGUF returns the header of the (first) GGUF file, or the one a coli container keeps of the file it was made from; nil for models that
// come from safetensors.
func (c *Checkpoint) GGUF() *gguf.File { return c.gguf }

// Config returns the hyper-parameters from config.json and generation_config.json, or from GGUF metadata.
func (c *Checkpoint) Config() (*Config, error) { return c.config() }

// Tensors returns every tensor in file order, scale companions included.
func (c *Checkpoint) Tensors() []*Tensor { return c.tensors }

// Lookup returns the first of the names that the checkpoint has.
func (c *Checkpoint) Lookup(names ...string) (*Tensor, bool) {
	for _, name := range names {
		if t, ok := c.byName[name]; ok {
			return t, true
		}
	}
	return nil, false
}

// Expert returns the three matrices of one routed expert: gate and up [I,H], down [H,I]. It knows five layouts: GGUF's stacked
// tensors, one tensor a matrix, the fused gate_up_proj [E,2I,H] (gate rows first) with down_proj [E,H,I], merged_weight with the three
// one after the other, and the coli container, where they are too.
func (c *Checkpoint) Expert(layer, expert int) (gate, up, down *Tensor, err error) {
	if c.records != nil {
		return c.containerExpert(layer, expert)
	}
	hf, gg := fmt.Sprintf("model.layers.%d.mlp.experts.", layer), fmt.Sprintf("blk.%d.ffn_", layer)
	single := fmt.Sprintf("%s%d.", hf, expert)
	if gate, up, down, ok, err := c.quantisedExpert(single); ok {
		return gate, up, down, err
	}
	if gate, ok := c.Lookup(single + "gate_proj.weight"); ok {
		rest, err := c.Require(Need{Names: []string{single + "up_proj.weight"}, Shape: gate.Shape},
			Need{Names: []string{single + "down_proj.weight"}})
		if err != nil {
			return nil, nil, nil, err
		}
		return gate, rest[0], rest[1], nil
	}
	stacked := [3]string{gg + "gate_exps.weight", gg + "up_exps.weight", gg + "down_exps.weight"}
	if _, ok := c.Lookup(stacked[0]); ok {
		var out [3]*Tensor
		for i, name := range stacked {
			whole, err := c.Require(Need{Names: []string{name}})
			if err != nil {
				return nil, nil, nil, err
			}
			if out[i], err = whole[0].Part(expert); err != nil {
				return nil, nil, nil, err
			}
			if n := c.byName[stacked[0]].Shape[0]; whole[0].Shape[0] != n {
				return nil, nil, nil, badfile.At(whole[0].File, whole[0].Offset, ErrShape, "%v, but %q has %d experts", whole[0].Shape,
					stacked[0], n).Of(name).Advise(badfile.TryConvert)
			}
		}
		return out[0], out[1], out[2], nil
	}
	fused, ok := c.Lookup(hf+"gate_up_proj", gg+"gate_up_exps.weight")
	if !ok {
		return nil, nil, nil, c.missing([]Need{{Names: []string{single + "gate_proj.weight", stacked[0], hf + "gate_up_proj"}}})
	}
	whole, err := c.Require(Need{Names: []string{hf + "down_proj", gg + "down_exps.weight"}})
	if err != nil {
		return nil, nil, nil, err
	}
	d := whole[0].Shape
	if len(d) != 3 || !slices.Equal(fused.Shape, []int{d[0], 2 * d[2], d[1]}) {
		return nil, nil, nil, badfile.At(fused.File, fused.Offset, ErrShape, "%v does not fit %q %v: [E,2I,H] and [E,H,I] are expected",
			fused.Shape, whole[0].Name, d).Of(fused.Name).Advise(badfile.TryConvert)
	}
	both, err := fused.Part(expert)
	if err != nil {
		return nil, nil, nil, err
	}
	if down, err = whole[0].Part(expert); err != nil {
		return nil, nil, nil, err
	}
	if gate, err = both.RowsOf(0, d[2]); err != nil {
		return nil, nil, nil, err
	}
	up, err = both.RowsOf(d[2], 2*d[2])
	return gate, up, down, err
}

// Need is a tensor an architecture requires: its name, or alternatives of which one suffices, and its shape (nil: any).
type Need struct {
	Names []string
	Shape []int
}

// Require returns the tensors of needs in their order. All that are missing are reported together as ErrMissingTensor; a tensor of
// another shape is ErrShape, one whose type no kernel reads ErrUnknownType.
func (c *Checkpoint) Require(needs ...Need) ([]*Tensor, error) {
	out := make([]*Tensor, len(needs))
	var absent []Need
	for i, n := range needs {
		t, ok := c.Lookup(n.Names...)
		if ok && t.qs != nil {
			var err error
			if t, err = c.resolve(t, n.Shape); err != nil {
				return nil, err
			}
		}
		switch {
		case !ok:
			absent = append(absent, n)
		case n.Shape != nil && !slices.Equal(t.Shape, n.Shape):
			return nil, badfile.At(t.File, t.Offset, ErrShape, "it is %v, config and architecture need %v", t.Shape, n.Shape).Of(t.Name).
				Advise("check that config and weights belong to the same model")
		case t.Format == format.Unknown:
			return nil, badfile.At(t.File, t.Offset, ErrUnknownType, "%s is no weight format here", t.Type).Of(t.Name).
				Advise("use a checkpoint in bfloat16, fp8 with 128×128 scales, or GGUF")
		}
		out[i] = t
	}
	if absent != nil {
		return nil, c.missing(absent)
	}
	return out, nil
}

// maxListed bounds the names an error prints.
const maxListed = 8

func (c *Checkpoint) missing(needs []Need) error {
	names := make([]string, len(needs))
	for i, n := range needs {
		names[i] = strings.Join(n.Names, " or ")
	}
	e := badfile.In(c.where(), ErrMissingTensor, "%s", list(names)).Advise("check that the download is complete and the model type is right")
	if other := c.samePlace(needs[0].Names[0]); other != "" {
		e.Advise("the checkpoint has %q, which is named alike", other)
	}
	return e
}

// where names the checkpoint in messages: its only file, or its directory.
func (c *Checkpoint) where() string {
	if len(c.files) == 1 {
		return c.files[0].path
	}
	return c.dir
}

// CheckKnown reports every tensor whose name known refuses, as one ErrUnknownTensor. Scales that belong to another tensor are not asked
// for, and a part of a tensor is asked for by the tensor's name.
func (c *Checkpoint) CheckKnown(known func(name string) bool) error {
	var unknown []string
	for _, t := range c.tensors {
		if name, _, _ := strings.Cut(t.Name, "["); !t.companion && !known(name) {
			unknown = append(unknown, t.Name)
		}
	}
	if unknown == nil {
		return nil
	}
	return badfile.In(c.where(), ErrUnknownTensor, "%s", list(unknown)).
		Advise("the checkpoint may be of another model type, or newer than this version of coli")
}

func list(names []string) string {
	if len(names) > maxListed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), len(names)-maxListed)
	}
	return strings.Join(names, ", ")
}

// samePlace returns the tensor whose name differs from want by a prefix only, "" if there is none.
func (c *Checkpoint) samePlace(want string) string {
	for _, t := range c.tensors {
		if strings.HasSuffix(t.Name, "."+want) || strings.HasSuffix(want, "."+t.Name) {
			return t.Name
		}
	}
	return ""
}
