package weights_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/weights"
)

// noise makes an entry of n bytes that differ from those of other seeds.
func noise(name, dtype string, seed, n int, shape ...int) entry {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*7 + i>>8 + seed*31)
	}
	return entry{name, dtype, shape, data}
}

// readRecord reads an expert as a prefetcher does: whole blocks into memory that held something else before.
func readRecord(t *testing.T, s *weights.Records, layer, expert int) (*weights.Record, []byte) {
	t.Helper()
	r, err := s.Record(layer, expert)
	if err != nil {
		t.Fatal(err)
	}
	if r.Bytes > s.SlotBytes() || r.Bytes%weights.RecordAlign != 0 {
		t.Fatalf("%d bytes into a slot of %d", r.Bytes, s.SlotBytes())
	}
	mem := bytes.Repeat([]byte{0xee}, int(r.Bytes))
	var end int64
	for _, x := range r.Extents {
		if x.Offset%weights.RecordAlign != 0 || x.At%weights.RecordAlign != 0 || x.At < end || x.Size <= 0 {
			t.Fatalf("extents %+v", r.Extents)
		}
		end = x.At + (x.Size+weights.RecordAlign-1)/weights.RecordAlign*weights.RecordAlign
		if end > r.Bytes {
			t.Fatalf("extents %+v in %d bytes", r.Extents, r.Bytes)
		}
		f, err := os.Open(s.Files()[x.File])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if st, err := f.Stat(); err != nil || x.Size%weights.RecordAlign != 0 && x.Offset+x.Size != st.Size() {
			t.Fatalf("extent %+v is part of a block, %v", x, err)
		}
		if _, err := f.ReadAt(mem[x.At:][:x.Size], x.Offset); err != nil {
			t.Fatalf("extent %+v: %v", x, err)
		}
	}
	r.Assemble(mem)
	return r, mem
}

// checkRecord compares the three matrices of an expert with what LoadRows makes of its tensors.
func checkRecord(t *testing.T, c *weights.Checkpoint, s *weights.Records, layer, expert int) *weights.Record {
	t.Helper()
	gate, up, down, err := c.Expert(layer, expert)
	if err != nil {
		t.Fatal(err)
	}
	r, mem := readRecord(t, s, layer, expert)
	matrices := []weights.Matrix{r.Gate, r.Up, r.Down}
	for i, x := range []*weights.Tensor{gate, up, down} {
		want, err := c.LoadRows(x)
		m := matrices[i]
		if err != nil || m.Format != x.Format || m.Rows != x.Rows() || m.Cols != x.Cols() || !bytes.Equal(m.Bytes(mem), want) {
			t.Errorf("expert %d of layer %d: %s is not as in the file: %+v, %v", expert, layer, x.Name, m, err)
		}
	}
	return r
}

func TestRecord(t *testing.T) {
	const e, i, h = 5, 260, 384 // 3×3 tiles of fp8; 260 is no multiple of 128
	// parts makes one tensor per matrix and expert, and its scales where the type is fp8.
	parts := func(dtype string, each int) (all []entry) {
		for x := range e {
			for k, name := range []string{"down_proj", "gate_proj", "up_proj"} {
				shape, tiles := []int{i, h}, []int{3, 3}
				if k == 0 {
					shape = []int{h, i}
				}
				name = fmt.Sprintf("model.layers.1.mlp.experts.%d.%s.weight", x, name)
				all = append(all, noise(name, dtype, 10*x+k, i*h*each, shape...))
				if dtype == "F8_E4M3" {
					all = append(all, noise(name+"_scale_inv", "F32", 10*x+k+5, 36, tiles...))
				}
			}
		}
		return all
	}
	scalesFirst := parts("F8_E4M3", 1)
	slices.SortStableFunc(scalesFirst, func(a, b entry) int { return len(a.data) - len(b.data) })
	fused := []entry{
		noise("model.layers.1.mlp.experts.gate_up_proj", "BF16", 1, e*2*i*h*2, e, 2*i, h),
		noise("model.layers.1.mlp.experts.down_proj", "BF16", 2, e*h*i*2, e, h, i),
	}
	fused8 := []entry{
		noise("model.layers.1.mlp.experts.gate_up_proj", "F8_E4M3", 1, e*2*i*h, e, 2*i, h),
		noise("model.layers.1.mlp.experts.gate_up_proj_scale_inv", "F32", 3, e*5*3*4, e, 5, 3),
		noise("model.layers.1.mlp.experts.down_proj", "F8_E4M3", 2, e*h*i, e, h, i),
		noise("model.layers.1.mlp.experts.down_proj_scale_inv", "F32", 4, e*3*3*4, e, 3, 3),
	}
	stacked := []entry{
		noise("blk.1.ffn_gate_exps.weight", "F32", 1, e*i*h*4, e, i, h), noise("blk.1.ffn_up_exps.weight", "F32", 2, e*i*h*4, e, i, h),
		noise("blk.1.ffn_down_exps.weight", "F32", 3, e*h*i*4, e, h, i),
	}
	far := func(all []entry) (apart []entry) { // 70 000 bytes after each
		for k, x := range all {
			apart = append(apart, x, noise(fmt.Sprintf("pad%d", k), "U8", k, 70_000, 70_000))
		}
		return apart
	}
	near := func(all []entry) (apart []entry) {
		for k, x := range all {
			apart = append(apart, x, noise(fmt.Sprintf("pad%d", k), "U8", k, 1001, 1001))
		}
		return apart
	}
	for name, tt := range map[string]struct {
		file  []byte
		reads int
	}{
		"one tensor a matrix":           {safetensorsFile(parts("BF16", 2)...), 1},
		"small gaps are read":           {safetensorsFile(near(parts("BF16", 2))...), 1},
		"large gaps are not":            {safetensorsFile(far(parts("BF16", 2))...), 3},
		"fused":                         {safetensorsFile(fused...), 2},
		"stacked":                       {ggufFile(t, nil, stacked...), 3},
		"fp8, scales beside":            {safetensorsFile(parts("F8_E4M3", 1)...), 1},
		"fp8, scales first":             {safetensorsFile(scalesFirst...), 2},
		"fp8, fused":                    {safetensorsFile(fused8...), 4},
		"fp8, matrices in other orders": {safetensorsFile(reversed(parts("F8_E4M3", 1))...), 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, filepath.Join(folder{"m": string(tt.file)}.write(t), "m"))
			s, err := c.Records([]int{1}, e)
			if err != nil {
				t.Fatal(err)
			}
			for x := range e {
				r := checkRecord(t, c, s, 1, x)
				// The first and the last expert may share blocks with their neighbourhood.
				if len(r.Extents) > tt.reads || x == 2 && len(r.Extents) != tt.reads {
					t.Errorf("expert %d takes %d reads, not %d: %+v", x, len(r.Extents), tt.reads, r.Extents)
				}
				if g, u, d := r.Gate, r.Up, r.Down; r.Bytes > int64(g.Rows*g.RowBytes+u.Rows*u.RowBytes+d.Rows*d.RowBytes)*9/8+8*weights.RecordAlign {
					t.Errorf("expert %d needs %d bytes of memory", x, r.Bytes)
				}
			}
			for _, bad := range [][2]int{{1, e}, {1, -1}, {0, 0}} {
				if _, err := s.Record(bad[0], bad[1]); err == nil {
					t.Errorf("layer %d has an expert %d", bad[0], bad[1])
				}
			}
		})
	}
}

func reversed(all []entry) []entry {
	all = slices.Clone(all)
	slices.Reverse(all)
	return all
}

func TestRecordRefuses(t *testing.T) {
	p := "model.layers.0.mlp.experts.0."
	gate, up, down := f32(p+"gate_proj.weight", 0, 2, 4), f32(p+"up_proj.weight", 0, 2, 4), f32(p+"down_proj.weight", 0, 4, 2)
	for name, tt := range map[string]struct {
		entries []entry
		cause   error
	}{
		"no expert":   {[]entry{f32("other", 0, 1)}, weights.ErrMissingTensor},
		"shape":       {[]entry{gate, up, f32(p+"down_proj.weight", 0, 2, 4)}, weights.ErrShape},
		"not weights": {[]entry{noise(gate.name, "U8", 0, 8, 2, 4), up, down}, weights.ErrUnknownType},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, filepath.Join(folder{"m": string(safetensorsFile(tt.entries...))}.write(t), "m"))
			if _, err := c.Records([]int{0}, 1); !errors.Is(err, tt.cause) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestPopulateOnly counts what is paged in: the pages of other tensors, whatever lies between them.
func TestPopulateOnly(t *testing.T) {
	expert := func(x int) entry {
		return noise(fmt.Sprintf("model.layers.0.mlp.experts.%d.up_proj.weight", x), "F32", x, 400_000, 100, 1000)
	}
	entries := []entry{f32("a", 0, 5), expert(0), expert(1), f32("model.layers.0.mlp.gate.weight", 0, 10_000), f32("b", 1, 7), expert(2)}
	data := safetensorsFile(entries...)
	c := open(t, filepath.Join(folder{"m": string(data)}.write(t), "m"))
	if e, d := c.ExpertBytes(), c.DenseBytes(); e != 1_200_000 || d != 4*10_012 {
		t.Errorf("%d bytes of experts, %d of others", e, d)
	}
	header := 8 + int64(binary.LittleEndian.Uint64(data))
	page := int64(os.Getpagesize())
	from, to := (header+20+800_000)/page*page, (header+20+800_000+40_028+page-1)/page*page
	var done, total int64
	if err := c.PopulateOnly(t.Context(), func(t *weights.Tensor) bool { return !t.OfExpert() }, func(d, n int64) { done, total = d, n }); err != nil {
		t.Fatal(err)
	}
	if want := page + to - from; done != want || total != want {
		t.Errorf("%d of %d bytes paged in, not %d", done, total, want)
	}
}

// TestRecordOfModels reads every expert of real files.
func TestRecordOfModels(t *testing.T) {
	for _, name := range []string{"tiny-moe", "tiny-moe-Q8_0.gguf", "tiny-moe-MXFP4.gguf"} {
		t.Run(name, func(t *testing.T) {
			c := open(t, sharedtest.Dir(t, "models", name))
			cfg, err := c.Config()
			if err != nil {
				t.Fatal(err)
			}
			var layers []int
			for il := range cfg.NumHiddenLayers {
				layers = append(layers, il)
			}
			s, err := c.Records(layers, cfg.NumExperts)
			if err != nil {
				t.Fatal(err)
			}
			for _, il := range layers {
				for x := range cfg.NumExperts {
					checkRecord(t, c, s, il, x)
				}
			}
			var all int64
			for _, x := range c.Tensors() {
				all += x.Size
			}
			if e, d := c.ExpertBytes(), c.DenseBytes(); e == 0 || d == 0 || e+d != all {
				t.Errorf("%d bytes of experts and %d others of %d", e, d, all)
			}
		})
	}
}
