// Package format defines the weight formats coli reads: one explicit identifier per format with its block geometry, exact decoders
// to float32, and encoders for the formats coli can write.
//
// A row of a matrix is self-contained in every format: whatever scales it needs lie inside its RowBytes bytes. Formats that a
// checkpoint stores in two tensors (fp8 with a grid of scales) are assembled into such rows by the reader.
//
// What does not live here: where a tensor lies in a file (package weights) and how rows are multiplied (package kernels).
package format

import (
	"fmt"
	"math"
	"strings"
)

// Format identifies how the values of a tensor are stored. The zero value is Unknown.
type Format uint8

// The formats. Names are ggml's where ggml has the format.
const (
	Unknown Format = iota
	F32
	F16
	BF16
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q8_0
	Q2_K
	Q3_K
	Q4_K
	Q5_K
	Q6_K
	IQ2_XXS
	IQ2_XS
	IQ2_S
	IQ3_XXS
	IQ3_S
	IQ1_S
	IQ1_M
	IQ4_NL
	IQ4_XS
	TQ1_0
	TQ2_0
	MXFP4
	NVFP4
	// F8E4M3 is fp8 E4M3 with one float32 scale per 128 columns; checkpoints store the scales as a grid of 128×128 tiles.
	// Row: cols bytes, then ceil(cols/128) little-endian float32 scales.
	F8E4M3
	// I8Row is int8 with one scale a row. Row: one little-endian float32 scale, then cols int8 values.
	I8Row
	// I4G64 is int4 with one scale per 64 columns. Block of 64: one little-endian float32 scale, then 32 bytes whose byte j holds
	// value j in the low nibble and value j+32 in the high one; a value is (nibble-8)·scale.
	I4G64
	numFormats
)

// Info is the geometry of a format.
type Info struct {
	Name       string
	GGML       int // ggml's type number, -1 where ggml has none
	Block      int // columns a block holds
	BlockBytes int // bytes of a block
	RowHead    int // bytes of a row outside its blocks
}

var infos = [numFormats]Info{
	Unknown: {"unknown", -1, 1, 0, 0},
	F32:     {"F32", 0, 1, 4, 0},
	F16:     {"F16", 1, 1, 2, 0},
	BF16:    {"BF16", 30, 1, 2, 0},
	Q4_0:    {"Q4_0", 2, 32, 18, 0},
	Q4_1:    {"Q4_1", 3, 32, 20, 0},
	Q5_0:    {"Q5_0", 6, 32, 22, 0},
	Q5_1:    {"Q5_1", 7, 32, 24, 0},
	Q8_0:    {"Q8_0", 8, 32, 34, 0},
	Q2_K:    {"Q2_K", 10, 256, 84, 0},
	Q3_K:    {"Q3_K", 11, 256, 110, 0},
	Q4_K:    {"Q4_K", 12, 256, 144, 0},
	Q5_K:    {"Q5_K", 13, 256, 176, 0},
	Q6_K:    {"Q6_K", 14, 256, 210, 0},
	IQ2_XXS: {"IQ2_XXS", 16, 256, 66, 0},
	IQ2_XS:  {"IQ2_XS", 17, 256, 74, 0},
	IQ3_XXS: {"IQ3_XXS", 18, 256, 98, 0},
	IQ1_S:   {"IQ1_S", 19, 256, 50, 0},
	IQ4_NL:  {"IQ4_NL", 20, 32, 18, 0},
	IQ3_S:   {"IQ3_S", 21, 256, 110, 0},
	IQ2_S:   {"IQ2_S", 22, 256, 82, 0},
	IQ4_XS:  {"IQ4_XS", 23, 256, 136, 0},
	IQ1_M:   {"IQ1_M", 29, 256, 56, 0},
	TQ1_0:   {"TQ1_0", 34, 256, 54, 0},
	TQ2_0:   {"TQ2_0", 35, 256, 66, 0},
	MXFP4:   {"MXFP4", 39, 32, 17, 0},
	NVFP4:   {"NVFP4", 40, 64, 36, 0},
	F8E4M3:  {"F8_E4M3_B128", -1, 1, 1, 0},
	I8Row:   {"I8_ROW", -1, 1, 1, 4},
	I4G64:   {"I4_G64", -1, 64, 36, 0},
}

// Info returns the geometry of f; an identifier out of range gets Unknown's.
func (f Format) Info() Info {
	if f >= numFormats {
		return infos[Unknown]
	}
	return infos[f]
}

// String returns the format's name.
func (f Format) String() string { return f.Info().Name }

// All lists every known format in identifier order.
func All() []Format {
	out := make([]Format, 0, numFormats-1)
	for f := Unknown + 1; f < numFormats; f++ {
		out = append(out, f)
	}
	return out
}

// Parse returns the format called name, in any case. The error lists the names.
func Parse(name string) (Format, error) {
	names := make([]string, 0, numFormats)
	for _, f := range All() {
		if strings.EqualFold(name, f.String()) {
			return f, nil
		}
		names = append(names, f.String())
	}
	return Unknown, fmt.Errorf("no weight format is called %q; there are %s", name, strings.Join(names, ", "))
}

// FromGGML maps ggml's type number (as in a GGUF tensor header) to a format; ok is false for a number coli does not know.
func FromGGML(id uint32) (f Format, ok bool) {
	for f, in := range infos {
		if in.GGML >= 0 && uint32(in.GGML) == id {
			return Format(f), true
		}
	}
	return Unknown, false
}

// RowBytes returns the bytes of one row of cols values. It errs if cols is not a positive multiple of the format's block or the
// size overflows.
func (f Format) RowBytes(cols int) (int, error) {
	in := f.Info()
	if f == Unknown || in.BlockBytes == 0 {
		return 0, fmt.Errorf("format %s has no row size", f)
	}
	if cols <= 0 || cols%in.Block != 0 {
		return 0, fmt.Errorf("format %s: %d columns are not a positive multiple of its block of %d", f, cols, in.Block)
	}
	blocks := cols / in.Block
	if blocks > (math.MaxInt-in.RowHead)/in.BlockBytes-cols {
		return 0, fmt.Errorf("format %s: a row of %d columns overflows", f, cols)
	}
	n := blocks*in.BlockBytes + in.RowHead
	if f == F8E4M3 {
		n += 4 * ((cols + 127) / 128)
	}
	return n, nil
}
