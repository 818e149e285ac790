package synth

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/coli-moe/coli/weights/format"
)

// alignment is GGUF's default for the start of every tensor.
const alignment = 32

func align(n int64) int64 { return (n + alignment - 1) / alignment * alignment }

// kv is one metadata entry; value is a string, bool, uint32, float32, []string or []int32.
type kv struct {
	key   string
	value any
}

// fileTypes are llama.cpp's numbers for "mostly this format" (enum llama_ftype), shown to users and used for nothing.
var fileTypes = map[format.Format]uint32{
	format.F32: 0, format.F16: 1, format.Q4_0: 2, format.Q4_1: 3, format.Q8_0: 7, format.Q5_0: 8, format.Q5_1: 9,
	format.Q4_K: 14, format.Q6_K: 18, format.BF16: 32, format.MXFP4: 38,
}

// metadata lists the model's entries under the keys llama.cpp reads.
func metadata(g geometry, o Options) []kv {
	v := vocabulary(g.vocab)
	out := []kv{
		{"general.architecture", g.arch},
		{"general.name", "synthetic " + g.name},
		{"general.quantization_version", uint32(2)},
		{"general.file_type", fileTypes[o.Experts]},
	}
	for _, e := range []kv{
		{"context_length", uint32(g.context)},
		{"embedding_length", uint32(g.hidden)},
		{"block_count", uint32(g.layers)},
		{"feed_forward_length", uint32(g.ffn)},
		{"expert_feed_forward_length", uint32(g.expertFFN)},
		{"attention.head_count", uint32(g.heads)},
		{"attention.head_count_kv", uint32(g.kvHeads)},
		{"attention.key_length", uint32(g.headDim)},
		{"attention.value_length", uint32(g.headDim)},
		{"attention.layer_norm_rms_epsilon", g.rmsNormEps},
		{"expert_count", uint32(g.experts)},
		{"expert_used_count", uint32(g.topK)},
		{"rope.freq_base", g.ropeTheta},
		{"vocab_size", uint32(g.vocab)},
	} {
		out = append(out, kv{g.arch + "." + e.key, e.value})
	}
	return append(
		out,
		kv{"tokenizer.ggml.model", "gpt2"},
		kv{"tokenizer.ggml.pre", "gpt-2"},
		kv{"tokenizer.ggml.tokens", v.tokens},
		kv{"tokenizer.ggml.token_type", v.types},
		kv{"tokenizer.ggml.merges", v.merges},
		kv{"tokenizer.ggml.eos_token_id", uint32(v.eos)},
		kv{"tokenizer.ggml.add_bos_token", false},
	)
}

// header returns everything before the data section, padded to the alignment: GGUF version 3, little-endian
// (docs/gguf.md of ggml).
func header(meta []kv, tensors []tensor) []byte {
	le := binary.LittleEndian
	b := []byte("GGUF")
	b = le.AppendUint32(b, 3)
	b = le.AppendUint64(b, uint64(len(tensors)))
	b = le.AppendUint64(b, uint64(len(meta)))
	for _, e := range meta {
		b = appendString(b, e.key)
		b = appendValue(b, e.value)
	}
	for _, t := range tensors {
		b = appendString(b, t.name)
		b = le.AppendUint32(b, uint32(len(t.dims)))
		for _, n := range t.dims {
			b = le.AppendUint64(b, uint64(n))
		}
		b = le.AppendUint32(b, uint32(t.format.Info().GGML))
		b = le.AppendUint64(b, uint64(t.offset))
	}
	return append(b, make([]byte, align(int64(len(b)))-int64(len(b)))...)
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// GGUF's numbers for the types of metadata values.
const (
	typeUint32  = 4
	typeInt32   = 5
	typeFloat32 = 6
	typeBool    = 7
	typeString  = 8
	typeArray   = 9
)

func appendValue(b []byte, value any) []byte {
	le := binary.LittleEndian
	array := func(elem uint32, n int) []byte {
		return le.AppendUint64(le.AppendUint32(le.AppendUint32(b, typeArray), elem), uint64(n))
	}
	switch v := value.(type) {
	case string:
		return appendString(le.AppendUint32(b, typeString), v)
	case bool:
		b = le.AppendUint32(b, typeBool)
		if v {
			return append(b, 1)
		}
		return append(b, 0)
	case uint32:
		return le.AppendUint32(le.AppendUint32(b, typeUint32), v)
	case float32:
		return le.AppendUint32(le.AppendUint32(b, typeFloat32), math.Float32bits(v))
	case []string:
		b = array(typeString, len(v))
		for _, s := range v {
			b = appendString(b, s)
		}
		return b
	case []int32:
		b = array(typeInt32, len(v))
		for _, n := range v {
			b = le.AppendUint32(b, uint32(n))
		}
		return b
	}
	panic(fmt.Sprintf("synth: no GGUF type for %T", value))
}
