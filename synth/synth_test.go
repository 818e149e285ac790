package synth

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/coli-moe/coli/weights/format"
	"github.com/coli-moe/coli/weights/gguf"
)

// TestWrite reads written models back: their metadata, the shape and format of every tensor, and how its values are spread.
func TestWrite(t *testing.T) {
	for _, tt := range []struct {
		like           string
		experts, dense format.Format
		qNorm          int // columns of a layer's attn_q_norm
	}{
		{"olmoe-tiny", format.Q4_K, format.Q8_0, 256},
		{"olmoe-tiny", format.MXFP4, format.BF16, 256},
		{"qwen3-tiny", format.Q6_K, format.F16, 64},
		{"qwen3-tiny", format.F32, format.Q4_0, 64},
	} {
		t.Run(tt.like+"/"+tt.experts.String(), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.gguf")
			var done, total int64
			progress := func(d, n int64) {
				if d < done || d > n || total != 0 && n != total {
					t.Errorf("progress went from %d of %d to %d of %d", done, total, d, n)
				}
				done, total = d, n
			}
			o := Options{Like: tt.like, Experts: tt.experts, Dense: tt.dense, Layers: 1}
			if err := Write(t.Context(), path, o, progress); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if done != total || total != int64(len(data)) {
				t.Errorf("progress ended at %d of %d for a file of %d bytes", done, total, len(data))
			}
			f, err := gguf.Read(bytes.NewReader(data), int64(len(data)), "model.gguf")
			if err != nil {
				t.Fatal(err)
			}
			arch, _ := f.String("general.architecture")
			for key, want := range map[string]uint64{"block_count": 1, "expert_count": 8, "expert_used_count": 2, "embedding_length": 256} {
				if got, ok := f.Uint(arch + "." + key); !ok || got != want {
					t.Errorf("%s.%s is %d, want %d", arch, key, got, want)
				}
			}
			tokens, _ := f.Strings("tokenizer.ggml.tokens")
			eos, _ := f.Uint("tokenizer.ggml.eos_token_id")
			if len(tokens) != 320 || tokens[eos] != "<|endoftext|>" {
				t.Errorf("%d tokens, the end of text is %d", len(tokens), eos)
			}

			want := map[string]format.Format{
				"token_embd.weight": tt.dense, "output.weight": tt.dense, "blk.0.attn_output.weight": tt.dense,
				"blk.0.ffn_gate_exps.weight": tt.experts, "blk.0.ffn_up_exps.weight": tt.experts, "blk.0.ffn_down_exps.weight": tt.experts,
				"blk.0.ffn_gate_inp.weight": format.F32, "blk.0.attn_q_norm.weight": format.F32, "output_norm.weight": format.F32,
			}
			for _, tensor := range f.Tensors {
				if f, ok := want[tensor.Name]; ok && tensor.Format != f {
					t.Errorf("%s is %s, want %s", tensor.Name, tensor.Format, f)
				}
				delete(want, tensor.Name)
				if tensor.Name == "blk.0.attn_q_norm.weight" && !slices.Equal(tensor.Shape, []int{tt.qNorm}) {
					t.Errorf("%s has shape %v, want %d columns", tensor.Name, tensor.Shape, tt.qNorm)
				}
				if tensor.Name == "blk.0.ffn_down_exps.weight" && !slices.Equal(tensor.Shape, []int{8, 256, 256}) {
					t.Errorf("%s has shape %v", tensor.Name, tensor.Shape)
				}
				mean, std := 0.0, 1/16.0
				switch {
				case strings.Contains(tensor.Name, "norm"):
					mean, std = 1, 0.05
				case tensor.Name == "token_embd.weight":
					std = 1
				case tensor.Name == "blk.0.attn_output.weight" && arch == "qwen3moe":
					std = 1 / math.Sqrt(512)
				}
				checkSpread(t, tensor, data, mean, std)
			}
			for name := range want {
				t.Errorf("%s is missing", name)
			}
		})
	}
}

// checkSpread compares mean and standard deviation of a tensor and checks that no two of its rows are equal.
func checkSpread(t *testing.T, tensor gguf.Tensor, data []byte, mean, std float64) {
	t.Helper()
	row := make([]float32, tensor.Shape[len(tensor.Shape)-1])
	size, err := tensor.Format.RowBytes(len(row))
	if err != nil {
		t.Fatal(err)
	}
	var sum, squares, n float64
	seen := make(map[string]bool)
	for raw := range slices.Chunk(data[tensor.Offset:][:tensor.Size], size) {
		if seen[string(raw)] {
			t.Errorf("%s has two equal rows", tensor.Name)
		}
		seen[string(raw)] = true
		if err := format.Decode(tensor.Format, row, raw); err != nil {
			t.Fatal(err)
		}
		for _, v := range row {
			sum, squares, n = sum+float64(v), squares+float64(v)*float64(v), n+1
		}
	}
	gotMean, gotStd := sum/n, math.Sqrt(squares/n-sum/n*sum/n)
	// Five standard errors, and what the coarsest format adds.
	if math.Abs(gotMean-mean) > std*(5/math.Sqrt(n)+0.02) || math.Abs(gotStd/std-1) > 5/math.Sqrt(n)+0.05 {
		t.Errorf("%s has mean %.4g and standard deviation %.4g, want %.4g and %.4g", tensor.Name, gotMean, gotStd, mean, std)
	}
}

// TestParameterCounts compares the plans with the published numbers of parameters.
func TestParameterCounts(t *testing.T) {
	for like, want := range map[string]int{"olmoe-1b-7b": 6_919_161_856, "qwen3-30b-a3b": 30_532_122_624} {
		o := Options{Like: like}
		g, err := o.resolve()
		if err != nil {
			t.Fatal(err)
		}
		tensors, err := plan(g, o)
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, tensor := range tensors {
			n := 1
			for _, d := range tensor.dims {
				n *= d
			}
			got += n
		}
		if got != want {
			t.Errorf("%s has %d parameters, want %d", like, got, want)
		}
	}
}

func TestSeed(t *testing.T) {
	file := func(seed uint64) []byte {
		path := filepath.Join(t.TempDir(), "model.gguf")
		if err := Write(t.Context(), path, Options{Like: "olmoe-tiny", Experts: format.Q8_0, Layers: 1, Seed: seed}, nil); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	one, again, two := file(1), file(1), file(2)
	if !bytes.Equal(one, again) {
		t.Error("equal seeds gave different files")
	}
	if bytes.Equal(one, two) {
		t.Error("different seeds gave equal files")
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Like: "olmoe-70b"}, "qwen3-30b-a3b (qwen3moe)"},
		{Options{Arch: "olmoe", Like: "qwen3-30b-a3b"}, "olmoe-1b-7b (olmoe)"},
		{Options{Arch: "llama"}, `"llama"`},
		{Options{Layers: -1}, "between 1 and"},
		{Options{Layers: 1 << 20}, "between 1 and"},
		{Options{Vocab: 100}, "between 287 and"},
		{Options{Experts: format.IQ2_XS}, "cannot write the format IQ2_XS"},
		{Options{Dense: format.I8Row}, "GGUF has no type for the format I8_ROW"},
	} {
		path := filepath.Join(t.TempDir(), "model.gguf")
		err := Write(t.Context(), path, tt.o, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want one with %q", tt.o, err, tt.want)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%+v: wrote a file", tt.o)
		}
	}

	g := geometries[0]
	g.expertFFN = 320
	_, err := plan(g, Options{Experts: format.Q4_K, Dense: format.Q8_0})
	if err == nil || !strings.Contains(err.Error(), "blk.0.ffn_down_exps.weight") || !strings.Contains(err.Error(), "320 columns") {
		t.Errorf("columns that no k-quant block divides: error %v", err)
	}
}

// TestFailureLeavesTheOldFile: whatever goes wrong, the file that was there stays and nothing else lies beside it.
func TestFailureLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.gguf")
	check := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
		if n := strings.Count(err.Error(), dir); n != 1 || !strings.Contains(err.Error(), path+":") {
			t.Errorf("the error names a file %d times: %v", n, err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(path); len(entries) != 1 || err != nil || string(data) != "old" {
			t.Errorf("the folder has %d files, the old one reads %q, error %v", len(entries), data, err)
		}
	}
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	check(Write(ctx, path, Options{Like: "olmoe-tiny", Experts: format.Q8_0}, func(done, total int64) {
		if done > total/2 {
			cancel()
		}
	}), context.Canceled)

	err := replaceFile(path, 5e9, func(w io.Writer) error {
		if _, err := w.Write([]byte("new")); err != nil {
			return err
		}
		return &fs.PathError{Op: "write", Path: w.(*os.File).Name(), Err: syscall.ENOSPC}
	})
	check(err, syscall.ENOSPC)
	if !strings.Contains(err.Error(), "5.0 GB") {
		t.Errorf("the error does not say how much room is needed: %v", err)
	}

	if err := Write(t.Context(), dir, Options{Like: "olmoe-tiny"}, nil); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("writing to a directory: error %v", err)
	}
	missing := filepath.Join(dir, "none", "model.gguf")
	err = Write(t.Context(), missing, Options{Like: "olmoe-tiny"}, nil)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("writing to a missing folder: error %v", err)
	}
}

// TestVocabulary: tokens are distinct, every byte has one, and a merge joins two tokens into a third.
func TestVocabulary(t *testing.T) {
	v := vocabulary(400)
	ids := make(map[string]int)
	for i, token := range v.tokens {
		if _, ok := ids[token]; ok {
			t.Errorf("token %q is there twice", token)
		}
		ids[token] = i
	}
	if len(ids) != 400 || len(v.types) != 400 {
		t.Fatalf("%d tokens, %d types, want 400", len(ids), len(v.types))
	}
	// Bytes 0, space, A, soft hyphen and 255 in GPT-2's byte alphabet.
	for _, r := range []string{"Ā", "Ġ", "A", "Ń", "ÿ"} {
		if _, ok := ids[r]; !ok {
			t.Errorf("no token for the byte shown as %s", r)
		}
	}
	for _, pair := range v.merges {
		left, right, _ := strings.Cut(pair, " ")
		whole, ok := ids[left+right]
		if !ok || ids[left] >= whole || ids[right] >= whole {
			t.Errorf("merge %q makes token %d of %d and %d", pair, whole, ids[left], ids[right])
		}
	}
	if v.types[v.eos] != tokenControl || v.types[v.eos+1] != tokenUnused || v.types[0] != tokenNormal {
		t.Error("token types are wrong around the end of text")
	}
}
