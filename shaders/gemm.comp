// Matrix products of the integer form of activations, tile by tile: GEMMPush and GEMMForm in gemm.go. DOT and COOP choose the form.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gemm.glsl"
#ifdef COOP
#include "gemm_coop.glsl"
const bool PAIRED = FORMAT == Q6_K; // the halves of a block have matrices of their own, each filled up with zeros
const uint W_PITCH = PAIRED ? 2 * PITCH - 1 : PITCH;
#else
#include "dot.glsl"
#include "gemm_thread.glsl"
const uint W_PITCH = PITCH;
#endif

const bool K_HEAD = FORMAT == Q4_K || FORMAT == Q5_K; // something is subtracted: the minimum times the sum of x

const bool BYTES = FORMAT == Q8_0 || FORMAT == I8ROW;
const uint UNITS = THREADS > 2 * OUTS ? 1 : 2 * OUTS / THREADS; // blocks of weights a thread unpacks in a step
const uint PIECES = 4 * ROWS / THREADS;        // of 16 values of x a thread fetches in a step

// One step: two blocks of 32 columns of the tile's weights and rows.
shared uvec4 ws[OUTS * W_PITCH];
shared uvec4 xs[ROWS * PITCH];
shared float scale[2 * OUTS];  // of each block of weights; of the first half of it for Q6_K
shared float second[2 * OUTS]; // of the second half of it for Q6_K, what is subtracted with a K head
shared float xscale[2 * ROWS];
shared float xsum[2 * ROWS];

uint blocks; // of a row

// Block is a block of weights as it lies in memory.
struct Block {
	uvec4 q0, q1, head;
	uint scale; // of Q5_K the fifth bits
};

Block fetch(uint o, uint block) {
	Block w = Block(uvec4(0), uvec4(0), uvec4(0), 0);
	uint out_ = out_of(o);
	if (out_ >= p.out_ || block >= blocks) return w;
	uint64_t q = matrix_of(o) + uint64_t(out_) * p.q_stride, s = matrix_of(o) + p.s_offset + uint64_t(out_) * p.s_stride;
	if (BYTES) {
		w.q0 = U32x4(q).v[2 * block];
		w.q1 = U32x4(q).v[2 * block + 1];
	} else {
		w.q0 = U32x4(q).v[block];
	}
	if (FORMAT == Q8_0 || FORMAT == Q4_0) w.scale = U16(s).v[block];
	if (FORMAT == I8ROW) w.scale = U32(s).v[0];
	if (FORMAT == I4G64) w.scale = U32(s).v[block / 2];
	if (FORMAT == MXFP4) w.scale = U8(s).v[block];
	if (FORMAT == Q4_K) w.head = U32x4(s).v[block / 8];
	if (FORMAT == Q5_K) {
		w.head = U32x4(s).v[block / 8 * 3];
		w.scale = U32(s).v[block / 8 * 12 + 4 + block % 8];
	}
	if (FORMAT == Q6_K) {
		w.head.xy = U32x2(s + block / 8 * 80).v[block % 8];
		w.head.z = U16(s + block / 8 * 80 + 64).v[block % 8];
		w.scale = U16(s + blocks / 8 * 80).v[block / 8];
	}
	return w;
}

// minus subtracts n < 128 from each of four bytes below 128.
uvec4 minus(uvec4 v, uint n) { return ((v | 0x80808080) - n * 0x01010101) ^ 0x80808080; }

// e2m1 makes four int8 of twice the value from four codes of three bits and a sign.
uvec4 e2m1(uvec4 codes) {
	uvec4 v = uvec4(0);
	[[unroll]] for (uint i = 0; i < 32; i += 8) {
		uvec4 code = codes >> i & 15;
		uvec4 magnitude = uvec4(0xC8643210) >> (code & 7) * 4 & 15;
		v |= (mix(magnitude, -magnitude, greaterThan(code, uvec4(7))) & 0xFF) << i;
	}
	return v;
}

uvec4 upper(uint bits) { return (uvec4(bits) >> uvec4(0, 2, 4, 6) & 0x03030303) << 4; }

// unpack puts block b of the step into shared memory.
void unpack(Block w, uint o, uint b, uint block) {
	uvec4 q0 = w.q0, q1 = w.q1;
	if (!BYTES) {
		q0 = w.q0 & 0x0F0F0F0F;
		q1 = w.q0 >> 4 & 0x0F0F0F0F;
	}
	float s = FORMAT == I8ROW || FORMAT == I4G64 ? uintBitsToFloat(w.scale) : unpackHalf2x16(w.scale).x, t = 0;
	if (FORMAT == Q4_0 || FORMAT == I4G64) {
		q0 = minus(q0, 8);
		q1 = minus(q1, 8);
	}
	if (FORMAT == MXFP4) {
		q0 = e2m1(q0);
		q1 = e2m1(q1);
		s = uintBitsToFloat(w.scale == 255 ? 0x7FC00000 : w.scale << 23) / 2; // 2^(code-127), halved because the codes are doubled
	}
	if (FORMAT == Q5_K) {
		q0 |= (uvec4(w.scale) >> uvec4(0, 1, 2, 3) & 0x01010101) << 4;
		q1 |= (uvec4(w.scale) >> uvec4(4, 5, 6, 7) & 0x01010101) << 4;
	}
	if (K_HEAD) {
		uint j = block % 8;
		vec2 d = unpackHalf2x16(w.head.x);
		s = d.x * float(w.head.y >> 4 * j & 15 | (w.head.w >> 2 * j & 3) << 4);
		t = d.y * float(w.head.z >> 4 * j & 15 | (w.head.w >> 2 * j + 16 & 3) << 4);
	}
	if (FORMAT == Q6_K) {
		q0 = minus(q0 | upper(w.head.x), 32);
		q1 = minus(q1 | upper(w.head.y), 32);
		t = s * float(bitfieldExtract(int(w.head.z), 8, 8));
		s = s * float(bitfieldExtract(int(w.head.z), 0, 8));
	}
	scale[b * OUTS + o] = s;
	second[b * OUTS + o] = t;
#ifdef COOP
	if (PAIRED) {
		ws[o * W_PITCH + 4 * b] = q0;
		ws[o * W_PITCH + 4 * b + 1] = uvec4(0);
		ws[o * W_PITCH + 4 * b + 2] = uvec4(0);
		ws[o * W_PITCH + 4 * b + 3] = q1;
		return;
	}
#endif
	ws[o * W_PITCH + 2 * b] = q0;
	ws[o * W_PITCH + 2 * b + 1] = q1;
}

#ifdef COOP

// Scales are loaded as matrices too: with a stride of 0 each row, or each column, of such a matrix is the same.
void multiply() {
	uint r0 = first_row(), o0 = first_o();
	[[unroll]] for (uint b = 0; b < 2; b++) {
		coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA> x[TALL];
		SUMS dx[TALL], sx[TALL];
		[[unroll]] for (uint i = 0; i < TALL; i++) {
			coopMatLoad(x[i], xs, (r0 + 16 * i) * PITCH + 2 * b, PITCH, gl_CooperativeMatrixLayoutRowMajor);
			coopMatLoad(dx[i], xscale, b * ROWS + r0 + 16 * i, 0, gl_CooperativeMatrixLayoutColumnMajor);
			if (K_HEAD) coopMatLoad(sx[i], xsum, b * ROWS + r0 + 16 * i, 0, gl_CooperativeMatrixLayoutColumnMajor);
		}
		[[unroll]] for (uint j = 0; j < WIDE; j++) {
			uint o = o0 + 16 * j, from = o * W_PITCH + (PAIRED ? 4 : 2) * b;
			coopmat<int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB> w, w2;
			SUMS dw, dw2;
			coopMatLoad(w, ws, from, W_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
			coopMatLoad(dw, scale, b * OUTS + o, 0, gl_CooperativeMatrixLayoutRowMajor);
			if (PAIRED) coopMatLoad(w2, ws, from + 2, W_PITCH, gl_CooperativeMatrixLayoutColumnMajor);
			if (PAIRED || K_HEAD) coopMatLoad(dw2, second, b * OUTS + o, 0, gl_CooperativeMatrixLayoutRowMajor);
			[[unroll]] for (uint i = 0; i < TALL; i++) {
				SUMS sum = acc[i * WIDE + j] + SUMS(coopMatMulAdd(x[i], w, INTS(0))) * (dw * dx[i]);
				if (PAIRED) sum += SUMS(coopMatMulAdd(x[i], w2, INTS(0))) * (dw2 * dx[i]);
				if (K_HEAD) sum -= dw2 * sx[i];
				acc[i * WIDE + j] = sum;
			}
		}
	}
}

#else

void multiply() {
	for (uint b = 0; b < 2; b++) {
		int sum[PER][4];
		float dx[4], sx[4];
		[[unroll]] for (uint j = 0; j < 4; j++) {
			dx[j] = xscale[b * ROWS + own_row(j)];
			sx[j] = xsum[b * ROWS + own_row(j)];
		}
		for (uint h = 0; h < 2; h++) {
			uvec4 x[4];
			[[unroll]] for (uint j = 0; j < 4; j++) x[j] = xs[own_row(j) * PITCH + 2 * b + h];
			[[unroll]] for (uint i = 0; i < PER; i++) {
				uvec4 w = ws[own_out(i) * W_PITCH + 2 * b + h];
				[[unroll]] for (uint j = 0; j < 4; j++) {
					int s = h == 0 || FORMAT == Q6_K ? 0 : sum[i][j];
					s = dot4(w.x, x[j].x, s);
					s = dot4(w.y, x[j].y, s);
					s = dot4(w.z, x[j].z, s);
					sum[i][j] = dot4(w.w, x[j].w, s);
				}
				if (h == 1 || FORMAT == Q6_K) {
					float dw = scale[b * OUTS + own_out(i)], dw2 = second[b * OUTS + own_out(i)];
					if (FORMAT == Q6_K && h == 1) dw = dw2;
					[[unroll]] for (uint j = 0; j < 4; j++) {
						acc[i][j] += float(sum[i][j]) * (dw * dx[j]);
						if (K_HEAD) acc[i][j] -= dw2 * sx[j];
					}
				}
			}
		}
	}
}

#endif

void main() {
	if (!begin()) return;
	uint lane = gl_LocalInvocationIndex;
	blocks = (p.cols + 31) / 32;

	Block w[UNITS];
	uvec4 x[PIECES];
	uint64_t x_rows[PIECES];
	[[unroll]] for (uint i = 0; i < PIECES; i++) {
		uint r = (lane + i * THREADS) / 4;
		x_rows[i] = r < count ? p.x + uint64_t(source(r)) * blocks * 32 : 0;
	}
	// A step has no more blocks of x than there are threads.
	uint64_t d_row = lane / 2 < count ? p.xd + uint64_t(source(lane / 2)) * blocks * 8 : 0;
	vec2 d;

	clear();
	for (uint at = 0; at < blocks + 2; at += 2) {
		if (at > 0) {
			barrier();
			[[unroll]] for (uint i = 0; i < UNITS; i++) {
				uint unit = lane + i * THREADS;
				if (unit < 2 * OUTS) unpack(w[i], unit / 2, unit % 2, at - 2 + unit % 2);
			}
			[[unroll]] for (uint i = 0; i < PIECES; i++) {
				uint piece = lane + i * THREADS;
				xs[piece / 4 * PITCH + piece % 4] = x[i];
			}
			if (lane < 2 * ROWS) {
				xscale[lane % 2 * ROWS + lane / 2] = d.x;
				xsum[lane % 2 * ROWS + lane / 2] = d.y;
			}
			barrier();
		}
		// What the next step needs is on its way from memory while this one is multiplied.
		[[unroll]] for (uint i = 0; i < UNITS; i++) {
			uint unit = lane + i * THREADS;
			if (unit < 2 * OUTS) w[i] = fetch(unit / 2, at + unit % 2);
		}
		[[unroll]] for (uint i = 0; i < PIECES; i++) {
			uint piece = (lane + i * THREADS) % 4;
			x[i] = uvec4(0);
			if (x_rows[i] != 0 && at + piece / 2 < blocks) x[i] = U32x4(x_rows[i]).v[2 * at + piece];
		}
		d = vec2(0);
		if (d_row != 0 && at + lane % 2 < blocks) d = F32x2(d_row).v[at + lane % 2];
		if (at > 0) multiply();
	}
	write();
}
