package weights_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/format"
	"github.com/coli-moe/coli/weights/gguf"
)

// entry is a tensor to write into a test file.
type entry struct {
	name  string
	dtype string
	shape []int
	data  []byte
}

// f32 makes a float32 entry whose values count up from first.
func f32(name string, first int, shape ...int) entry {
	n := 1
	for _, d := range shape {
		n *= d
	}
	var data []byte
	for i := range n {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(first+i)))
	}
	return entry{name, "F32", shape, data}
}

func safetensorsFile(entries ...entry) []byte {
	var header, data []byte
	for i, e := range entries {
		header = append(header, "{,"[min(i, 1)])
		shape, _ := json.Marshal(append([]int{}, e.shape...)) // not null
		header = fmt.Appendf(header, `%q:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, e.name, e.dtype, shape, len(data), len(data)+len(e.data))
		data = append(data, e.data...)
	}
	header = append(header, '}')
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header, data)
}

func ggufFile(t testing.TB, kvs []gguf.Pair, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	var tensors []gguf.Tensor
	for _, e := range entries {
		tensors = append(tensors, gguf.Tensor{Name: e.name, Format: format.F32, Shape: e.shape})
	}
	if err := gguf.WriteHeader(&b, kvs, tensors); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b.Write(e.data)
		b.Write(make([]byte, gguf.Padding(int64(len(e.data)))))
	}
	return b.Bytes()
}

// folder maps names to contents; "-> x" makes a symbolic link.
type folder map[string]string

func (files folder) write(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = errors.Join(err, os.Symlink(target, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(content), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func open(t testing.TB, path string) *weights.Checkpoint {
	t.Helper()
	c, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// part makes one part of a GGUF split into two.
func part(t testing.TB, no, count uint32, e entry) string {
	return string(ggufFile(t, []gguf.Pair{
		{Key: "split.no", Value: no}, {Key: "split.count", Value: count}, {Key: "split.tensors.count", Value: int32(2)},
	}, e))
}

// layouts are the ways a checkpoint with tensors a and b lies on disk, each with the paths that open it.
func layouts(t testing.TB) map[string]struct {
	files folder
	open  []string
} {
	a, b := f32("a", 0, 2, 3), f32("b", 100, 4)
	both := string(safetensorsFile(a, b))
	index := `{"metadata":{"total_size":40},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`
	shards := folder{
		"model.safetensors.index.json": index, "model-00001-of-00002.safetensors": string(safetensorsFile(a)),
		"model-00002-of-00002.safetensors": string(safetensorsFile(b)),
	}
	cache := folder{"models--o--n/refs/main": "abc\n", "models--o--n/snapshots/old/README.md": "-> ../../blobs/none"}
	for name, content := range shards {
		cache["models--o--n/blobs/sha-"+name] = content
		cache["models--o--n/snapshots/abc/"+name] = "-> ../../blobs/sha-" + name
	}
	whole := string(ggufFile(t, nil, a, b))
	type layout = struct {
		files folder
		open  []string
	}
	return map[string]layout{
		"one safetensors":         {folder{"model.safetensors": both, "trace.safetensors": both}, []string{"", "model.safetensors", "trace.safetensors"}},
		"safetensors, other name": {folder{"weights.safetensors": both}, []string{"", "weights.safetensors"}},
		"safetensors, no suffix":  {folder{"blob": both}, []string{"blob"}},
		"sharded":                 {shards, []string{"", "model.safetensors.index.json", "model-00002-of-00002.safetensors"}},
		"cache": {cache, []string{
			"models--o--n", "models--o--n/snapshots/abc", "models--o--n/snapshots/abc/model-00001-of-00002.safetensors",
		}},
		"cache without refs": {folder{"models--o--n/snapshots/abc/model.safetensors": both}, []string{"models--o--n"}},
		"gguf":               {folder{"m.gguf": whole, "mmproj-m.gguf": whole}, []string{"", "m.gguf"}},
		"gguf, no suffix":    {folder{"sha256-0": whole}, []string{"sha256-0"}},
		"split gguf": {
			folder{"m-00001-of-00002.gguf": part(t, 0, 2, a), "m-00002-of-00002.gguf": part(t, 1, 2, b)},
			[]string{"", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"},
		},
		"split gguf in a cache": {
			folder{
				"models--o--n/blobs/x": part(t, 0, 2, a), "models--o--n/blobs/y": part(t, 1, 2, b), "models--o--n/refs/main": "r",
				"models--o--n/snapshots/r/m-00001-of-00002.gguf": "-> ../../blobs/x",
				"models--o--n/snapshots/r/m-00002-of-00002.gguf": "-> ../../blobs/y",
			}, []string{"models--o--n"},
		},
	}
}

// TestLayouts: the same two tensors are found, read and mapped whatever the layout.
func TestLayouts(t *testing.T) {
	for name, l := range layouts(t) {
		t.Run(name, func(t *testing.T) {
			dir := l.files.write(t)
			for _, rel := range l.open {
				c := open(t, filepath.Join(dir, rel))
				var names []string
				for _, x := range c.Tensors() {
					names = append(names, x.Name)
				}
				if diff := cmp.Diff([]string{"a", "b"}, names); diff != "" {
					t.Fatalf("%s (-want +got):\n%s", rel, diff)
				}
				for _, e := range []entry{f32("a", 0, 2, 3), f32("b", 100, 4)} {
					x, ok := c.Lookup("absent", e.name)
					if !ok || x.Format != format.F32 || !slices.Equal(x.Shape, e.shape) {
						t.Fatalf("%s: %+v", rel, x)
					}
					read := make([]byte, x.Size)
					rows, err := c.LoadRows(x)
					if err = errors.Join(err, c.Read(x, read)); err != nil {
						t.Fatal(err)
					}
					onDisk, err := os.ReadFile(x.Extent().File)
					if err != nil {
						t.Fatal(err)
					}
					for how, got := range map[string][]byte{
						"Read": read, "LoadRows": rows, "the extent": onDisk[x.Extent().Offset:][:x.Extent().Size],
					} {
						if !bytes.Equal(got, e.data) {
							t.Errorf("%s: %s of %s gives other bytes", rel, how, e.name)
						}
					}
				}
			}
		})
	}
}

// badCheckpoints are layouts that must be refused; says must all be in the message.
func badCheckpoints(t testing.TB) map[string]struct {
	files folder
	open  string
	err   error
	says  []string
} {
	a, b := f32("a", 0, 2, 3), f32("b", 100, 4)
	both, html, lfs := string(safetensorsFile(a, b)), "<!doctype html><p>Sign in", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
	split := func(weightMap string) string { return `{"weight_map":{` + weightMap + `}}` }
	whole := string(ggufFile(t, nil, a, b))
	type bad = struct {
		files folder
		open  string
		err   error
		says  []string
	}
	return map[string]bad{
		"nothing there":              {folder{}, "absent", fs.ErrNotExist, []string{"absent"}},
		"empty folder":               {folder{}, "", weights.ErrNoWeights, []string{"model.safetensors", ".gguf"}},
		"folder of another kind":     {folder{"pytorch_model.bin": "x"}, "", weights.ErrNoWeights, []string{"pytorch_model.bin", "convert"}},
		"empty file":                 {folder{"m.gguf": ""}, "m.gguf", weights.ErrEmpty, []string{"m.gguf"}},
		"web page for GGUF":          {folder{"m.gguf": html}, "", weights.ErrHTML, []string{"m.gguf", "/resolve/"}},
		"web page for safetensors":   {folder{"model.safetensors": html}, "", weights.ErrHTML, []string{"model.safetensors"}},
		"web page for an index":      {folder{"model.safetensors.index.json": html}, "", weights.ErrHTML, []string{"index.json"}},
		"git-lfs pointer":            {folder{"model.safetensors": lfs}, "", weights.ErrLFSPointer, []string{"git lfs pull"}},
		"neither format":             {folder{"notes.txt": "a shopping list, rather long"}, "notes.txt", weights.ErrMagic, []string{"notes.txt"}},
		"dangling link":              {folder{"model.safetensors": "-> gone"}, "", fs.ErrNotExist, []string{"symbolic link to gone"}},
		"safetensors cut by a byte":  {folder{"model.safetensors": both[:len(both)-1]}, "", weights.ErrTruncated, []string{`"b"`}},
		"safetensors cut by half":    {folder{"model.safetensors": both[:len(both)/2]}, "", weights.ErrTruncated, nil},
		"safetensors, header only":   {folder{"model.safetensors": both[:len(both)-40]}, "", weights.ErrTruncated, []string{`"a"`}},
		"GGUF cut by half":           {folder{"m.gguf": whole[:len(whole)/2]}, "", weights.ErrTruncated, nil},
		"GGUF, header only":          {folder{"m.gguf": whole[:24]}, "", weights.ErrTruncated, nil},
		"several models":             {folder{"a.gguf": whole, "b.gguf": whole}, "", weights.ErrNoWeights, []string{"a.gguf, b.gguf", "name one"}},
		"several files and no index": {folder{"a.safetensors": both, "b.safetensors": both}, "", weights.ErrMissingShard, []string{"index"}},
		"shard and no index": {
			folder{"model-00001-of-00002.safetensors": both},
			"model-00001-of-00002.safetensors", weights.ErrMissingShard,
			[]string{"model.safetensors.index.json"},
		},
		"shards missing": {
			folder{"model.safetensors.index.json": split(`"a":"1.safetensors","b":"2.safetensors","c":"3.safetensors"`), "2.safetensors": both},
			"", weights.ErrMissingShard,
			[]string{"2 of 3", "1.safetensors, 3.safetensors"},
		},
		"shard is a dangling link": {
			folder{"model.safetensors.index.json": split(`"a":"1.safetensors"`), "1.safetensors": "-> ../blobs/0"},
			"", weights.ErrMissingShard,
			[]string{"1.safetensors", "../blobs/0"},
		},
		"tensor not in its shard": {
			folder{"model.safetensors.index.json": split(`"a":"1.safetensors","z":"1.safetensors"`), "1.safetensors": both},
			"",
			weights.ErrMissingTensor,
			[]string{"z in 1.safetensors"},
		},
		"shard outside the folder": {
			folder{"model.safetensors.index.json": split(`"a":"../1.safetensors"`)}, "", weights.ErrHeader, []string{"../1.safetensors"},
		},
		"shard is no name":     {folder{"model.safetensors.index.json": split(`"a":1`)}, "", weights.ErrHeader, []string{`"a"`}},
		"index names it twice": {folder{"model.safetensors.index.json": split(`"a":"1","a":"2"`)}, "", weights.ErrDuplicate, []string{`"a"`}},
		"index without a map":  {folder{"model.safetensors.index.json": `{}`}, "", weights.ErrHeader, []string{"weight_map"}},
		"index cut":            {folder{"model.safetensors.index.json": `{"weight_map":{"a"`}, "", weights.ErrHeader, []string{"index.json"}},
		"parts missing": {
			folder{"m-00002-of-00003.gguf": part(t, 1, 3, b)},
			"", weights.ErrMissingShard,
			[]string{"2 of 3", "m-00001-of-00003.gguf, m-00003-of-00003.gguf"},
		},
		"part under another name": {folder{"m.gguf": part(t, 0, 2, a)}, "", weights.ErrMissingShard, []string{"part 1 of 2", "00001-of-00002"}},
		"parts swapped": {
			folder{"m-00001-of-00002.gguf": part(t, 1, 2, a), "m-00002-of-00002.gguf": part(t, 0, 2, b)},
			"", weights.ErrMissingShard,
			[]string{"part 2 of 2"},
		},
		"tensor in two parts": {
			folder{"m-00001-of-00002.gguf": part(t, 0, 2, a), "m-00002-of-00002.gguf": part(t, 1, 2, a)},
			"", weights.ErrDuplicate,
			[]string{`"a"`, "m-00001-of-00002.gguf"},
		},
		"parts of different files": {
			folder{"m-00001-of-00002.gguf": part(t, 0, 2, a), "m-00002-of-00002.gguf": string(ggufFile(t, []gguf.Pair{
				{Key: "split.no", Value: uint32(1)}, {Key: "split.count", Value: uint32(2)},
			}, b, f32("c", 0, 1)))}, "", weights.ErrLayout, []string{"3 tensors in 2 parts"},
		},
		"part 1 of 0": {folder{"m-00001-of-00000.gguf": whole}, "", weights.ErrMissingShard, nil},
		"cache names no snapshot": {
			folder{"models--o--n/refs/main": "gone", "models--o--n/snapshots/x/model.safetensors": both},
			"models--o--n", weights.ErrNoWeights,
			[]string{`"gone"`},
		},
		"cache with two snapshots": {
			folder{"models--o--n/snapshots/x/model.safetensors": both, "models--o--n/snapshots/y/model.safetensors": both},
			"models--o--n",
			weights.ErrNoWeights,
			[]string{"2 snapshots"},
		},
		"cache without snapshots": {folder{"models--o--n/refs/main": "x"}, "models--o--n", fs.ErrNotExist, []string{"snapshots"}},
		"fp8 scales of another shape": {
			folder{"model.safetensors": string(safetensorsFile(entry{"w", "F8_E4M3", []int{2, 129}, make([]byte, 258)}, f32("w_scale_inv", 0, 1, 1)))},
			"", weights.ErrShape,
			[]string{`"w_scale_inv"`, "[1 2]"},
		},
	}
}

func TestBadCheckpoints(t *testing.T) {
	for name, tt := range badCheckpoints(t) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(tt.files.write(t), tt.open)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := weights.Open(path)
			runtime.ReadMemStats(&after)
			var e *weights.Error
			if !errors.Is(err, tt.err) || !errors.As(err, &e) {
				t.Fatalf("%v, want %v", err, tt.err)
			}
			for _, s := range append(tt.says, filepath.Base(e.File)) {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("the message lacks %q: %v", s, err)
				}
			}
			if e.Try == "" || e.File == "" {
				t.Errorf("no file or no advice: %v", err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 128<<10 {
				t.Errorf("%d bytes were allocated", n)
			}
		})
	}
}

func TestNoPermission(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read everything")
	}
	dir := folder{"model.safetensors": string(safetensorsFile(f32("a", 0, 1)))}.write(t)
	path := filepath.Join(dir, "model.safetensors")
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	_, err := weights.Open(dir)
	var e *weights.Error
	if !errors.Is(err, fs.ErrPermission) || !errors.As(err, &e) || e.File != path {
		t.Errorf("%v", err)
	}
}

// TestReadAfterTruncation: a file that shrinks after it was opened gives an error, not stale or zero bytes.
func TestReadAfterTruncation(t *testing.T) {
	dir := folder{"model.safetensors": string(safetensorsFile(f32("a", 0, 8)))}.write(t)
	c := open(t, dir)
	x, _ := c.Lookup("a")
	if err := os.Truncate(filepath.Join(dir, "model.safetensors"), x.Offset+4); err != nil {
		t.Fatal(err)
	}
	err := c.Read(x, make([]byte, x.Size))
	var e *weights.Error
	if !errors.Is(err, weights.ErrTruncated) || !errors.As(err, &e) || e.Tensor != "a" || e.Offset != x.Offset+4 {
		t.Errorf("%v", err)
	}
}

func TestReadRange(t *testing.T) {
	c := open(t, folder{"model.safetensors": string(safetensorsFile(f32("a", 0, 4), f32("b", 4, 4)))}.write(t))
	x, _ := c.Lookup("a")
	got := make([]byte, 4)
	if err := c.ReadRange(x, 12, got); err != nil || math.Float32frombits(binary.LittleEndian.Uint32(got)) != 3 {
		t.Errorf("%v %v", got, err)
	}
	for _, off := range []int64{-1, 13, math.MaxInt64} {
		if err := c.ReadRange(x, off, got); !errors.Is(err, weights.ErrShape) {
			t.Errorf("4 bytes from %d of 16: %v", off, err)
		}
	}
	if err := c.Read(x, got); !errors.Is(err, weights.ErrShape) {
		t.Errorf("16 bytes into 4: %v", err)
	}
}

// TestExpert: the same experts are found in each layout. E 3, I 2, H 4; each value is its index in the whole.
func TestExpert(t *testing.T) {
	const e, i, h = 3, 2, 4
	single := []entry{}
	var gate, up, fused, down []byte
	for x := range e {
		p := fmt.Sprintf("model.layers.5.mlp.experts.%d.", x)
		g, u, d := f32(p+"gate_proj.weight", 100*x, i, h), f32(p+"up_proj.weight", 100*x+20, i, h), f32(p+"down_proj.weight", 100*x+40, h, i)
		single = append(single, g, u, d)
		gate, up, down, fused = append(gate, g.data...), append(up, u.data...), append(down, d.data...), slices.Concat(fused, g.data, u.data)
	}
	stack := func(name string, data []byte, shape ...int) entry { return entry{name, "F32", shape, data} }
	for name, data := range map[string][]byte{
		"one tensor a matrix": safetensorsFile(single...),
		"fused": safetensorsFile(stack("model.layers.5.mlp.experts.gate_up_proj", fused, e, 2*i, h),
			stack("model.layers.5.mlp.experts.down_proj", down, e, h, i)),
		"stacked": ggufFile(t, nil, stack("blk.5.ffn_gate_exps.weight", gate, e, i, h), stack("blk.5.ffn_up_exps.weight", up, e, i, h),
			stack("blk.5.ffn_down_exps.weight", down, e, h, i)),
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, filepath.Join(folder{"m": string(data)}.write(t), "m"))
			for x := range e {
				g, u, d, err := c.Expert(5, x)
				if err != nil {
					t.Fatal(err)
				}
				for k, got := range []*weights.Tensor{g, u, d} {
					want := single[3*x+k]
					b, err := c.LoadRows(got)
					if err != nil || !slices.Equal(got.Shape, want.shape) || !bytes.Equal(b, want.data) {
						t.Errorf("expert %d, matrix %d: %v %v", x, k, got, err)
					}
				}
			}
			for _, bad := range [][2]int{{5, e}, {5, -1}, {4, 0}} {
				_, _, _, err := c.Expert(bad[0], bad[1])
				if !errors.Is(err, weights.ErrMissingTensor) && !errors.Is(err, weights.ErrShape) {
					t.Errorf("layer %d expert %d: %v", bad[0], bad[1], err)
				}
			}
		})
	}
	t.Run("transposed", func(t *testing.T) { // gpt-oss stores [E,H,2I] and [E,I,H]
		data := safetensorsFile(stack("model.layers.5.mlp.experts.gate_up_proj", fused, e, h, 2*i),
			stack("model.layers.5.mlp.experts.down_proj", down, e, i, h))
		c := open(t, filepath.Join(folder{"m": string(data)}.write(t), "m"))
		if _, _, _, err := c.Expert(5, 0); !errors.Is(err, weights.ErrShape) {
			t.Errorf("%v", err)
		}
	})
}

// TestFP8 assembles rows with their scales, whole and in parts that do not begin at a tile.
func TestFP8(t *testing.T) {
	const e, rows, cols = 2, 300, 130 // 3×2 tiles a matrix
	data := make([]byte, e*rows*cols)
	for k := range data {
		data[k] = byte(k % 251)
	}
	// tile (x, y) of matrix m has scale 100m + 10x + y
	var scales []byte
	for m := range e {
		for x := range 3 {
			for y := range 2 {
				scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(float32(100*m+10*x+y)))
			}
		}
	}
	c := open(t, filepath.Join(folder{"m": string(safetensorsFile(
		entry{"w", "F8_E4M3", []int{e, rows, cols}, data}, entry{"w_scale_inv", "F32", []int{e, 3, 2}, scales},
		entry{"alone", "F8_E4M3", []int{1, 1}, []byte{0}},
	))}.write(t), "m"))

	check := func(x *weights.Tensor, err error, matrix, row int) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.LoadRows(x)
		rowBytes, rerr := x.Format.RowBytes(x.Cols())
		if err = errors.Join(err, rerr); err != nil || len(got) != x.Rows()*rowBytes {
			t.Fatalf("%s: %d bytes for %d rows of %d, %v", x.Name, len(got), x.Rows(), rowBytes, err)
		}
		for r := range x.Rows() {
			m, i := matrix+(row+r)/rows, (row+r)%rows
			line := got[r*rowBytes:][:rowBytes]
			want := slices.Clone(data[(m*rows+i)*cols:][:cols])
			for y := range 2 {
				want = binary.LittleEndian.AppendUint32(want, math.Float32bits(float32(100*m+10*(i/128)+y)))
			}
			if !bytes.Equal(line, want) {
				t.Fatalf("%s: row %d differs", x.Name, r)
			}
		}
	}
	w, _ := c.Lookup("w")
	check(w, nil, 0, 0)
	half, err := w.RowsOf(1, 2)
	check(half, err, 1, 0)
	for m := range e {
		p, err := w.Part(m)
		check(p, err, m, 0)
		for _, r := range [][2]int{{0, 150}, {150, 300}, {127, 129}, {299, 300}} {
			q, err := p.RowsOf(r[0], r[1])
			check(q, err, m, r[0])
		}
		q, _ := p.RowsOf(100, 290)
		q, err = q.RowsOf(50, 160)
		check(q, err, m, 150)
	}

	alone, _ := c.Lookup("alone")
	if _, err := c.LoadRows(alone); alone.Format != format.Unknown || !errors.Is(err, weights.ErrUnknownType) {
		t.Errorf("fp8 without scales: %v %v", alone.Format, err)
	}
	if err := c.CheckKnown(func(name string) bool { return name != "w_scale_inv" }); err != nil {
		t.Errorf("the scales of a known tensor are unknown: %v", err)
	}
}

func TestPartRefuses(t *testing.T) {
	c := open(t, folder{"model.safetensors": string(safetensorsFile(f32("m", 0, 2, 3), f32("v", 0, 3), f32("s", 0)))}.write(t))
	get := func(name string) *weights.Tensor { x, _ := c.Lookup(name); return x }
	for name, f := range map[string]func() (*weights.Tensor, error){
		"part of a vector":  func() (*weights.Tensor, error) { return get("v").Part(0) },
		"part of a value":   func() (*weights.Tensor, error) { return get("s").Part(0) },
		"rows of a value":   func() (*weights.Tensor, error) { return get("s").RowsOf(0, 1) },
		"part past the end": func() (*weights.Tensor, error) { return get("m").Part(2) },
		"rows past the end": func() (*weights.Tensor, error) { return get("m").RowsOf(1, 3) },
		"rows backwards":    func() (*weights.Tensor, error) { return get("m").RowsOf(1, 1) },
	} {
		if _, err := f(); !errors.Is(err, weights.ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := get("s"); s.Rows() != 1 || s.Cols() != 1 || s.Size != 4 {
		t.Errorf("a single value: %+v", s)
	}
}

func TestRequire(t *testing.T) {
	c := open(t, folder{"model.safetensors": string(safetensorsFile(f32("model.norm.weight", 0, 4), f32("model.q_norm.weight", 0, 4),
		entry{"ids", "I64", []int{1}, make([]byte, 8)}))}.write(t))
	need := func(names ...string) weights.Need { return weights.Need{Names: names, Shape: []int{4}} }
	for name, tt := range map[string]struct {
		needs []weights.Need
		err   error
		says  []string
	}{
		"first name":  {[]weights.Need{need("model.norm.weight")}, nil, nil},
		"other name":  {[]weights.Need{need("output_norm.weight", "model.norm.weight")}, nil, nil},
		"all missing": {[]weights.Need{need("x", "y"), need("z")}, weights.ErrMissingTensor, []string{"x or y, z"}},
		"a prefix":    {[]weights.Need{need("norm.weight")}, weights.ErrMissingTensor, []string{`"model.norm.weight"`}},
		"shape":       {[]weights.Need{{Names: []string{"model.norm.weight"}, Shape: []int{5}}}, weights.ErrShape, []string{"[4]", "[5]", "model.norm"}},
		"any shape":   {[]weights.Need{{Names: []string{"model.norm.weight"}}}, nil, nil},
		"no weights":  {[]weights.Need{{Names: []string{"ids"}}}, weights.ErrUnknownType, []string{"I64", `"ids"`}},
	} {
		got, err := c.Require(tt.needs...)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, want %v", name, err, tt.err)
			continue
		}
		for _, s := range tt.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: the message lacks %s: %v", name, s, err)
			}
		}
		if err == nil && (len(got) != 1 || got[0].Name != "model.norm.weight") {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestCheckKnown(t *testing.T) {
	entries := []entry{f32("good", 0, 1)}
	for i := range 12 {
		entries = append(entries, f32(fmt.Sprintf("odd%d", i), 0, 1))
	}
	c := open(t, folder{"model.safetensors": string(safetensorsFile(entries...))}.write(t))
	if err := c.CheckKnown(func(string) bool { return true }); err != nil {
		t.Error(err)
	}
	err := c.CheckKnown(func(name string) bool { return name == "good" })
	if !errors.Is(err, weights.ErrUnknownTensor) || !strings.Contains(err.Error(), "odd0, odd1") || !strings.Contains(err.Error(), "4 more") {
		t.Errorf("%v", err)
	}
}

// TestOracles opens every oracle's checkpoint: architectures that coli does not run must parse too.
func TestOracles(t *testing.T) {
	t.Run("own", func(t *testing.T) { openAll(t, sharedtest.Testdata("oracles")) })
	t.Run("shared", func(t *testing.T) { openAll(t, sharedtest.Dir(t, "oracles", "a")) })
}

func openAll(t *testing.T, root string) {
	dirs, err := os.ReadDir(root)
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no oracles: %v", err)
	}
	for _, d := range dirs {
		t.Run(d.Name(), func(t *testing.T) {
			dir := filepath.Join(root, d.Name())
			c := open(t, dir)
			cfg, err := c.Config()
			if err != nil {
				t.Fatal(err)
			}
			if err := cfg.Check("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"); err != nil {
				t.Error(err)
			}
			for _, x := range c.Tensors() {
				if x.Format == format.Unknown && x.Type != "I64" {
					t.Errorf("%s: no format for %s", x.Name, x.Type)
				}
			}
			for _, trace := range []string{"trace7.safetensors", "trace40.safetensors", "logits.safetensors"} {
				if tr := open(t, filepath.Join(dir, trace)); len(tr.Tensors()) == 0 {
					t.Errorf("%s is empty", trace)
				}
			}
			if _, _, _, err := c.Expert(0, cfg.NumExperts-1); (cfg.ModelType == "olmoe" || cfg.ModelType == "qwen3_moe") && err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGGUFIsTheSameModel compares the GGUF files of a model with its safetensors: config, shapes, experts.
func TestGGUFIsTheSameModel(t *testing.T) {
	dir := sharedtest.Dir(t, "models")
	hf := open(t, filepath.Join(dir, "tiny-moe"))
	want, err := hf.Config()
	if err != nil {
		t.Fatal(err)
	}
	for name, dense := range map[string]format.Format{"Q8_0": format.Q8_0, "Q4_0": format.Q4_0, "MXFP4": format.Q8_0} {
		c := open(t, filepath.Join(dir, "tiny-moe-"+name+".gguf"))
		got, err := c.Config()
		if err != nil {
			t.Fatal(err)
		}
		type same struct {
			Type                                                        string
			Vocab, Hidden, Layers, Heads, KV, Dim, Width, E, K, Context int
			Theta                                                       float64
			Eps                                                         float32
			EOS                                                         []int
			Tied                                                        bool
		}
		pick := func(c *weights.Config) same {
			return same{
				c.ModelType, c.VocabSize, c.HiddenSize, c.NumHiddenLayers, c.NumAttentionHeads, c.NumKeyValueHeads, c.HeadDim,
				c.MoEIntermediateSize, c.NumExperts, c.NumExpertsPerTok, c.MaxPositionEmbeddings, c.RopeTheta, float32(c.RMSNormEps), c.EOS,
				*c.TieWordEmbeddings,
			}
		}
		if diff := cmp.Diff(pick(want), pick(got)); diff != "" {
			t.Errorf("%s (-safetensors +gguf):\n%s", name, diff)
		}
		for layer := range got.NumHiddenLayers {
			for expert := range got.NumExperts {
				g, u, d, err := c.Expert(layer, expert)
				if err != nil {
					t.Fatal(err)
				}
				g2, u2, d2, err := hf.Expert(layer, expert)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff([][]int{g2.Shape, u2.Shape, d2.Shape}, [][]int{g.Shape, u.Shape, d.Shape}); diff != "" {
					t.Fatalf("%s: layer %d expert %d (-safetensors +gguf):\n%s", name, layer, expert, diff)
				}
			}
		}
		q, _ := c.Lookup("model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight")
		if q.Format != dense {
			t.Errorf("%s: attn_q is %s", name, q.Format)
		}
	}
}

// BenchmarkOpen opens a small model of real structure and maps a tensor, the part of a program's start that this package is.
func BenchmarkOpen(b *testing.B) {
	path := sharedtest.Dir(b, "models", "tiny-moe-Q8_0.gguf")
	for b.Loop() {
		c, err := weights.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Config(); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Map(c.Tensors()[0]); err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

// seeds returns the files called name of every layout and every broken one.
func seeds(t testing.TB, name string) []string {
	var out []string
	for _, l := range layouts(t) {
		out = append(out, slices.Collect(maps.Values(pick(l.files, name)))...)
	}
	for _, l := range badCheckpoints(t) {
		out = append(out, slices.Collect(maps.Values(pick(l.files, name)))...)
	}
	return out
}

func pick(files folder, name string) folder {
	out := folder{}
	for path, content := range files {
		if filepath.Base(path) == name {
			out[path] = content
		}
	}
	return out
}

// FuzzIndex: no index panics, and none makes Open look outside the folder.
func FuzzIndex(f *testing.F) {
	for _, s := range seeds(f, "model.safetensors.index.json") {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "model.safetensors.index.json")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := weights.Open(path)
		if err == nil {
			t.Errorf("opened with no shard there: %v", c.Files())
		}
	})
}
