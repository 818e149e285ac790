// The steps of RMSNorm, with no choice left to a compiler: rmsnorm.comp and tail.glsl take them in the same order and give the same bits.

// squares adds those of a vector to a sum.
float squares(vec4 x, float sum) { return fma(x.w, x.w, fma(x.z, x.z, fma(x.y, x.y, fma(x.x, x.x, sum)))); }

// normScale is what values are multiplied by, of the mean of their squares.
float normScale(float mean, float eps) {
	precise float x = mean + eps;
	return inversesqrt(x);
}
