// Weights of the formats that multiply float32 activations, and such activations, four columns at a time.

// fetch returns four weights as they lie in memory.
uvec4 fetch(uint o, uint quad) {
	uvec4 w = uvec4(0);
	uint out_ = out_of(o);
	if (out_ >= p.out_ || 4 * quad >= p.cols) return w;
	uint64_t q = matrix_of(o) + uint64_t(out_) * p.q_stride;
	if (FORMAT == F32) w = U32x4(q).v[quad];
	if (FORMAT == F16 || FORMAT == BF16) w.xy = U32x2(q).v[quad];
	return w;
}

// decode returns the values of what fetch returns.
vec4 decode(uvec4 w) {
	if (FORMAT == F16) return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
	if (FORMAT == BF16) return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xFFFF0000, w.y << 16, w.y & 0xFFFF0000));
	return uintBitsToFloat(w);
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
