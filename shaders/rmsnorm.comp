#version 460
// y = x·rsqrt(mean(x²)+eps)·w over segments of rows, after an optional x += add: see norm.go.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"
#include "reduce.glsl"
#include "q8.glsl"
#include "norm.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEEP = 2;      // vectors of a segment an invocation holds
layout(constant_id = 2) const bool WIDE = true;   // a workgroup a segment, otherwise a subgroup
layout(constant_id = 3) const bool VECTOR = true; // rows and segments are whole vectors
layout(constant_id = 4) const uint TOPK = 0;      // rows added with a weight; 0 for one without

layout(push_constant) uniform Push {
	Floats x, w, y;
	Words xq;
	Pairs xd;
	Floats add, addw;
	uint rows, cols, segment, topk;
	float eps;
	uint flags;
} p;

const uint OUT = 1, Q8 = 2, PLUS_ONE = 4, L2 = 8, ADD = 16;

// A vector of a row from column i on, of which those before end count; store writes it.
vec4 load(Floats f, uint row, uint i, uint end) {
	vec4 x = load4(f, row, p.cols, i, VECTOR);
	if (!VECTOR) {
		[[unroll]] for (uint c = 0; c < 4; c++) {
			x[c] = i + c < end ? x[c] : 0;
		}
	}
	return x;
}

void store(Floats f, uint row, uint i, uint end, vec4 x) {
	if (VECTOR) {
		Vectors(f).v[(row * p.cols + i) / 4] = x;
		return;
	}
	[[unroll]] for (uint c = 0; c < 4; c++) {
		if (i + c < end) {
			f.v[row * p.cols + i + c] = x[c];
		}
	}
}

// The vector to add.
vec4 added(uint row, uint i, uint end) {
	if (TOPK == 0) {
		return load(p.add, row, i, end);
	}
	vec4 sum = vec4(0);
	[[unroll]] for (uint rank = 0; rank < TOPK; rank++) {
		sum += p.addw.v[row * TOPK + rank] * load(p.add, row * TOPK + rank, i, end);
	}
	return sum;
}

void main() {
	uint lanes = WIDE ? gl_WorkGroupSize.x : gl_SubgroupSize;
	uint lane = WIDE ? place() : gl_SubgroupInvocationID;
	uint row = gl_WorkGroupID.y;
	uint segment = WIDE ? gl_WorkGroupID.x : gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
	uint first = segment * p.segment, end = first + p.segment;
	if (first >= p.cols) {
		return; // the whole subgroup; without WIDE there is no barrier
	}
	// All that is read is asked for before the sum, which waits for it.
	vec4 v[KEEP], w[KEEP];
	float sum = 0;
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		uint i = first + 4 * (k * lanes + lane);
		v[k] = w[k] = vec4(0);
		if (i < end) {
			v[k] = load(p.x, row, i, end);
			if ((p.flags & L2) == 0) {
				w[k] = load4(p.w, 0, p.segment, i - first, VECTOR);
			}
		}
	}
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		uint i = first + 4 * (k * lanes + lane);
		if (i < end && (p.flags & ADD) != 0) {
			v[k] += added(row, i, end);
			store(p.x, row, i, end, v[k]);
		}
		sum = squares(v[k], sum);
	}
	sum = WIDE ? workgroupSum(sum) : subgroupAdd(sum);
	float scale = normScale((p.flags & L2) != 0 ? sum : sum / float(p.segment), p.eps);
	uint blocks = (p.cols + 31) / 32;
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		uint i = first + 4 * (k * lanes + lane);
		vec4 y = v[k] * scale;
		if ((p.flags & L2) == 0) {
			y *= (p.flags & PLUS_ONE) != 0 ? w[k] + 1 : w[k];
		}
		if (i < end && (p.flags & OUT) != 0) {
			store(p.y, row, i, end, y);
		}
		if ((p.flags & Q8) != 0) {
			quantize(p.xq, p.xd, row * blocks + i / 32, y, i / 32 * 32 < end);
		}
	}
}
