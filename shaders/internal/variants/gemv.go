package variants

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
	{"q5_k", "W_Q5_K", false},
	{"q6_k", "W_Q6_K", true},
}

// perFormat returns a module of source for each weight format, called PREFIX_FORMAT, and for the formats of the integer form another one,
// PREFIX_FORMAT_dot, with packed dot products.
func perFormat(prefix, source string, defines ...string) []Variant {
	var out []Variant
	for _, f := range weightFormats {
		d := append([]string{f.define}, defines...)
		out = append(out, Variant{Name: prefix + "_" + f.name, Source: source, Defines: d})
		if f.integer {
			out = append(out, Variant{Name: prefix + "_" + f.name + "_dot", Source: source, Defines: append([]string{"DOT"}, d...)})
		}
	}
	return out
}

var gemv = perFormat("gemv", "gemv")
