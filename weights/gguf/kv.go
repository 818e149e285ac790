package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Type is the type of a metadata value.
type Type uint32

// The metadata types, by their numbers in the file.
const (
	TypeUint8 Type = iota
	TypeInt8
	TypeUint16
	TypeInt16
	TypeUint32
	TypeInt32
	TypeFloat32
	TypeBool
	TypeString
	TypeArray
	TypeUint64
	TypeInt64
	TypeFloat64
)

var typeNames = [...]string{"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"}

// String returns the short name, as "u32".
func (t Type) String() string {
	if int64(t) < int64(len(typeNames)) {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// width returns the bytes of one value, 0 for strings, arrays and unknown types.
func (t Type) width() int {
	switch t {
	case TypeUint8, TypeInt8, TypeBool:
		return 1
	case TypeUint16, TypeInt16:
		return 2
	case TypeUint32, TypeInt32, TypeFloat32:
		return 4
	case TypeUint64, TypeInt64, TypeFloat64:
		return 8
	}
	return 0
}

// KV is one metadata entry. Values are decoded when they are asked for, so opening a file with a large vocabulary costs little.
type KV struct {
	Key  string
	Type Type
	Elem Type // element type of an array
	n    uint64
	raw  []byte
}

// Len returns the number of elements of an array, 1 for a single value.
func (kv *KV) Len() int { return int(kv.n) }

// Value returns the value as uint64, int64, float64, bool, string, or a slice of one of these.
func (kv *KV) Value() any {
	if kv.Type != TypeArray {
		return kv.at(kv.Type, 0)
	}
	switch kv.Elem {
	case TypeString:
		return kv.strings()
	case TypeBool:
		return collect[bool](kv)
	case TypeFloat32, TypeFloat64:
		return collect[float64](kv)
	case TypeUint8, TypeUint16, TypeUint32, TypeUint64:
		return collect[uint64](kv)
	}
	return collect[int64](kv)
}

func collect[T any](kv *KV) []T {
	out := make([]T, kv.n)
	for i := range out {
		out[i] = kv.at(kv.Elem, i).(T)
	}
	return out
}

// at decodes element i of type t to uint64, int64, float64, bool or, for i 0 only, string.
func (kv *KV) at(t Type, i int) any {
	le, b := binary.LittleEndian, kv.raw[i*t.width():]
	switch t {
	case TypeUint8:
		return uint64(b[0])
	case TypeInt8:
		return int64(int8(b[0]))
	case TypeUint16:
		return uint64(le.Uint16(b))
	case TypeInt16:
		return int64(int16(le.Uint16(b)))
	case TypeUint32:
		return uint64(le.Uint32(b))
	case TypeInt32:
		return int64(int32(le.Uint32(b)))
	case TypeFloat32:
		return float64(math.Float32frombits(le.Uint32(b)))
	case TypeBool:
		return b[0] != 0
	case TypeUint64:
		return le.Uint64(b)
	case TypeInt64:
		return int64(le.Uint64(b))
	case TypeFloat64:
		return math.Float64frombits(le.Uint64(b))
	}
	return string(b[8:])
}

// strings cuts an array of strings out of one copy of its bytes.
func (kv *KV) strings() []string {
	text, out := string(kv.raw), make([]string, kv.n)
	pos := 0
	for i := range out {
		end := pos + 8 + int(binary.LittleEndian.Uint64(kv.raw[pos:]))
		out[i] = text[pos+8 : end]
		pos = end
	}
	return out
}

func (kv *KV) uint() (uint64, bool) {
	if kv.Type == TypeArray || kv.Type == TypeString {
		return 0, false
	}
	switch v := kv.at(kv.Type, 0).(type) {
	case uint64:
		return v, true
	case int64:
		return uint64(v), v >= 0
	}
	return 0, false
}

// Lookup returns the entry of a key.
func (f *File) Lookup(key string) (*KV, bool) {
	i, ok := f.index[key]
	if !ok {
		return nil, false
	}
	return &f.KVs[i], true
}

// scalar returns the decoded single value of a key, nil if it is absent or an array.
func (f *File) scalar(key string) any {
	if kv, ok := f.Lookup(key); ok && kv.Type != TypeArray {
		return kv.at(kv.Type, 0)
	}
	return nil
}

// String returns the string of a key, byte for byte as it is in the file. This and the other accessors report false where the key
// is absent or its value is of another kind; integers of every width are one kind.
func (f *File) String(key string) (string, bool) {
	v, ok := f.scalar(key).(string)
	return v, ok
}

// Uint returns a non-negative integer.
func (f *File) Uint(key string) (uint64, bool) {
	if kv, ok := f.Lookup(key); ok {
		return kv.uint()
	}
	return 0, false
}

// Int returns an integer that fits int64.
func (f *File) Int(key string) (int64, bool) {
	switch v := f.scalar(key).(type) {
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt64
	}
	return 0, false
}

// Float returns a floating-point number, or an integer as one.
func (f *File) Float(key string) (float64, bool) {
	switch v := f.scalar(key).(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	}
	return 0, false
}

// Bool returns a truth value.
func (f *File) Bool(key string) (value, ok bool) {
	value, ok = f.scalar(key).(bool)
	return value, ok
}

// Strings returns an array of strings, each byte for byte as it is in the file.
func (f *File) Strings(key string) ([]string, bool) {
	if kv, ok := f.Lookup(key); ok && kv.Type == TypeArray && kv.Elem == TypeString {
		return kv.strings(), true
	}
	return nil, false
}

// Ints returns an array of integers or truth values (0 and 1); ok is false where one does not fit int64.
func (f *File) Ints(key string) ([]int64, bool) {
	kv, ok := f.Lookup(key)
	if !ok || kv.Type != TypeArray {
		return nil, false
	}
	le := binary.LittleEndian
	switch kv.Elem {
	case TypeInt32: // token types: the only long array of integers in real files
		out := make([]int64, kv.n)
		for i := range out {
			out[i] = int64(int32(le.Uint32(kv.raw[4*i:])))
		}
		return out, true
	case TypeString, TypeFloat32, TypeFloat64:
		return nil, false
	}
	out := make([]int64, kv.n)
	for i := range out {
		switch v := kv.at(kv.Elem, i).(type) {
		case int64:
			out[i] = v
		case uint64:
			if v > math.MaxInt64 {
				return nil, false
			}
			out[i] = int64(v)
		case bool:
			if v {
				out[i] = 1
			}
		}
	}
	return out, true
}

// Floats returns an array of floating-point numbers as float32, the width every real file uses.
func (f *File) Floats(key string) ([]float32, bool) {
	kv, ok := f.Lookup(key)
	if !ok || kv.Type != TypeArray {
		return nil, false
	}
	le, out := binary.LittleEndian, []float32(nil)
	switch kv.Elem {
	case TypeFloat32:
		out = make([]float32, kv.n)
		for i := range out {
			out[i] = math.Float32frombits(le.Uint32(kv.raw[4*i:]))
		}
	case TypeFloat64:
		out = make([]float32, kv.n)
		for i := range out {
			out[i] = float32(math.Float64frombits(le.Uint64(kv.raw[8*i:])))
		}
	default:
		return nil, false
	}
	return out, true
}
