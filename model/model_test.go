package model

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/cpu"
	"github.com/coli-moe/coli/ops/ref"
	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/format"
)

var fixtures = []string{"olmoe", "olmoe_sharded", "qwen3_moe"}

// traceNames maps the oracle's names of an intermediate to ours.
func traceName(name string, layer int) string {
	switch name {
	case "embed", "final_norm", "logits":
		return name
	case "layer_out":
		return fmt.Sprintf("layer.%d.out", layer)
	case "ffn_moe_logits":
		return fmt.Sprintf("moe.%d.router_logits", layer)
	}
	return ""
}

// TestTrace runs the 7-token prompt through both executors and compares every intermediate that the oracle recorded.
func TestTrace(t *testing.T) {
	for _, name := range fixtures {
		dir := sharedtest.Testdata("oracles", name)
		c := open(t, dir)
		m, err := Load(c)
		if err != nil {
			t.Fatal(err)
		}
		trace := open(t, filepath.Join(dir, "trace7.safetensors"))
		exec := cpu.New(2)
		t.Cleanup(exec.Close)
		for _, e := range []ops.Executor{exec, &ref.Executor{}} {
			t.Run(name+"/"+e.Name(), func(t *testing.T) {
				seen := 0
				run(m, e, ids(t, trace), func(name string, layer, rows, cols int, data []float32) {
					want, ok := trace.Lookup(traceName(name, layer))
					if !ok {
						return
					}
					seen++
					if !slices.Equal(want.Shape, []int{rows, cols}) {
						t.Fatalf("%s of layer %d is [%d, %d], the oracle's %v", name, layer, rows, cols, want.Shape)
					}
					for i, w := range floats(t, trace, want) {
						if math.Abs(float64(data[i]-w)) > 1e-4 {
							t.Fatalf("%s of layer %d: value %d is %g, the oracle's %g", name, layer, i, data[i], w)
						}
					}
				})
				if want := 2*m.Layers() + 2; seen < want {
					t.Errorf("%d intermediates compared, want at least %d", seen, want)
				}
			})
		}
	}
}

func run(m Model, e ops.Executor, tokens []int32, observe ops.Observer) {
	st := &Step{Tokens: tokens, Observe: observe}
	var rows []int
	for r := range tokens {
		st.Places = append(st.Places, ops.Place{Pos: r})
		rows = append(rows, r)
	}
	for il := range m.Layers() {
		st.State = append(st.State, []*ops.KV{ops.NewKV(m.State(il))})
	}
	x := m.Embed(e, st)
	for il := range m.Layers() {
		x = m.Layer(e, st, il, x)
	}
	m.Head(e, st, x, rows)
}

func open(t *testing.T, path string) *weights.Checkpoint {
	t.Helper()
	c, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ids(t *testing.T, c *weights.Checkpoint) []int32 {
	t.Helper()
	x, ok := c.Lookup("input_ids")
	if !ok {
		t.Fatal("the trace has no input_ids")
	}
	data := make([]byte, x.Size)
	if err := c.Read(x, data); err != nil {
		t.Fatal(err)
	}
	out := make([]int32, 0, len(data)/4)
	for ; len(data) > 0; data = data[4:] {
		out = append(out, int32(data[0])|int32(data[1])<<8|int32(data[2])<<16|int32(data[3])<<24)
	}
	return out
}

func floats(t *testing.T, c *weights.Checkpoint, x *weights.Tensor) []float32 {
	t.Helper()
	data := make([]byte, x.Size)
	if err := c.Read(x, data); err != nil {
		t.Fatal(err)
	}
	out := make([]float32, len(data)/4)
	if err := format.Decode(format.F32, out, data); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLoadRefuses: a checkpoint that does not fit its configuration is refused by name.
func TestLoadRefuses(t *testing.T) {
	for _, c := range []struct {
		name, from, old, new string
		want                 error
		says                 string
	}{
		{"unknown architecture", "olmoe", `"olmoe"`, `"olmost"`, nil, "olmost"},
		{"no architecture", "olmoe", `"model_type": "olmoe"`, `"transformers": "5"`, weights.ErrMissingKey, "config.json: key \"model_type\""},
		{"another width", "olmoe", `"hidden_size": 64`, `"hidden_size": 128`, weights.ErrShape, "embed_tokens"},
		{"more layers than stored", "olmoe", `"num_hidden_layers": 4`, `"num_hidden_layers": 5`, weights.ErrMissingTensor, "layers.4."},
		{"fewer layers than stored", "olmoe", `"num_hidden_layers": 4`, `"num_hidden_layers": 3`, weights.ErrUnknownTensor, "layers.3."},
		{"absurd number of layers", "olmoe", `"num_hidden_layers": 4`, `"num_hidden_layers": 2000000000`, weights.ErrValue, "num_hidden_layers"},
		{"more experts than stored", "olmoe", `"num_experts": 12`, `"num_experts": 13`, weights.ErrShape, "mlp.gate"},
		{"absurd number of experts", "olmoe", `"num_experts": 12`, `"num_experts": 2000000000`, weights.ErrShape, "mlp.gate"},
		{"another expert width", "olmoe", `"intermediate_size": 32`, `"intermediate_size": 64`, weights.ErrShape, "experts.0"},
		{"scaled RoPE", "olmoe", `"rope_type": "default"`, `"rope_type": "yarn", "factor": 4.0`, weights.ErrValue, "yarn"},
		{"another activation", "olmoe", `"hidden_act": "silu"`, `"hidden_act": "gelu"`, weights.ErrValue, "gelu"},
		{"no epsilon", "olmoe", `"rms_norm_eps": 1e-05,`, ``, weights.ErrMissingKey, "rms_norm_eps"},
		{"no experts a token", "qwen3_moe", `"num_experts_per_tok": 3,`, ``, weights.ErrMissingKey, "num_experts_per_tok"},
		{"no experts", "olmoe", `"num_experts": 12`, `"num_experts": 0`, weights.ErrValue, "num_experts"},
		{"odd head width", "qwen3_moe", `"head_dim": 32`, `"head_dim": 33`, weights.ErrValue, "head_dim"},
		{"absurd head width", "qwen3_moe", `"head_dim": 32`, `"head_dim": 2147483646`, weights.ErrShape, "q_proj"},
		{"epsilon that float32 rounds to zero", "olmoe", `"rms_norm_eps": 1e-05`, `"rms_norm_eps": 1e-60`, weights.ErrValue, "rms_norm_eps"},
		{"sliding window", "qwen3_moe", `"use_sliding_window": false`, `"use_sliding_window": true`, weights.ErrValue, "use_sliding_window"},
		{"biases that are not stored", "qwen3_moe", `"attention_bias": false`, `"attention_bias": true`, weights.ErrMissingTensor, "q_proj.bias"},
		{"dense layer that is sparse", "qwen3_moe", `"mlp_only_layers": [
  1
 ]`, `"mlp_only_layers": []`, weights.ErrMissingTensor, "layers.1.mlp.gate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(sharedtest.Testdata("oracles", c.from))); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "config.json")
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			edited := strings.Replace(string(data), c.old, c.new, 1)
			if edited == string(data) {
				t.Fatalf("config.json does not contain %q", c.old)
			}
			if err := os.WriteFile(path, []byte(edited), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = Load(open(t, dir))
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v does not say %q", err, c.says)
			}
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error %v is not %v", err, c.want)
			}
		})
	}
}

// TestWeights: the weights of the layers and of the head, the experts and the embedding are the whole checkpoint, each named once.
func TestWeights(t *testing.T) {
	for _, name := range fixtures {
		c := open(t, sharedtest.Testdata("oracles", name))
		m, err := Load(c)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for il := range m.Layers() + 1 {
			matrices, vectors := m.Weights(il)
			for _, w := range matrices {
				seen[w.Name]++
			}
			for _, v := range vectors {
				seen[v.Name]++
			}
		}
		for _, x := range c.Tensors() {
			dense := !strings.Contains(x.Name, "experts") && x.Name != "model.embed_tokens.weight"
			if want := map[bool]int{true: 1}[dense]; seen[x.Name] != want {
				t.Errorf("%s: %s is named %d times, want %d", name, x.Name, seen[x.Name], want)
			}
		}
	}
}
