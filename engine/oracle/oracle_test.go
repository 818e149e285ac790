package oracle

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/weights"
)

var fixtures = []string{"olmoe", "olmoe_sharded", "qwen3_moe"}

func fixtureDir(name string) string { return sharedtest.Testdata("oracles", name) }

func open(t testing.TB, dir string) *Oracle {
	t.Helper()
	o, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func load(t testing.TB, dir string, opt engine.Options) *engine.Model {
	t.Helper()
	m, err := engine.Load(t.Context(), dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func check(t testing.TB, dir string, opt engine.Options) *Report {
	t.Helper()
	r, err := open(t, dir).Check(t.Context(), load(t, dir, opt))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// settings cut the same work up differently.
var settings = []engine.Options{
	{Chunk: 512, Threads: 1}, {Chunk: 512, Threads: 2}, {Chunk: 3, Threads: 1}, {Chunk: 3, Threads: 2}, {Chunk: 1, Threads: 1}, {Chunk: 1, Threads: 2},
}

func TestFixturesAreReproduced(t *testing.T) {
	for _, name := range fixtures {
		for _, opt := range settings {
			t.Run(fmt.Sprintf("%s/chunk=%d/threads=%d", name, opt.Chunk, opt.Threads), func(t *testing.T) {
				r := check(t, fixtureDir(name), opt)
				if r.First != nil {
					t.Error(r.First)
				}
				var lengths []int
				for _, p := range r.Prompts {
					lengths = append(lengths, p.Tokens)
					if p.Matched != 32 || p.Greedy != 32 || !(p.Difference <= p.Allowed) || p.Logits < 320 {
						t.Errorf("%+v", p)
					}
				}
				if want := []int{1, 7, 40, 200}; !slices.Equal(lengths, want) {
					t.Errorf("prompts of %d tokens, want %d", lengths, want)
				}
				// Two traces, each with embedding, final norm, one output per layer, and three tensors per router.
				if r.Hidden.Tensors < 2*(2+4) || r.Routing.Tensors != 2*3*4 || r.Hidden.Differ+r.Routing.Differ != 0 {
					t.Errorf("hidden states %+v, routing %+v", r.Hidden, r.Routing)
				}
			})
		}
	}
}

func TestLogitsDoNotDependOnChunksAndThreads(t *testing.T) {
	for _, name := range fixtures {
		t.Run(name, func(t *testing.T) {
			var want []uint32
			for _, opt := range settings {
				m := load(t, fixtureDir(name), opt)
				var got []uint32
				for _, p := range open(t, fixtureDir(name)).prompts {
					s, err := m.NewSession(len(p.ids))
					if err != nil {
						t.Fatal(err)
					}
					err = s.ForwardAll(t.Context(), p.ids, func(_ int, row []float32) {
						for _, v := range row {
							got = append(got, math.Float32bits(v))
						}
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				if want == nil {
					want = got
				}
				if !slices.Equal(got, want) {
					t.Errorf("%+v: logits differ from those of %+v", opt, settings[0])
				}
			}
		})
	}
}

func TestTrainedModelIsReproduced(t *testing.T) {
	r := check(t, sharedtest.Dir(t, "models", "tiny-moe"), engine.Options{})
	if r.First != nil {
		t.Error(r.First)
	}
	if len(r.Prompts) != 7 || r.Prompts[0].Logits != 4096 || r.Routing.Tensors != 8 {
		t.Errorf("%+v", r)
	}
	for _, p := range r.Prompts {
		if p.Matched != p.Greedy || p.Logits < 10 {
			t.Errorf("%+v", p)
		}
	}
}

// copyDir copies a fixture, so that a test may damage it.
func copyDir(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// negate changes the sign of every value of a float32 tensor in a checkpoint.
func negate(t *testing.T, dir, name string) {
	t.Helper()
	c, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	tensor, ok := c.Lookup(name)
	c.Close()
	if !ok || tensor.Type != "F32" {
		t.Fatalf("no float32 tensor %s", name)
	}
	data, err := os.ReadFile(tensor.File)
	if err != nil {
		t.Fatal(err)
	}
	for i := tensor.Offset + 3; i < tensor.Offset+tensor.Size; i += 4 {
		data[i] ^= 0x80
	}
	if err := os.WriteFile(tensor.File, data, 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedWeightsAreFoundWhereTheyAre(t *testing.T) {
	for _, tt := range []struct {
		tensor string
		name   string
		layer  int
	}{
		{"model.embed_tokens.weight", embed, -1},
		{"model.layers.1.self_attn.o_proj.weight", routerLogits, 1},
		{"model.layers.1.mlp.gate.weight", routerLogits, 1},
		{"model.layers.2.mlp.experts.3.down_proj.weight", layerOut, 2},
		{"model.norm.weight", finalNorm, -1},
		{"lm_head.weight", logits, -1},
	} {
		t.Run(tt.tensor, func(t *testing.T) {
			dir := copyDir(t, fixtureDir("olmoe"))
			negate(t, dir, tt.tensor)
			r := check(t, dir, engine.Options{})
			if r.First == nil || r.First.Name != tt.name || r.First.Layer != tt.layer {
				t.Fatalf("first difference %v, want %s in layer %d", r.First, tt.name, tt.layer)
			}
			if s := r.First.String(); !strings.Contains(s, tt.name) || !strings.Contains(s, "the reference has") {
				t.Error(s)
			}
			if p := r.Prompts[3]; p.Difference <= p.Allowed {
				t.Errorf("the logits of the longest prompt do not differ: %+v", p)
			}
		})
	}
}

func TestWrongGreedyIDIsReported(t *testing.T) {
	dir := copyDir(t, fixtureDir("olmoe"))
	edit(t, dir, func(o map[string]any) {
		o["prompts"].([]any)[0].(map[string]any)["greedy"].([]any)[5] = 1
	})
	r := check(t, dir, engine.Options{})
	if r.First == nil || r.Prompts[0].Matched != 5 {
		t.Fatalf("%+v", r)
	}
	if got, want := r.First.String(), "prompt of 1 tokens, greedy step 5: id 18, the reference has 1 (ahead by 0.4978)"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// edit changes oracle.json of a copied fixture.
func edit(t *testing.T, dir string, change func(o map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var o map[string]any
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatal(err)
	}
	change(o)
	if data, err = json.Marshal(o); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	prompt := func(o map[string]any, i int) map[string]any { return o["prompts"].([]any)[i].(map[string]any) }
	for _, tt := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   string
	}{
		{"no oracle", func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, file)) }, "give a folder that holds a checkpoint and its oracle.json"},
		{"no JSON", func(t *testing.T, dir string) { os.WriteFile(filepath.Join(dir, file), []byte("<html>"), 0o666) }, "invalid character"},
		{"foreign JSON", func(t *testing.T, dir string) {
			os.WriteFile(filepath.Join(dir, file), []byte(`{"a": 1}`), 0o666)
		}, "no oracle that coli knows"},
		{"newer schema", func(t *testing.T, dir string) {
			edit(t, dir, func(o map[string]any) { o["schema"] = 2 })
		}, "schema 2 is not known"},
		{"n of other length", func(t *testing.T, dir string) {
			edit(t, dir, func(o map[string]any) { prompt(o, 1)["n"] = 8 })
		}, "a prompt says n 8 and has 7 ids"},
		{"other ids than the trace's", func(t *testing.T, dir string) {
			edit(t, dir, func(o map[string]any) { prompt(o, 1)["input_ids"].([]any)[0] = 319 })
		}, "trace7.safetensors was computed for other ids"},
		{"no continuation", func(t *testing.T, dir string) {
			edit(t, dir, func(o map[string]any) { prompt(o, 1)["greedy"] = nil })
		}, "only oracles of text generators"},
		{"a file outside the folder", func(t *testing.T, dir string) {
			edit(t, dir, func(o map[string]any) { o["logits"].(map[string]any)["file"] = "../logits.safetensors" })
		}, "does not stay inside the folder"},
		{"negative noise", func(t *testing.T, dir string) {
			edit(t, dir, func(o map[string]any) { o["stability"].(map[string]any)["max_logit_change"] = -1 })
		}, "noise -1"},
		{"logits cut short", func(t *testing.T, dir string) { os.Truncate(filepath.Join(dir, "logits.safetensors"), 50000) }, "logits.safetensors"},
		{"no logits of a prompt", func(t *testing.T, dir string) {
			edit(t, dir, func(o map[string]any) {
				p := prompt(o, 0)
				p["n"], p["input_ids"] = 2, []int{1, 2}
			})
		}, "logits.safetensors has no tensor last.2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := copyDir(t, fixtureDir("olmoe"))
			tt.damage(t, dir)
			_, err := Open(dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// A reference for another model is an error that says so, not a report full of differences.
func TestForeignReference(t *testing.T) {
	for _, tt := range []struct{ oracle, model, want string }{
		{"qwen3_moe", "olmoe", "layer 1"},      // a layer that is dense in one and sparse in the other
		{"olmoe", "qwen3_moe", "does not fit"}, // fewer heads, other widths
	} {
		o := open(t, fixtureDir(tt.oracle))
		o.prompts = o.prompts[1:2]
		r, err := o.Check(t.Context(), load(t, fixtureDir(tt.model), engine.Options{}))
		if err == nil && r.First == nil {
			t.Errorf("%s passes as %s", tt.model, tt.oracle)
		}
		if err != nil && !strings.Contains(err.Error(), "they are of different") {
			t.Error(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	dir := fixtureDir("olmoe")
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"greedy": [{"ids": [1, 2], "greedy_ids": [3], "first_logits": [0.5, 1], "experts_by_layer_and_position": [[[2, 1], [0, 3]]]},
		{"ids": [1], "greedy_ids": [3], "first_top10": [[7, 1.5]]}], "checks": {"max_abs_logit_difference": 1e-5, "max_abs_logit": 24}}`))
	f.Add([]byte(`{"schema": 1, "prompts": [{"n": 7, "input_ids": [1]}], "traces": {"7": "trace7.safetensors"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		prompts, err := parse(dir, data)
		if err != nil {
			return
		}
		for _, p := range prompts {
			for _, e := range p.want {
				width := e.cols
				if e.at != nil {
					width = len(e.at)
				}
				if width == 0 || len(e.data)%width != 0 || e.from < 0 {
					t.Errorf("%s of layer %d: %d values in rows of %d from row %d", e.name, e.layer, len(e.data), width, e.from)
				}
			}
		}
	})
}
