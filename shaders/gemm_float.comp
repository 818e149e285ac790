// Matrix products of float32 activations, tile by tile: GEMMPush and GEMMFloat in gemm.go.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gemm.glsl"

const uint UNITS = 4 * OUTS / THREADS;  // quads of weights a thread unpacks in a step
const uint PIECES = 4 * ROWS / THREADS; // quads of x a thread fetches in a step

// One step: 16 columns of the tile's weights and rows, as quads of neighbouring columns.
shared vec4 ws[OUTS * PITCH];
shared vec4 xs[ROWS * PITCH];

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

vec4 unpack(Quad w, uint quad) {
	if (FORMAT == F16) return vec4(unpackHalf2x16(w.v.x), unpackHalf2x16(w.v.y));
	if (FORMAT == BF16) return uintBitsToFloat(uvec4(w.v.x << 16, w.v.x & 0xFFFF0000, w.v.y << 16, w.v.y & 0xFFFF0000));
	if (FORMAT == Q5_K) {
		uint j = quad / 8 % 8, low = w.v.x >> quad % 8 / 4 * 4 & 0x0F0F0F0F, fifth = (w.v.y >> quad % 8 & 0x01010101) << 4;
		vec2 d = unpackHalf2x16(w.head.x);
		float s = d.x * float(w.head.y >> 4 * j & 15 | (w.head.w >> 2 * j & 3) << 4);
		float m = d.y * float(w.head.z >> 4 * j & 15 | (w.head.w >> 2 * j + 16 & 3) << 4);
		return s * vec4(uvec4(low | fifth) >> uvec4(0, 8, 16, 24) & 31) - m;
	}
	return uintBitsToFloat(w.v);
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

float acc[PER][4];

void multiply() {
	for (uint q = 0; q < 4; q++) {
		vec4 x[4];
		[[unroll]] for (uint j = 0; j < 4; j++) x[j] = xs[own_row(j) * PITCH + q];
		[[unroll]] for (uint i = 0; i < PER; i++) {
			vec4 w = ws[own_out(i) * PITCH + q];
			[[unroll]] for (uint j = 0; j < 4; j++)
				acc[i][j] = fma(w.x, x[j].x, fma(w.y, x[j].y, fma(w.z, x[j].z, fma(w.w, x[j].w, acc[i][j]))));
		}
	}
}

void main() {
	if (!begin()) return;
	uint lane = gl_LocalInvocationIndex;
	[[unroll]] for (uint i = 0; i < PER; i++) [[unroll]] for (uint j = 0; j < 4; j++) acc[i][j] = 0;
	Quad w[UNITS];
	vec4 x[PIECES];
	uint64_t rows[PIECES];
	[[unroll]] for (uint i = 0; i < PIECES; i++) {
		uint r = (lane + i * THREADS) / 4;
		rows[i] = r < count ? p.x + uint64_t(source(r)) * p.cols * 4 : 0;
	}
	uint quads = (p.cols + 3) / 4;
	for (uint at = 0; at < quads + 4; at += 4) {
		if (at > 0) {
			barrier();
			[[unroll]] for (uint i = 0; i < UNITS; i++) {
				uint unit = lane + i * THREADS;
				ws[unit / 4 * PITCH + unit % 4] = unpack(w[i], at - 4 + unit % 4);
			}
			[[unroll]] for (uint i = 0; i < PIECES; i++) {
				uint piece = lane + i * THREADS;
				xs[piece / 4 * PITCH + piece % 4] = x[i];
			}
			barrier();
		}
		// What the next step needs is on its way from memory while this one is multiplied.
		[[unroll]] for (uint i = 0; i < UNITS; i++) w[i] = fetch((lane + i * THREADS) / 4, at + (lane + i * THREADS) % 4);
		[[unroll]] for (uint i = 0; i < PIECES; i++) x[i] = load(rows[i], at + (lane + i * THREADS) % 4);
		if (at > 0) multiply();
	}
	[[unroll]] for (uint j = 0; j < 4; j++)
		[[unroll]] for (uint i = 0; i < PER; i += GATED ? 2 : 1)
			finish(own_out(i), own_row(j), GATED ? activate(acc[i][j]) * acc[i + 1][j] : acc[i][j]);
}
