// Weights of the formats that multiply float32 activations, and such activations, four columns at a time.

// Quad is four weights as they lie in memory.
struct Quad {
	uvec4 v;    // the values; of Q5_K a word with four low nibbles and one with fifth bits
	uvec4 head; // of Q5_K
};

Quad fetch(uint o, uint quad) {
	Quad w = Quad(uvec4(0), uvec4(0));
	uint out_ = out_of(o);
	if (out_ >= p.out_ || 4 * quad >= p.cols) return w;
	uint64_t q = matrix_of(o) + uint64_t(out_) * p.q_stride;
	if (FORMAT == F32) w.v = U32x4(q).v[quad];
	if (FORMAT == F16 || FORMAT == BF16) w.v.xy = U32x2(q).v[quad];
	if (FORMAT == Q5_K) {
		uint64_t s = matrix_of(o) + p.s_offset + uint64_t(out_) * p.s_stride + quad / 64 * 48;
		w.head = U32x4(s).v[0];
		w.v.x = U32(q).v[quad / 8 * 4 + quad % 4];
		w.v.y = U32(s).v[4 + quad / 8 % 8];
	}
	return w;
}

// codes returns the weights; of Q5_K what has yet to be scaled.
vec4 codes(Quad w, uint quad) {
	if (FORMAT == F16) return vec4(unpackHalf2x16(w.v.x), unpackHalf2x16(w.v.y));
	if (FORMAT == BF16) return uintBitsToFloat(uvec4(w.v.x << 16, w.v.x & 0xFFFF0000, w.v.y << 16, w.v.y & 0xFFFF0000));
	if (FORMAT == Q5_K) {
		uint low = w.v.x >> quad % 8 / 4 * 4 & 0x0F0F0F0F, fifth = (w.v.y >> quad % 8 & 0x01010101) << 4;
		return vec4(uvec4(low | fifth) >> uvec4(0, 8, 16, 24) & 31);
	}
	return uintBitsToFloat(w.v);
}

// scales returns what codes of Q5_K are multiplied with, and what is subtracted then.
vec2 scales(Quad w, uint quad) {
	uint j = quad / 8 % 8;
	uint s = w.head.y >> 4 * j & 15 | (w.head.w >> 2 * j & 3) << 4, m = w.head.z >> 4 * j & 15 | (w.head.w >> 2 * j + 16 & 3) << 4;
	return unpackHalf2x16(w.head.x) * vec2(s, m);
}

// load returns four values of a row of x, zeros behind its end. Rows lie at multiples of 16 bytes only if cols is a multiple of 4.
vec4 load(uint64_t row, uint quad) {
	if (row == 0 || 4 * quad >= p.cols) return vec4(0);
	if (p.cols % 4 == 0) return F32x4(row).v[quad];
	vec4 x = vec4(0);
	[[unroll]] for (uint i = 0; i < 4; i++)
		if (4 * quad + i < p.cols) x[i] = F32x1(row).v[4 * quad + i];
	return x;
}
