// Matrix products of float32 activations, tile by tile: GEMMPush and GEMMFloat in gemm.go.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gemm.glsl"
#include "gemm_float.glsl"
#include "gemm_thread.glsl"

const uint UNITS = 4 * OUTS / THREADS;  // quads of weights a thread unpacks in a step
const uint PIECES = 4 * ROWS / THREADS; // quads of x a thread fetches in a step

// One step: 16 columns of the tile's weights and rows, as quads of neighbouring columns.
shared vec4 ws[OUTS * PITCH];
shared vec4 xs[ROWS * PITCH];

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
	clear();
	uvec4 w[UNITS];
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
				ws[unit / 4 * PITCH + unit % 4] = decode(w[i]);
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
	write();
}
