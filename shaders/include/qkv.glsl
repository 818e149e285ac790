// Norm and rotation of the heads of queries and keys. A unit is two vectors of a head, of per·2: vectors u and u + rotated of the part that
// is rotated, two neighbours of the rest. The sums are written as fma, to leave the compiler no choice that could differ between kernels.

// The vectors of a unit, counted from the first head.
uvec2 vectors_of(uint unit, uint per, uint rotated) {
	uint u = unit % per, first = unit / per * 2 * per + (u < rotated ? u : 2 * u);
	return uvec2(first, first + (u < rotated ? rotated : 1));
}

// The sum of the squares of a unit.
float squares(vec4 a, vec4 b) {
	vec4 s = fma(b, b, a * a);
	return s.x + s.y + (s.z + s.w);
}

// What n values with so large a sum of squares are multiplied with.
float norm_scale(float sum, uint n, float eps) { return inversesqrt(sum / float(n) + eps); }

// Values between -limit and limit; what is not a number stays.
vec4 limited(vec4 x, float limit) {
	[[unroll]] for (uint c = 0; c < 4; c++) {
		x[c] = isNaN(x[c]) ? x[c] : clamp(x[c], -limit, limit);
	}
	return x;
}

// rotate turns a unit by its entries of the table, cosine and sine in turn.
void rotate(inout vec4 a, inout vec4 b, vec4 t0, vec4 t1) {
	vec4 c = vec4(t0.xz, t1.xz), s = vec4(t0.yw, t1.yw), x = a;
	a = fma(x, c, -(b * s));
	b = fma(b, c, x * s);
}
