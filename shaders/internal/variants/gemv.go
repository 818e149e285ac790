package variants

import "slices"

// weightFormats are the formats that include/weights.glsl reads: the macro that chooses one and whether it multiplies the integer form of
// the activations.
var weightFormats = []struct {
	name    string
	define  string
	integer bool
}{
	{"f32", "W_F32", false},
	{"f16", "W_F16", false},
	{"bf16", "W_BF16", false},
	{"q8_0", "W_Q8_0", true},
	{"i8_row", "W_I8ROW", true},
	{"q4_0", "W_Q4_0", true},
	{"i4_g64", "W_I4G64", true},
	{"mxfp4", "W_MXFP4", true},
	{"q4_k", "W_Q4_K", true},
	{"q5_k", "W_Q5_K", true},
	{"q6_k", "W_Q6_K", true},
}

// perFormat returns a module of source for each weight format, called SOURCE_FORMAT, and for the formats of the integer form another one,
// SOURCE_FORMAT_dot, with packed dot products.
func perFormat(source string) []Variant {
	var out []Variant
	for _, f := range weightFormats {
		out = append(out, Variant{Name: source + "_" + f.name, Source: source, Defines: []string{f.define}})
		if f.integer {
			out = append(out, Variant{Name: source + "_" + f.name + "_dot", Source: source, Defines: []string{f.define, "DOT"}})
		}
	}
	return out
}

var gemv = slices.Concat(perFormat("gemv"), perFormat("expert"), perFormat("gate_up"), perFormat("down"))
