#version 460
// Causal grouped-query attention for many rows on cooperative matrices of float16: a workgroup takes up to 64 rows of one conversation and
// one head, and walks the positions in blocks of 32. See attention.go.
//
// A row of q, k or v is scaled by a power of two and split into two float16, high and low, that together have as many bits as a product of
// float32 keeps: a product is three of matrices. Subgroup (side, part) of 2 × 4 has the rows 16part… and of each block the positions
// 16side…, a softmax of its own; the sides join in the end.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "memory.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint DIM = 128; // values of a head: 64 or 128

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Tiles { ivec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Rows { vec4 v[]; };

layout(push_constant) uniform Push {
	Rows q;
	Vectors o;
	Mirrors mirrors;
	Places places;
	Floats sinks;
	Rows gate;
	uvec2 xq, xd, partial, count;
	Tiles tiles;
	uint rows, heads, kv_heads, kwidth, vwidth, window, flags;
	float scale;
} p;

const uint SINK = 4, GATE = 8;
const float LOWEST = -3.0e38; // of scores; no infinity, so that differences are numbers
const float LOG2E = 1.44269504;
const float SLACK = 8; // weights may be up to 2^8 before the maximum that they are relative to is raised
const float BASE = 7;  // and are scaled by 2^7: together they stay below 2^16

const uint BLOCK = 32, VECTORS = DIM / 4, MATRICES = DIM / 16;
const uint PITCH = DIM / 8 + 1;              // uvec4 from one row to the next in shared memory, the last of which spreads rows over the banks
const uint PART = BLOCK * PITCH;             // the high or low halves of a block
const uint AT_ONCE = 256 / VECTORS;          // rows that the workgroup stages at a time
const uint TURNS = BLOCK / AT_ONCE;
const uint SPITCH = 20;                      // floats from one row of scores to the next

shared uvec4 stage[4 * PART];                // high and low of k, then of v; before that high and low of 64 rows of q
shared float scores[8 * 16 * SPITCH];        // of each subgroup, then its weights: high and low
shared float kscale[BLOCK], vscale[BLOCK];   // what undoes the scaling of k, and the exponent of that of v
shared float qscale[64];
shared float factors[8 * 16];                // of the rows of each subgroup
shared vec2 tops[8 * 16];                    // maximum and sum of the weights

#define MATRIX_A coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MATRIX_B coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// The highest of the invocations that share a row.
uint row_max(uint x) {
	if (VECTORS == 32) {
		return subgroupMax(x);
	}
	[[unroll]] for (uint i = 1; i < VECTORS; i *= 2) {
		x = max(x, subgroupShuffleXor(x, i));
	}
	return x;
}

// The nearest values that float16 has, of none smaller than its normal numbers. Rounded by hand: NVIDIA's compiler takes a value packed and
// unpacked for the value itself, which leaves no low part.
vec4 rounded(vec4 x) {
	uvec4 bits = floatBitsToUint(x);
	return uintBitsToFloat((bits + 0xfffu + (bits >> 13 & 1)) & 0xffffe000u);
}

// pack returns x as float16.
uvec2 pack(vec4 x) { return uvec2(packHalf2x16(x.xy), packHalf2x16(x.zw)); }

// split leaves vector i of a row at high and low in shared memory, scaled so that the row's largest value is near 2^14. It returns the
// exponent of what undoes that, and NaN if the row has a value that is not finite.
float split(vec4 x, uint high, uint low, uint i) {
	uvec4 bits = floatBitsToUint(x) & 0x7fffffffu;
	uint top = row_max(max(max(bits.x, bits.y), max(bits.z, bits.w)));
	uint exponent = clamp(top >> 23, 67, 254);
	x *= uintBitsToFloat((268 - exponent) << 23);
	vec4 nearest = rounded(x);
	uvec2 h = pack(nearest), l = pack(x - nearest);
	if (i % 2 == 0) {
		stage[high + i / 2].xy = h;
		stage[low + i / 2].xy = l;
	} else {
		stage[high + i / 2].zw = h;
		stage[low + i / 2].zw = l;
	}
	return top >= 0x7f800000u ? uintBitsToFloat(0x7fc00000u) : float(exponent) - 141;
}

void main() {
	// The last rows see the most positions: they begin first.
	ivec4 tile = p.tiles.v[gl_NumWorkGroups.x - 1 - gl_WorkGroupID.x];
	uint first = tile.x, count = tile.y;
	if (count == 0) {
		return;
	}
	uint head = gl_WorkGroupID.y, kv = head / (p.heads / p.kv_heads);
	uint lane = gl_SubgroupInvocationID, t = gl_SubgroupID * 32 + lane;
	uint part = gl_SubgroupID % 4, side = gl_SubgroupID / 4;
	uint column = t % VECTORS, staged = t / VECTORS; // what the invocation stages
	int seq = p.places.v[first].y;
	Rows keys = Rows(p.mirrors.v[2 * seq]), values = Rows(p.mirrors.v[2 * seq + 1]);

	[[unroll]] for (uint i = 0; i < 64 / AT_ONCE; i++) {
		uint row = i * AT_ONCE + staged;
		vec4 x = row < count ? p.q.v[((first + row) * p.heads + head) * VECTORS + column] : vec4(0);
		float e = split(x, row * PITCH, (64 + row) * PITCH, column);
		if (column == 0) {
			qscale[row] = exp2(e) * (p.scale * LOG2E);
		}
	}
	barrier();
	MATRIX_A q[MATRICES], q_low[MATRICES];
	SUMS acc[MATRICES];
	[[unroll]] for (uint i = 0; i < MATRICES; i++) {
		coopMatLoad(q[i], stage, 16 * part * PITCH + 2 * i, PITCH, gl_CooperativeMatrixLayoutRowMajor);
		coopMatLoad(q_low[i], stage, (64 + 16 * part) * PITCH + 2 * i, PITCH, gl_CooperativeMatrixLayoutRowMajor);
		acc[i] = SUMS(0);
	}
	// Two lanes share a row of scores.
	uint row = 16 * part + lane / 2, own = gl_SubgroupID * 16 * SPITCH, mine = own + lane / 2 * SPITCH;
	int pos = row < count ? p.places.v[first + row].x : -1;
	float dq = qscale[row], top = LOWEST, l = 0;

	vec4 k[TURNS], v[TURNS];
	for (int base = tile.z; base < tile.w + int(BLOCK); base += int(BLOCK)) {
		if (base > tile.z) {
			barrier();
			[[unroll]] for (uint i = 0; i < TURNS; i++) {
				uint r = i * AT_ONCE + staged;
				float ek = split(k[i], r * PITCH, PART + r * PITCH, column), ev = split(v[i], 2 * PART + r * PITCH, 3 * PART + r * PITCH, column);
				if (column == 0) {
					kscale[r] = exp2(ek);
					vscale[r] = ev;
				}
			}
			barrier();
		}
		// What the next block needs is on its way from memory while this one is multiplied.
		[[unroll]] for (uint i = 0; i < TURNS; i++) {
			int at = base + int(i * AT_ONCE + staged);
			k[i] = v[i] = vec4(0);
			if (at < tile.w) {
				k[i] = keys.v[(at * p.kwidth + kv * DIM) / 4 + column];
				v[i] = values.v[(at * p.vwidth + kv * DIM) / 4 + column];
			}
		}
		if (base == tile.z) {
			continue;
		}

		SUMS high = SUMS(0), low = SUMS(0);
		[[unroll]] for (uint i = 0; i < MATRICES; i++) {
			MATRIX_B b, b_low;
			coopMatLoad(b, stage, 16 * side * PITCH + 2 * i, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
			coopMatLoad(b_low, stage, PART + 16 * side * PITCH + 2 * i, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
			low = coopMatMulAdd(q[i], b_low, low);
			low = coopMatMulAdd(q_low[i], b, low);
			high = coopMatMulAdd(q[i], b, high);
		}
		high = high + low;
		coopMatStore(high, scores, own, SPITCH, gl_CooperativeMatrixLayoutRowMajor);
		subgroupBarrier();

		// The positions 8(lane%2)… of the row. Weights are relative to the maximum of score and exponent of the value, so that the products
		// are none that float16 lacks.
		float s[8];
		uint c0 = lane % 2 * 8;
		int at = base - int(BLOCK) + int(16 * side + c0);
		float most = LOWEST;
		[[unroll]] for (uint c = 0; c < 8; c++) {
			bool seen = at + int(c) <= pos && (p.window == 0 || at + int(c + p.window) > pos);
			s[c] = seen ? scores[mine + c0 + c] * (dq * kscale[16 * side + c0 + c]) : uintBitsToFloat(0xff800000u);
			most = max(most, s[c] + vscale[16 * side + c0 + c]);
		}
		most = max(most, subgroupShuffleXor(most, 1));
		float f = 1;
		if (most > top + SLACK) {
			f = exp2(top - most);
			top = most;
			l *= f;
		}
		subgroupBarrier();
		[[unroll]] for (uint c = 0; c < 8; c += 4) {
			vec4 w, e;
			[[unroll]] for (uint i = 0; i < 4; i++) {
				e[i] = vscale[16 * side + c0 + c + i];
				w[i] = exp2(s[c + i] - top + BASE + e[i]);
				l += w[i] * exp2(-e[i]);
			}
			vec4 nearest = rounded(w);
			uvec2 h = pack(nearest), rest = pack(w - nearest);
			[[unroll]] for (uint i = 0; i < 2; i++) {
				uint to = mine + (c0 + c) / 2 + i;
				scores[to] = uintBitsToFloat(h[i]);
				scores[to + 8] = uintBitsToFloat(rest[i]);
			}
		}
		if (subgroupAny(f != 1)) {
			if (lane % 2 == 0) {
				factors[gl_SubgroupID * 16 + lane / 2] = f;
			}
			subgroupBarrier();
			SUMS by;
			coopMatLoad(by, factors, gl_SubgroupID * 16, 0, gl_CooperativeMatrixLayoutColumnMajor);
			[[unroll]] for (uint i = 0; i < MATRICES; i++) {
				acc[i] = acc[i] * by;
			}
		}
		subgroupBarrier();
		MATRIX_A w, w_low;
		coopMatLoad(w, scores, own, SPITCH, gl_CooperativeMatrixLayoutRowMajor);
		coopMatLoad(w_low, scores, own + 8, SPITCH, gl_CooperativeMatrixLayoutRowMajor);
		[[unroll]] for (uint i = 0; i < MATRICES; i++) {
			MATRIX_B b, b_low;
			coopMatLoad(b, stage, 2 * PART + 16 * side * PITCH + 2 * i, PITCH, gl_CooperativeMatrixLayoutRowMajor);
			coopMatLoad(b_low, stage, 3 * PART + 16 * side * PITCH + 2 * i, PITCH, gl_CooperativeMatrixLayoutRowMajor);
			SUMS sum = coopMatMulAdd(w, b_low, SUMS(0));
			sum = coopMatMulAdd(w_low, b, sum);
			sum = coopMatMulAdd(w, b, sum);
			acc[i] = acc[i] + sum; // a device may round the sums of products towards zero, which must not happen in every block
		}
	}

	// The sides join under the common maximum.
	l += subgroupShuffleXor(l, 1);
	if (lane % 2 == 0) {
		tops[gl_SubgroupID * 16 + lane / 2] = vec2(top, l);
	}
	barrier();
	vec2 a = tops[part * 16 + lane / 2], b = tops[(4 + part) * 16 + lane / 2];
	float highest = max(a.x, b.x);
	float sum = a.y * exp2(a.x - highest) + b.y * exp2(b.x - highest), f = exp2(top - highest);
	if ((p.flags & SINK) != 0) {
		float sink = p.sinks.v[head] * LOG2E - highest + BASE, m = max(sink, 0);
		f *= exp2(-m);
		sum = sum * exp2(-m) + exp2(sink - m);
	}
	if (lane % 2 == 0) {
		factors[gl_SubgroupID * 16 + lane / 2] = f / sum;
	}
	subgroupBarrier();
	SUMS by;
	coopMatLoad(by, factors, gl_SubgroupID * 16, 0, gl_CooperativeMatrixLayoutColumnMajor);
	uint other = (side * 32 + lane) / 4, c = lane % 4; // a row and a vector of the matrix that both sides leave
	[[unroll]] for (uint i = 0; i < MATRICES; i++) {
		acc[i] = acc[i] * by;
		barrier();
		coopMatStore(acc[i], scores, own, SPITCH, gl_CooperativeMatrixLayoutRowMajor);
		barrier();
		uint r = 16 * part + other;
		if (r < count) {
			vec4 x;
			[[unroll]] for (uint j = 0; j < 4; j++) {
				uint from = (part * 16 + other) * SPITCH + 4 * c + j;
				x[j] = scores[from] + scores[from + 4 * 16 * SPITCH];
			}
			uint to = ((first + r) * p.heads + head) * VECTORS + 4 * i + c;
			if ((p.flags & GATE) != 0) {
				x /= 1 + exp(-p.gate.v[to]);
			}
			p.o.v[to] = x;
		}
	}
}
