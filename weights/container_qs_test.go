package weights_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/format"
)

// packed is a matrix as colibri's containers store it, and the values it stands for.
type packed struct {
	rows, cols int
	data       []byte
	scales     []byte
	values     []float32
}

// pack makes a matrix of random codes. bits is 8 or 4, group the columns that share a scale (0: all), bias what is added to an int4 code.
func pack(rng *rand.Rand, rows, cols, bits, group int, bias int) packed {
	p := packed{rows: rows, cols: cols}
	if group == 0 {
		group = cols
	}
	for range rows {
		var codes []int
		for c := range cols {
			if c%group == 0 {
				p.scales = binary.LittleEndian.AppendUint32(p.scales, math.Float32bits(rng.Float32()+0.5))
			}
			scale := math.Float32frombits(binary.LittleEndian.Uint32(p.scales[len(p.scales)-4:]))
			code := rng.IntN(1<<bits) - 1<<(bits-1)
			codes = append(codes, code)
			p.values = append(p.values, float32(code)*scale)
		}
		if bits == 8 {
			for _, code := range codes {
				p.data = append(p.data, byte(code))
			}
			continue
		}
		for c := 0; c < cols; c += 2 {
			low, high := byte(codes[c]+bias)&15, byte(0)
			if c+1 < cols {
				high = byte(codes[c+1]+bias) & 15
			}
			p.data = append(p.data, low|high<<4)
		}
	}
	return p
}

func (p packed) entries(name, scales string) []entry {
	return []entry{
		{name, "U8", []int{len(p.data)}, p.data},
		{scales, "F32", []int{len(p.scales) / 4}, p.scales},
	}
}

// merge joins three matrices to colibri's tensor of an expert.
func merge(m ...packed) (out packed) {
	for _, p := range m {
		out.data, out.scales = append(out.data, p.data...), append(out.scales, p.scales...)
	}
	return out
}

const (
	qsHidden, qsInter = 192, 64
	qsConfig          = `{"model_type":"olmoe","hidden_size":192,"intermediate_size":64,"num_attention_heads":2,"num_experts":2,"num_experts_per_tok":1}`
)

// qsFolder is a checkpoint with two experts of the given form and a dense matrix.
func qsFolder(form string, metadata string) (folder, [][3]packed) {
	rng := rand.New(rand.NewPCG(7, uint64(len(form))))
	var entries []entry
	var experts [][3]packed
	for e := range 2 {
		prefix := fmt.Sprintf("model.layers.0.mlp.experts.%d.", e)
		matrix := func(i, bits, group, bias int) packed {
			if i == 2 {
				return pack(rng, qsHidden, qsInter, bits, group, bias)
			}
			return pack(rng, qsInter, qsHidden, bits, group, bias)
		}
		var m [3]packed
		for i := range m {
			switch form {
			case "int8", "merged int8":
				m[i] = matrix(i, 8, 0, 0)
			case "int4 rows":
				m[i] = matrix(i, 4, 0, 8)
			case "int4 groups":
				m[i] = matrix(i, 4, 64, 8)
			case "merged int4 rows":
				m[i] = matrix(i, 4, 0, 0)
			case "merged int4 groups":
				m[i] = matrix(i, 4, 64, 0)
			case "merged mixed":
				m[i] = matrix(i, []int{4, 4, 8}[i], []int{64, 64, 0}[i], 0)
			}
		}
		experts = append(experts, m)
		if strings.HasPrefix(form, "merged") {
			entries = append(entries, merge(m[:]...).entries(prefix+"merged_weight", prefix+"qs")...)
			continue
		}
		for i, name := range []string{"gate_proj.weight", "up_proj.weight", "down_proj.weight"} {
			entries = append(entries, m[i].entries(prefix+name, prefix+name+".qs")...)
		}
	}
	file := string(safetensorsFile(entries...))
	if metadata != "" {
		n := binary.LittleEndian.Uint64([]byte(file))
		header := `{"__metadata__":` + metadata + "," + file[9:8+n]
		file = string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + file[8+n:]
	}
	return folder{"model.safetensors": file, "config.json": qsConfig}, experts
}

func TestQuantisedContainers(t *testing.T) {
	for _, tt := range []struct {
		form         string
		gateUp, down format.Format
		metadata     string
	}{
		{"int8", format.I8Row, format.I8Row, ""},
		{"int8", format.I8Row, format.I8Row, `{"colibri.fmt":"{\"model.layers.0.mlp.experts.0.up_proj.weight\":1}"}`},
		{"int4 rows", format.I4G64, format.I4G64, ""},
		{"int4 groups", format.I4G64, format.I4G64, `{"colibri.fmt":"{\"model.layers.0.mlp.experts.1.gate_proj.weight\":\"4\"}"}`},
		{"merged int8", format.I8Row, format.I8Row, ""},
		{"merged int4 rows", format.I4G64, format.I4G64, ""},
		{"merged int4 groups", format.I4G64, format.I4G64, `{"colibri.fmt":"{\"model.layers.0.mlp.experts.0.merged_weight\":4}"}`},
		{"merged mixed", format.I4G64, format.I8Row, ""},
	} {
		t.Run(tt.form, func(t *testing.T) {
			files, experts := qsFolder(tt.form, tt.metadata)
			c := open(t, files.write(t))
			records, err := c.Records([]int{0}, 2)
			if err != nil {
				t.Fatal(err)
			}
			for e, want := range experts {
				gate, up, down, err := c.Expert(0, e)
				if err != nil {
					t.Fatal(err)
				}
				for i, got := range []*weights.Tensor{gate, up, down} {
					wantFormat := tt.gateUp
					if i == 2 {
						wantFormat = tt.down
					}
					if got.Format != wantFormat {
						t.Errorf("%s is %s, want %s", got.Name, got.Format, wantFormat)
					}
					checkValues(t, c, got, want[i].values)
					part, err := got.RowsOf(3, 10)
					if err != nil {
						t.Fatal(err)
					}
					checkValues(t, c, part, want[i].values[3*want[i].cols:10*want[i].cols])
				}
				checkRecord(t, c, records, 0, e)
			}
			if err := c.CheckKnown(func(name string) bool { return !strings.HasSuffix(name, "qs") }); err != nil {
				t.Errorf("scales are taken for tensors of their own: %v", err)
			}
			if c.ExpertBytes() == 0 || c.DenseBytes() != 0 {
				t.Errorf("%d bytes of experts, %d of the rest", c.ExpertBytes(), c.DenseBytes())
			}
		})
	}
}

// checkValues compares the decoded rows of a matrix.
func checkValues(t *testing.T, c *weights.Checkpoint, m *weights.Tensor, want []float32) {
	t.Helper()
	data, err := c.LoadRows(m)
	if err != nil {
		t.Fatal(err)
	}
	row := make([]float32, m.Cols())
	for r := range m.Rows() {
		n := len(data) / m.Rows()
		if err := format.Decode(m.Format, row, data[r*n:][:n]); err != nil {
			t.Fatal(err)
		}
		for i, v := range row {
			if w := want[r*m.Cols()+i]; v != w {
				t.Fatalf("%s: row %d column %d is %v, want %v", m.Name, r, i, v, w)
			}
		}
	}
}

// A dense matrix gets its shape from the architecture; where its columns suit no blocks of 64, int4 becomes int8 with the same values.
func TestQuantisedDenseMatrix(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, p := range []packed{pack(rng, 6, 50, 8, 0, 0), pack(rng, 6, 51, 4, 0, 8), pack(rng, 6, 128, 4, 64, 8), pack(rng, 6, 40, 4, 64, 8)} {
		c := open(t, folder{"model.safetensors": string(safetensorsFile(p.entries("w", "w.qs")...))}.write(t))
		found, err := c.Require(weights.Need{Names: []string{"w"}, Shape: []int{p.rows, p.cols}})
		if err != nil {
			t.Fatal(err)
		}
		checkValues(t, c, found[0], p.values)
		if _, err := c.Require(weights.Need{Names: []string{"w"}}); !errors.Is(err, weights.ErrShape) {
			t.Errorf("without a shape: %v", err)
		}
	}
}

func TestQuantisedContainersRefused(t *testing.T) {
	const tensor = "model.layers.0.mlp.experts.0.gate_proj.weight"
	for _, tt := range []struct {
		name, form, metadata string
		config               string
		want                 error
		says                 []string
	}{
		{"another format declared", "int8", `{"colibri.fmt":"{\"` + tensor + `\":4}"}`, qsConfig, weights.ErrLayout, []string{tensor, "format 4", "int8"}},
		{"groups where rows are declared", "int4 groups", `{"colibri.fmt":"{\"` + tensor + `\":2}"}`, qsConfig, weights.ErrLayout, []string{tensor}},
		{
			"a merged tensor of another format", "merged int8", `{"colibri.fmt":"{\"model.layers.0.mlp.experts.0.merged_weight\":2}"}`, qsConfig,
			weights.ErrLayout,
			[]string{"merged_weight"},
		},
		{
			"bytes of no known format", "int8", "", strings.Replace(qsConfig, `"intermediate_size":64`, `"intermediate_size":48`, 1),
			weights.ErrUnknownType,
			[]string{tensor, "[48 192]"},
		},
		{
			"a merged tensor of another size", "merged mixed", "", strings.Replace(qsConfig, `"intermediate_size":64`, `"intermediate_size":128`, 1),
			weights.ErrUnknownType,
			[]string{"merged_weight"},
		},
		{"no sizes in the configuration", "int8", "", `{"model_type":"olmoe"}`, weights.ErrMissingKey, []string{"hidden_size"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files, _ := qsFolder(tt.form, tt.metadata)
			files["config.json"] = tt.config
			c := open(t, files.write(t))
			_, _, _, err := c.Expert(0, 0)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			for _, word := range tt.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%v does not say %s", err, word)
				}
			}
		})
	}
	for _, declaration := range []string{`{"colibri.fmt":"[1]"}`, `{"colibri.fmt":"{\"x\":\"int8\"}"}`} {
		files, _ := qsFolder("int8", declaration)
		if _, err := weights.Open(files.write(t)); !errors.Is(err, weights.ErrHeader) {
			t.Errorf("declaration %s: %v", declaration, err)
		}
	}
}

// A folder with model-globals.safetensors is one model, although it has no index.
func TestFilesWithoutIndex(t *testing.T) {
	c := open(t, folder{
		"model-globals.safetensors": string(safetensorsFile(f32("a", 0, 2))), "model-00000.safetensors": string(safetensorsFile(f32("b", 0, 3))),
	}.write(t))
	if len(c.Tensors()) != 2 || len(c.Files()) != 2 {
		t.Errorf("%d tensors in %d files", len(c.Tensors()), len(c.Files()))
	}
}

// FuzzQuantised: whatever sizes and declaration a file has, an expert is refused or every row of it can be read.
func FuzzQuantised(f *testing.F) {
	f.Add(uint16(3*qsHidden*qsInter), uint16(2*qsInter+qsHidden), uint8(qsHidden), uint8(qsInter), "{}", true)
	f.Add(uint16(3*64*64/2), uint16(3*64), uint8(64), uint8(64), `{"model.layers.0.mlp.experts.0.merged_weight":4}`, true)
	f.Add(uint16(5*3), uint16(5), uint8(3), uint8(5), `{"x":[}`, false)
	f.Fuzz(func(t *testing.T, n, scales uint16, hidden, inter uint8, declared string, merged bool) {
		if n == 0 || scales == 0 {
			return
		}
		p := packed{data: make([]byte, n), scales: make([]byte, 4*int(scales))}
		prefix := "model.layers.0.mlp.experts.0."
		entries := p.entries(prefix+"merged_weight", prefix+"qs")
		if !merged {
			entries = nil
			for _, name := range []string{"gate_proj.weight", "up_proj.weight", "down_proj.weight"} {
				entries = append(entries, p.entries(prefix+name, prefix+name+".qs")...)
			}
		}
		file := string(safetensorsFile(entries...))
		size := binary.LittleEndian.Uint64([]byte(file))
		header := fmt.Sprintf(`{"__metadata__":{"colibri.fmt":%q},`, declared) + file[9:8+size]
		file = string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + file[8+size:]
		config := fmt.Sprintf(`{"hidden_size":%d,"moe_intermediate_size":%d,"num_experts":1,"num_experts_per_tok":1}`, hidden, inter)
		c, err := weights.Open(folder{"model.safetensors": file, "config.json": config}.write(t))
		if err != nil {
			return
		}
		defer c.Close()
		gate, up, down, err := c.Expert(0, 0)
		if err != nil {
			return
		}
		for _, x := range []*weights.Tensor{gate, up, down} {
			row, err := x.Format.RowBytes(x.Cols())
			if err != nil {
				t.Fatal(err)
			}
			if data, err := c.LoadRows(x); err != nil || len(data) != row*x.Rows() {
				t.Fatalf("%s %v: %d bytes, %v", x.Name, x.Shape, len(data), err)
			}
		}
	})
}
