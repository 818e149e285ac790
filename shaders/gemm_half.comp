// Matrix products of float32 activations on cooperative matrices of float16, tile by tile: GEMMPush and GEMMHalf in gemm.go.
//
// Blocks of 32 columns are scaled by powers of two, and a value is split into two float16, high and low, that together have as many bits
// as a product of float32 keeps. Of weights, F16 is float16 itself, and BF16 is after scaling.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gemm.glsl"
#include "gemm_coop.glsl"
#include "gemm_float.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_shuffle : require

const bool LOW = FORMAT == F32;         // weights have a low part
const uint UNITS = 8 * OUTS / THREADS;  // quads of weights a thread unpacks in a step
const uint PIECES = 8 * ROWS / THREADS; // quads of x a thread fetches in a step

// One step: a block of 32 columns of the tile's weights and rows.
shared uvec4 ws[OUTS * PITCH];
shared uvec4 ws_low[LOW ? OUTS * PITCH : 1];
shared uvec4 xs[ROWS * PITCH];
shared uvec4 xs_low[ROWS * PITCH];
shared float scale[OUTS];
shared float xscale[ROWS];

uint max8(uint v) {
	[[unroll]] for (uint i = 1; i < 8; i *= 2) v = max(v, subgroupShuffleXor(v, i));
	return v;
}

// split scales a block, the quads of eight neighbouring lanes, so that its largest value is near 2^14, and splits it. It returns what
// undoes the scaling, and NaN if the block has a value that is not finite.
float split(vec4 v, out uvec2 high, out uvec2 low) {
	uvec4 bits = floatBitsToUint(v) & 0x7FFFFFFF;
	uint top = max8(max(max(bits.x, bits.y), max(bits.z, bits.w)));
	high = low = uvec2(0);
	if (top >= 0x7F800000) return uintBitsToFloat(0x7FC00000);
	uint exponent = max(top >> 23, 15);
	v *= uintBitsToFloat((268 - exponent) << 23);
	// Rounded by hand: NVIDIA's compiler takes a value packed and unpacked for the value itself, which leaves no low part.
	bits = floatBitsToUint(v);
	bits = (bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000;
	vec4 rounded = uintBitsToFloat(bits);
	high = uvec2(packHalf2x16(rounded.xy), packHalf2x16(rounded.zw));
	v -= rounded;
	low = uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));
	return uintBitsToFloat((exponent - 14) << 23);
}

#define MATRIX_X coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MATRIX_W coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>

// Scales are loaded as matrices too: with a stride of 0 each row, or each column, of such a matrix is the same.
void multiply() {
	uint r0 = first_row(), o0 = first_o();
	MATRIX_X x[TALL * 2], x_low[TALL * 2];
	SUMS dx[TALL];
	[[unroll]] for (uint i = 0; i < TALL; i++) {
		uint r = r0 + 16 * i;
		[[unroll]] for (uint k = 0; k < 2; k++) {
			coopMatLoad(x[2 * i + k], xs, r * PITCH + 2 * k, PITCH, gl_CooperativeMatrixLayoutRowMajor);
			coopMatLoad(x_low[2 * i + k], xs_low, r * PITCH + 2 * k, PITCH, gl_CooperativeMatrixLayoutRowMajor);
		}
		coopMatLoad(dx[i], xscale, r, 0, gl_CooperativeMatrixLayoutColumnMajor);
	}
	[[unroll]] for (uint j = 0; j < WIDE; j++) {
		uint o = o0 + 16 * j;
		MATRIX_W w[2], w_low[2];
		SUMS dw;
		[[unroll]] for (uint k = 0; k < 2; k++) {
			coopMatLoad(w[k], ws, o * PITCH + 2 * k, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
			if (LOW) coopMatLoad(w_low[k], ws_low, o * PITCH + 2 * k, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
		}
		coopMatLoad(dw, scale, o, 0, gl_CooperativeMatrixLayoutRowMajor);
		[[unroll]] for (uint i = 0; i < TALL; i++) {
			SUMS sum = SUMS(0);
			[[unroll]] for (uint k = 0; k < 2; k++) {
				if (LOW) sum = coopMatMulAdd(x[2 * i + k], w_low[k], sum);
				sum = coopMatMulAdd(x_low[2 * i + k], w[k], sum);
			}
			[[unroll]] for (uint k = 0; k < 2; k++) sum = coopMatMulAdd(x[2 * i + k], w[k], sum);
			acc[i * WIDE + j] += sum * (dw * dx[i]);
		}
	}
}

// put_w and put_x leave a quad in shared memory.
void put_w(uvec4 w, uint o, uint quad) {
	vec4 v = decode(w);
	float s = 1;
	uvec2 high = uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw)), low = uvec2(0);
	if (FORMAT == BF16 || FORMAT == F32) s = split(v, high, low);
	scale[o] = s;
	uint at = o * PITCH + quad % 8 / 2;
	if (quad % 2 == 0) {
		ws[at].xy = high;
		if (LOW) ws_low[at].xy = low;
	} else {
		ws[at].zw = high;
		if (LOW) ws_low[at].zw = low;
	}
}

void put_x(vec4 v, uint r, uint quad) {
	uvec2 high, low;
	xscale[r] = split(v, high, low);
	uint at = r * PITCH + quad % 8 / 2;
	if (quad % 2 == 0) {
		xs[at].xy = high;
		xs_low[at].xy = low;
	} else {
		xs[at].zw = high;
		xs_low[at].zw = low;
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
		uint r = (lane + i * THREADS) / 8;
		rows[i] = r < count ? p.x + uint64_t(source(r)) * p.cols * 4 : 0;
	}
	uint quads = (p.cols + 3) / 4;
	for (uint at = 0; at < quads + 8; at += 8) {
		uint quad = at + lane % 8;
		if (at > 0) {
			barrier();
			[[unroll]] for (uint i = 0; i < UNITS; i++) put_w(w[i], (lane + i * THREADS) / 8, quad - 8);
			[[unroll]] for (uint i = 0; i < PIECES; i++) put_x(x[i], (lane + i * THREADS) / 8, quad - 8);
			barrier();
		}
		// What the next step needs is on its way from memory while this one is multiplied.
		[[unroll]] for (uint i = 0; i < UNITS; i++) w[i] = fetch((lane + i * THREADS) / 8, quad);
		[[unroll]] for (uint i = 0; i < PIECES; i++) x[i] = load(rows[i], quad);
		if (at > 0) multiply();
	}
	write();
}
