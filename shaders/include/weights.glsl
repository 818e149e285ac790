// How a lane reads weights in device layout (package shaders/layout) and multiplies them with activations. One of W_F32, W_F16, W_BF16,
// W_Q8_0, W_I8ROW, W_Q4_0, W_I4G64, W_MXFP4, W_Q4_K, W_Q5_K and W_Q6_K is defined; DOT chooses packed dot products.
//
// A piece is 16 bytes of values of one weight row with their scales: COLS columns. The functions called load only load, so that many loads
// are on their way before the first product waits; product unpacks. All sums are written as fma, to leave the compiler no choice that could
// differ between two pipelines of a kernel.

#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#include "memory.glsl"
#include "dot.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Uvec4s { uvec4 v[]; };

#if !(defined(W_F32) || defined(W_F16) || defined(W_BF16))
#define INTEGER // the integer form of the activations
#endif

int dot16(uvec4 a, uvec4 b) { return dot4(a.w, b.w, dot4(a.z, b.z, dot4(a.y, b.y, dot4(a.x, b.x, 0)))); }

// half16 is the i-th of the two float16 in a word.
float half16(uint word, uint i) { return unpackHalf2x16(word >> (16 * i)).x; }

const uint nibbleMask = 0x0f0f0f0fu;

#if defined(W_F32)
#define COLS 4
#elif defined(W_F16) || defined(W_BF16)
#define COLS 8
#elif defined(W_Q8_0) || defined(W_I8ROW)
#define COLS 16
#else
#define COLS 32
#endif

// Weights are what a piece is made of, still packed.
struct Weights {
	uvec4 q;
#if defined(W_Q4_K) || defined(W_Q5_K)
	uvec4 head;
#elif defined(W_Q6_K)
	uint scales, d;
#elif defined(INTEGER) && !defined(W_I8ROW)
	uint scale;
#endif
#if defined(W_Q5_K)
	uint high;
#elif defined(W_Q6_K)
	uvec2 high;
#endif
};

// load loads piece i of the row whose values and scales are at q and s; cols is the row's width.
Weights load(uint64_t q, uint64_t s, uint i, uint cols) {
	Weights w;
	w.q = Uvec4s(q).v[i];
#if defined(W_Q8_0) || defined(W_MXFP4)
	w.scale = Words(s).v[i >> 2];
#elif defined(W_Q4_0) || defined(W_I4G64)
	w.scale = Words(s).v[i >> 1];
#elif defined(W_Q4_K)
	w.head = Uvec4s(s).v[i >> 3];
#elif defined(W_Q5_K)
	w.high = Words(s).v[(i >> 3) * 12 + 4 + (i & 7)];
	w.head = Uvec4s(s).v[(i >> 3) * 3];
#elif defined(W_Q6_K)
	uint group = (i >> 3) * 20;
	w.high = uvec2(Words(s).v[group + 2 * (i & 7)], Words(s).v[group + 2 * (i & 7) + 1]);
	w.scales = Words(s).v[group + 16 + ((i & 7) >> 1)];
	w.d = Words(s).v[(cols >> 8) * 20 + (i >> 4)];
#endif
	return w;
}

// Values are the activations of a piece.
#if !defined(INTEGER)
struct Values { vec4 x[COLS / 4]; };
#elif COLS == 16
struct Values { uvec4 a; float d; };
#else
struct Values { uvec4 a, b; vec2 d; };
#endif

// loadX loads what piece i is multiplied with from the row of activations at x, in the integer form with the scales at xd.
Values loadX(uint64_t x, uint64_t xd, uint i, uint cols) {
	Values v;
#if !defined(INTEGER)
	[[unroll]] for (uint j = 0; j < COLS / 4; j++) {
		uint c = COLS * i + 4 * j;
		if (WHOLE != 0) {
			vec4 four = Vectors(x).v[min(c, cols - 4) / 4]; // without a branch, which would wait for it
			v.x[j] = c < cols ? four : vec4(0);
		} else {
			v.x[j] = load4(Floats(x), 0, cols, c, false);
		}
	}
#elif COLS == 16
	v.a = Uvec4s(x).v[i];
	v.d = Pairs(xd).v[i >> 1].x;
#else
	v.a = Uvec4s(x).v[2 * i];
	v.b = Uvec4s(x).v[2 * i + 1];
	v.d = Pairs(xd).v[i];
#endif
	return v;
}

// rowX returns the bytes from one row of activations to the next, rowXD those of scales.
uint rowX(uint cols) {
#ifdef INTEGER
	return (cols + 31) & ~31u;
#else
	return 4 * cols;
#endif
}
uint rowXD(uint cols) { return (cols + 31) / 32 * 8; }

#if defined(W_Q4_K) || defined(W_Q5_K)
// scaleMin unpacks the scale and the minimum of block j, 0..7, from a K head.
vec2 scaleMin(uvec4 head, uint j) {
	uint scale = (head.y >> (4 * j)) & 15 | ((head.w >> (2 * j)) & 3) << 4;
	uint minimum = (head.z >> (4 * j)) & 15 | ((head.w >> (16 + 2 * j)) & 3) << 4;
	return unpackHalf2x16(head.x) * vec2(scale, minimum);
}
#endif

#if defined(W_MXFP4)
// e2m1 turns four codes of E2M1 into twelve plus twice their values, all bytes from 0 to 24.
uint e2m1(uint codes) {
	const uint ones = 0x01010101u;
	uint low = codes & 0x03030303u;
	uint both = low & (low >> 1) & ones;
	uint exponent = ((codes >> 2) & ones) * 15;
	uint twice = low + (exponent & (low + 2 * both + 4 * ones)); // 0 1 2 3 4 6 8 12
	uint negative = ((codes >> 3) & ones) * 255;
	return 12 * ones + twice - 2 * (twice & negative);
}
#endif

// product adds the product of piece i to acc.
float product(float acc, Weights w, Values v, uint i) {
#if defined(W_F32)
	vec4 f = uintBitsToFloat(w.q);
	[[unroll]] for (uint j = 0; j < 4; j++) acc = fma(f[j], v.x[0][j], acc);
#elif defined(W_F16) || defined(W_BF16)
	[[unroll]] for (uint j = 0; j < 4; j++) {
#ifdef W_F16
		vec2 f = unpackHalf2x16(w.q[j]);
#else
		vec2 f = uintBitsToFloat(uvec2(w.q[j] << 16, w.q[j] & 0xffff0000u));
#endif
		acc = fma(f.x, v.x[j >> 1][2 * j & 2], acc);
		acc = fma(f.y, v.x[j >> 1][2 * j & 2 | 1], acc);
	}
#elif defined(W_Q8_0)
	acc = fma(float(dot16(w.q, v.a)), half16(w.scale, (i >> 1) & 1) * v.d, acc);
#elif defined(W_I8ROW)
	acc = fma(float(dot16(w.q, v.a)), v.d, acc);
#else
	uvec4 a = w.q & nibbleMask, b = (w.q >> 4) & nibbleMask; // columns 0..15 and 16..31
#if defined(W_Q4_0) || defined(W_I4G64)
#ifdef W_Q4_0
	float d = half16(w.scale, i & 1);
#else
	float d = uintBitsToFloat(w.scale);
#endif
	acc = fma(float(dot16(a, v.a) + dot16(b, v.b)), d * v.d.x, acc);
	acc = fma(-8 * d, v.d.y, acc);
#elif defined(W_MXFP4)
	uvec4 lo, hi;
	[[unroll]] for (uint j = 0; j < 4; j++) {
		lo[j] = e2m1(a[j]);
		hi[j] = e2m1(b[j]);
	}
	uint exponent = (w.scale >> (8 * (i & 3))) & 255;
	float d = 0.5 * uintBitsToFloat(exponent == 255 ? 0x7fc00000u : exponent << 23);
	acc = fma(float(dot16(lo, v.a) + dot16(hi, v.b)), d * v.d.x, acc);
	acc = fma(-12 * d, v.d.y, acc);
#elif defined(W_Q4_K) || defined(W_Q5_K)
#ifdef W_Q5_K
	const uvec4 fifth = uvec4(0, 1, 2, 3);
	a |= ((uvec4(w.high) >> fifth) & 0x01010101u) << 4;
	b |= ((uvec4(w.high) >> (fifth + 4)) & 0x01010101u) << 4;
#endif
	vec2 s = scaleMin(w.head, i & 7);
	acc = fma(float(dot16(a, v.a) + dot16(b, v.b)), s.x * v.d.x, acc);
	acc = fma(-s.y, v.d.y, acc);
#elif defined(W_Q6_K)
	const uvec4 shifts = uvec4(0, 2, 4, 6), minus32 = uvec4(0xe0e0e0e0u);
	a |= ((uvec4(w.high.x) >> shifts) & 0x03030303u) << 4;
	b |= ((uvec4(w.high.y) >> shifts) & 0x03030303u) << 4;
	float d = half16(w.d, (i >> 3) & 1) * v.d.x;
	int scales = int(w.scales >> (16 * (i & 1)));
	acc = fma(float(dot16(a, v.a) + dot16(minus32, v.a)), d * float(bitfieldExtract(scales, 0, 8)), acc);
	acc = fma(float(dot16(b, v.b) + dot16(minus32, v.b)), d * float(bitfieldExtract(scales, 8, 8)), acc);
#endif
#endif
	return acc;
}

// scaled completes the sum of a whole row's pieces, s being the address of the row's scales.
float scaled(float sum, uint64_t s) {
#ifdef W_I8ROW
	sum *= Floats(s).v[0];
#endif
	return sum;
}
