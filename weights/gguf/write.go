package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/coli-moe/coli/weights/format"
)

// Pair is one metadata entry to write: a string, bool, uint32, int32, uint64, int64, float32, or a slice of strings, int32, uint32 or float32.
type Pair struct {
	Key   string
	Value any
}

// WriteHeader writes the header of a version 3 file to w, padded up to the tensor data, and sets Offset and Size of each tensor from
// its Name, Format and Shape. The caller then writes each tensor's bytes in order, followed by Padding(Size) zero bytes.
func WriteHeader(w io.Writer, kvs []Pair, tensors []Tensor) error {
	b := append([]byte(magic), 3, 0, 0, 0)
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(len(tensors)))
	b = le.AppendUint64(b, uint64(len(kvs)))
	var err error
	for _, kv := range kvs {
		if b, err = appendValue(appendString(b, kv.Key), kv.Value); err != nil {
			return fmt.Errorf("metadata %q: %w", kv.Key, err)
		}
	}
	offset := int64(0)
	for i := range tensors {
		t := &tensors[i]
		id := t.Format.Info().GGML
		if t.Format == format.Unknown || id < 0 || len(t.Shape) == 0 || len(t.Shape) > maxDims {
			return fmt.Errorf("tensor %q: GGUF cannot hold %s %v", t.Name, t.Format, t.Shape)
		}
		if err := t.setType("", 0, uint32(id)); err != nil {
			return err
		}
		b = le.AppendUint32(appendString(b, t.Name), uint32(len(t.Shape)))
		for j := range t.Shape {
			b = le.AppendUint64(b, uint64(t.Shape[len(t.Shape)-1-j]))
		}
		b = le.AppendUint64(le.AppendUint32(b, uint32(id)), uint64(offset))
		t.Offset = offset
		offset += t.Size + Padding(t.Size)
	}
	b = append(b, make([]byte, Padding(int64(len(b))))...)
	for i := range tensors {
		tensors[i].Offset += int64(len(b))
	}
	_, err = w.Write(b)
	return err
}

// Padding returns the number of bytes that follow size bytes up to the next multiple of the alignment that WriteHeader uses.
func Padding(size int64) int64 { return -size & (defaultAlignment - 1) }

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

func appendValue(b []byte, v any) ([]byte, error) {
	le := binary.LittleEndian
	array := func(t Type, n int) []byte {
		return le.AppendUint64(le.AppendUint32(le.AppendUint32(b, uint32(TypeArray)), uint32(t)), uint64(n))
	}
	switch v := v.(type) {
	case string:
		return appendString(le.AppendUint32(b, uint32(TypeString)), v), nil
	case bool:
		return binary.Append(le.AppendUint32(b, uint32(TypeBool)), le, v)
	case uint32:
		return le.AppendUint32(le.AppendUint32(b, uint32(TypeUint32)), v), nil
	case int32:
		return le.AppendUint32(le.AppendUint32(b, uint32(TypeInt32)), uint32(v)), nil
	case uint64:
		return le.AppendUint64(le.AppendUint32(b, uint32(TypeUint64)), v), nil
	case int64:
		return le.AppendUint64(le.AppendUint32(b, uint32(TypeInt64)), uint64(v)), nil
	case float32:
		return le.AppendUint32(le.AppendUint32(b, uint32(TypeFloat32)), math.Float32bits(v)), nil
	case []string:
		b = array(TypeString, len(v))
		for _, s := range v {
			b = appendString(b, s)
		}
		return b, nil
	case []int32:
		return binary.Append(array(TypeInt32, len(v)), le, v)
	case []uint32:
		return binary.Append(array(TypeUint32, len(v)), le, v)
	case []float32:
		return binary.Append(array(TypeFloat32, len(v)), le, v)
	}
	return nil, fmt.Errorf("cannot write a %T", v)
}
