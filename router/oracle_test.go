package router

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/weights/safetensors"
)

var update = flag.Bool("update", false, "write testdata/oracles.jsonl from the traces in ../shared/oracles")

// architecture is how one of the oracles' models routes: what a model file makes of its config.json.
type architecture struct {
	name string
	p    Params
	bias string // name of the layer's selection bias, with %d for the layer; a layer without one is routed by token id
}

const correction = "model.layers.%d.mlp.gate.e_score_correction_bias"

var architectures = []architecture{
	{"olmoe", Params{TopK: 3}, ""},
	{"mixtral", Params{TopK: 2, Normalize: true}, ""},
	{"qwen3_moe", Params{TopK: 3, Normalize: true}, ""},
	{"qwen3_next", Params{TopK: 3, Normalize: true}, ""},
	{"qwen3_5_moe", Params{TopK: 3, Normalize: true}, ""},
	{"qwen4_exp", Params{TopK: 3, Normalize: true}, ""},
	{"gpt_oss", Params{Gating: TopKSoftmax, TopK: 2}, ""},
	{"deepseek_v3", Params{Gating: Sigmoid, TopK: 4, Normalize: true, Scale: 2.5, Groups: 4, TopKGroups: 2}, correction},
	{"deepseek_v32", Params{Gating: Sigmoid, TopK: 3, Normalize: true, Scale: 2.5, Groups: 4, TopKGroups: 2}, correction},
	{"glm4_moe", Params{Gating: Sigmoid, TopK: 3, Normalize: true, Scale: 1.5, Groups: 4, TopKGroups: 2}, correction},
	{"glm_moe_dsa", Params{Gating: Sigmoid, TopK: 3, Normalize: true, Scale: 2.5, Groups: 1, TopKGroups: 1}, correction},
	{
		"glm5_next",
		Params{Gating: Sigmoid, TopK: 3, Normalize: true, Scale: 2.5, Groups: 1, TopKGroups: 1},
		"model.language_model.layers.%d.mlp.gate.e_score_correction_bias",
	},
	{
		"kimi_linear",
		Params{Gating: Sigmoid, TopK: 3, Normalize: true, Scale: 2.446, Groups: 1, TopKGroups: 1},
		"model.layers.%d.block_sparse_moe.gate.e_score_correction_bias",
	},
	{"mimo_v2_flash", Params{Gating: Sigmoid, TopK: 3, Normalize: true, Scale: 1, Groups: 1, TopKGroups: 1}, correction},
	{"minimax_m2", Params{Gating: Sigmoid, TopK: 3, Normalize: true}, "model.layers.%d.block_sparse_moe.e_score_correction_bias"},
	{"deepseek_v4", Params{Gating: SqrtSoftplus, TopK: 3, Normalize: true, Scale: 1.5}, "model.layers.%d.ffn.gate.bias"},
}

// routing is one row as the reference implementation routed it. Its ids are in rising order.
type routing struct {
	Model      string
	Layer, Row int
	Bias       []float32 `json:",omitempty"`
	Logits     []float32
	IDs        []int32
	Weights    []float32
}

const extract = "testdata/oracles.jsonl"

// TestOracles routes rows of every architecture's oracle, which are kept beside the test.
func TestOracles(t *testing.T) {
	f, err := os.Open(extract)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	oracles := map[string][]routing{}
	for d := json.NewDecoder(f); d.More(); {
		var r routing
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		oracles[r.Model] = append(oracles[r.Model], r)
	}
	for _, a := range architectures {
		t.Run(a.name, func(t *testing.T) {
			if len(oracles[a.name]) == 0 {
				t.Fatal("no rows")
			}
			for _, r := range oracles[a.name] {
				a.compare(t, r)
			}
		})
	}
}

// TestTraces routes all rows of the oracles' traces.
func TestTraces(t *testing.T) {
	dir := sharedtest.Dir(t, "oracles", "a")
	var lines bytes.Buffer
	for _, a := range architectures {
		t.Run(a.name, func(t *testing.T) {
			rows := a.read(t, filepath.Join(dir, a.name))
			if len(rows) < 40 {
				t.Fatalf("%d rows", len(rows))
			}
			for _, r := range rows {
				a.compare(t, r)
			}
			for _, r := range []routing{rows[0], rows[len(rows)-1]} {
				if err := json.NewEncoder(&lines).Encode(r); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if *update {
		if err := os.WriteFile(extract, lines.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func (a architecture) compare(t *testing.T, r routing) {
	t.Helper()
	p := a.p
	p.Bias = r.Bias
	if err := p.Check(len(r.Logits)); err != nil {
		t.Fatal(err)
	}
	ids, weights := route(r.Logits, p)
	sorted := slices.Sorted(slices.Values(ids))
	if !slices.Equal(sorted, r.IDs) {
		t.Errorf("layer %d, row %d: ids %v, want %v", r.Layer, r.Row, sorted, r.IDs)
		return
	}
	for i, id := range r.IDs {
		if got := weights[slices.Index(ids, id)]; math.Abs(float64(got-r.Weights[i])) > 1e-6 {
			t.Errorf("layer %d, row %d: expert %d has weight %v, want %v", r.Layer, r.Row, id, got, r.Weights[i])
		}
	}
}

// read returns the routings of an oracle's two traces.
func (a architecture) read(t *testing.T, dir string) (all []routing) {
	model := open(t, filepath.Join(dir, "model.safetensors"))
	for _, name := range []string{"trace7.safetensors", "trace40.safetensors"} {
		trace := open(t, filepath.Join(dir, name))
		for layer := range 64 {
			logits, experts := trace.floats(t, fmt.Sprintf("moe.%d.router_logits", layer))
			if logits == nil {
				continue
			}
			var bias []float32
			if a.bias != "" {
				if bias, _ = model.floats(t, fmt.Sprintf(a.bias, layer)); bias == nil {
					continue
				}
			}
			ids, _ := trace.floats(t, fmt.Sprintf("moe.%d.topk_ids", layer))
			weights, topK := trace.floats(t, fmt.Sprintf("moe.%d.topk_weights", layer))
			for row := range len(logits) / experts {
				r := routing{Model: a.name, Layer: layer, Row: row, Bias: bias}
				r.Logits, r.Weights = logits[row*experts:][:experts], weights[row*topK:][:topK]
				for _, id := range ids[row*topK:][:topK] {
					r.IDs = append(r.IDs, int32(id))
				}
				all = append(all, r)
			}
		}
	}
	return all
}

type tensors struct {
	*safetensors.File
	data []byte
}

func open(t *testing.T, path string) tensors {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return tensors{f, data}
}

// floats returns a tensor's values and its last dimension; nil if there is no such tensor.
func (f tensors) floats(t *testing.T, name string) (values []float32, cols int) {
	t.Helper()
	i := slices.IndexFunc(f.Tensors, func(x safetensors.Tensor) bool { return x.Name == name })
	if i < 0 {
		return nil, 0
	}
	x := f.Tensors[i]
	raw := f.data[x.Offset : x.Offset+x.Size]
	switch x.DType {
	case "F32":
		for ; len(raw) > 0; raw = raw[4:] {
			values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
		}
	case "I32":
		for ; len(raw) > 0; raw = raw[4:] {
			values = append(values, float32(int32(binary.LittleEndian.Uint32(raw))))
		}
	case "BF16":
		for ; len(raw) > 0; raw = raw[2:] {
			values = append(values, math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw))<<16))
		}
	default:
		t.Fatalf("%s is %s", name, x.DType)
	}
	return values, x.Shape[len(x.Shape)-1]
}
