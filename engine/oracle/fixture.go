package oracle

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/coli-moe/coli/weights/safetensors"
)

// fixture is oracle.json of a seeded model, schema 1.
type fixture struct {
	Prompts []struct {
		N        int
		InputIDs []int32 `json:"input_ids"`
		Greedy   []int32
		Margin   []float64
	}
	Logits struct {
		File   string
		Prompt int // length of the prompt whose logits are there at every position
		AbsMax float64
	}
	Traces    map[int]string // prompt length to file
	Stability struct {
		MaxLogitChange float64 `json:"max_logit_change"`
	}
}

func parseFixture(dir string, data []byte) ([]prompt, error) {
	var f fixture
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	n, err := newNoise(f.Stability.MaxLogitChange, f.Logits.AbsMax)
	if err != nil {
		return nil, err
	}
	all, err := readTensors(dir, f.Logits.File)
	if err != nil {
		return nil, err
	}
	prompts := make([]prompt, 0, len(f.Prompts))
	for _, in := range f.Prompts {
		if in.N == 0 || in.N != len(in.InputIDs) {
			return nil, fmt.Errorf("a prompt says n %d and has %d ids", in.N, len(in.InputIDs))
		}
		p := prompt{ids: in.InputIDs, greedy: in.Greedy, margin: in.Margin}
		if name, ok := f.Traces[in.N]; ok {
			if p.want, err = trace(dir, name, in.InputIDs, n); err != nil {
				return nil, err
			}
		}
		name, from := fmt.Sprintf("last.%d", in.N), in.N-1
		if in.N == f.Logits.Prompt {
			name, from = logits, 0
			if err := all.check(in.InputIDs); err != nil {
				return nil, err
			}
		}
		t, err := all.get(name)
		if err != nil {
			return nil, err
		}
		p.want = append(p.want, t.expect(logits, -1, from, n))
		prompts = append(prompts, p)
	}
	return prompts, nil
}

var traceName = regexp.MustCompile(`^(layer|moe)\.([0-9]{1,4})\.(out|router_logits|topk_ids|topk_weights)$`)

// inLayer maps a trace's names to the engine's and gives the order in which a layer computes them.
var inLayer = map[string]struct {
	name string
	rank int
}{"router_logits": {routerLogits, 0}, "topk_ids": {topkIDs, 1}, "topk_weights": {topkWeights, 2}, "out": {layerOut, 3}}

// trace reads a file of intermediates, in the order of computation.
func trace(dir, name string, ids []int32, n noise) ([]expectation, error) {
	all, err := readTensors(dir, name)
	if err != nil {
		return nil, err
	}
	if err := all.check(ids); err != nil {
		return nil, err
	}
	var begin, layers, end []expectation
	rank := map[string]int{}
	for key, t := range all.tensors {
		if key == inputIDs {
			continue
		}
		if t.rows != len(ids) {
			return nil, fmt.Errorf("%s: tensor %s has %d rows for a prompt of %d tokens", name, key, t.rows, len(ids))
		}
		m := traceName.FindStringSubmatch(key)
		switch {
		case key == embed:
			begin = append(begin, t.expect(embed, -1, 0, n))
		case key == finalNorm, key == logits:
			end = append(end, t.expect(key, -1, 0, n))
		case m != nil:
			il, err := strconv.Atoi(m[2])
			if err != nil {
				return nil, err
			}
			known := inLayer[m[3]]
			e := t.expect(known.name, il, 0, n)
			rank[known.name] = known.rank
			if known.name == topkIDs {
				e.allowed = 0
			}
			layers = append(layers, e)
		default:
			return nil, fmt.Errorf("%s: tensor %s: nothing is known that it could be compared with", name, key)
		}
	}
	slices.SortFunc(layers, func(a, b expectation) int {
		return cmp.Or(cmp.Compare(a.layer, b.layer), cmp.Compare(rank[a.name], rank[b.name]))
	})
	slices.SortFunc(end, func(a, b expectation) int { return cmp.Compare(a.name, b.name) }) // final_norm, logits
	return slices.Concat(begin, layers, end), nil
}

const inputIDs = "input_ids"

// tensors are the contents of a small safetensors file.
type tensors struct {
	name    string
	tensors map[string]tensor
}

// tensor holds float32 values, or int32 values as float32.
type tensor struct {
	rows, cols int
	data       []float32
}

// readTensors reads the file dir/name, whose tensors are F32 or I32 with one or two dimensions; one dimension is a single row.
func readTensors(dir, name string) (*tensors, error) {
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("the file name %q does not stay inside the folder", name)
	}
	path := filepath.Join(dir, name)
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := &tensors{name, make(map[string]tensor, len(f.Tensors))}
	for _, t := range f.Tensors {
		if t.Offset+t.Size > int64(len(raw)) {
			return nil, fmt.Errorf("%s: the file shrank while it was read", name)
		}
		shape := slices.Clone(t.Shape)
		if len(shape) == 1 {
			shape = []int{1, shape[0]}
		}
		if len(shape) != 2 {
			return nil, fmt.Errorf("%s: tensor %s has shape %v; one or two dimensions are expected", name, t.Name, t.Shape)
		}
		if t.DType != "F32" && t.DType != "I32" {
			return nil, fmt.Errorf("%s: tensor %s is %s; F32 or I32 is expected", name, t.Name, t.DType)
		}
		u := tensor{shape[0], shape[1], make([]float32, t.Size/4)}
		for i := range u.data {
			bits := binary.LittleEndian.Uint32(raw[t.Offset+int64(4*i):])
			if t.DType == "I32" {
				u.data[i] = float32(int32(bits))
				continue
			}
			u.data[i] = math.Float32frombits(bits)
			if v := float64(u.data[i]); math.IsNaN(v) || math.IsInf(v, 0) {
				return nil, fmt.Errorf("%s: tensor %s: value %d is %g; the file is damaged", name, t.Name, i, v)
			}
		}
		all.tensors[t.Name] = u
	}
	return all, nil
}

func (a *tensors) get(name string) (tensor, error) {
	t, ok := a.tensors[name]
	if !ok {
		return t, fmt.Errorf("%s has no tensor %s; the folder is incomplete", a.name, name)
	}
	return t, nil
}

// check compares the ids the file was computed for with the prompt's.
func (a *tensors) check(ids []int32) error {
	t, err := a.get(inputIDs)
	if err != nil {
		return err
	}
	if !slices.EqualFunc(t.data, ids, func(v float32, id int32) bool { return v == float32(id) }) {
		return fmt.Errorf("%s was computed for other ids than the prompt of %d tokens; the files do not belong together", a.name, len(ids))
	}
	return nil
}

func (t tensor) expect(name string, layer, from int, n noise) expectation {
	return expectation{name: name, layer: layer, from: from, cols: t.cols, data: t.data, allowed: n.allowed(t.data)}
}
