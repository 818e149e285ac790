#version 460
// y = x·rsqrt(mean(x²)+eps)·w over segments of rows, after an optional x += add: see norm.go.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"
#include "reduce.glsl"
#include "q8.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEEP = 2;     // vectors of a segment an invocation holds
layout(constant_id = 2) const bool WIDE = true;  // a workgroup a segment, otherwise a subgroup
layout(constant_id = 3) const bool VECTOR = true; // rows and segments are whole vectors

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

// The vector to add at vector i of the row.
vec4 added(uint row, uint i) {
	if (p.topk == 0) {
		return load4(p.add, row, p.cols, i, VECTOR);
	}
	vec4 sum = vec4(0);
	for (uint rank = 0; rank < p.topk; rank++) {
		sum += p.addw.v[row * p.topk + rank] * load4(p.add, row * p.topk + rank, p.cols, i, VECTOR);
	}
	return sum;
}

void main() {
	uint lanes = WIDE ? gl_WorkGroupSize.x : gl_SubgroupSize;
	uint lane = WIDE ? place() : gl_SubgroupInvocationID;
	uint row = gl_WorkGroupID.y;
	uint seg = WIDE ? gl_WorkGroupID.x : gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
	if (seg * p.segment >= p.cols) {
		return; // the whole subgroup; without WIDE there is no barrier
	}
	uint first = seg * p.segment;
	vec4 v[KEEP];
	float sum = 0;
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		uint i = 4 * (k * lanes + lane);
		v[k] = vec4(0);
		if (i < p.segment) {
			// Scalars of a segment that is no whole vector: load4 stops at the row's end only.
			v[k] = load4(p.x, row, p.cols, first + i, VECTOR);
			if ((p.flags & ADD) != 0) {
				v[k] += added(row, first + i);
			}
			if (!VECTOR) {
				[[unroll]] for (uint c = 0; c < 4; c++) {
					v[k][c] = i + c < p.segment ? v[k][c] : 0;
				}
			}
			sum += dot(v[k], v[k]);
		}
	}
	sum = WIDE ? workgroupSum(sum) : subgroupAdd(sum);
	float scale = inversesqrt(((p.flags & L2) != 0 ? sum : sum / float(p.segment)) + p.eps);
	uint blocks = (p.cols + 31) / 32;
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		uint i = 4 * (k * lanes + lane);
		bool in_segment = i < p.segment;
		vec4 y = v[k] * scale;
		if (in_segment && (p.flags & ADD) != 0) {
			if (VECTOR) {
				store4(p.x, row, p.cols, first + i, true, v[k]);
			} else {
				[[unroll]] for (uint c = 0; c < 4; c++) {
					if (i + c < p.segment) {
						p.x.v[row * p.cols + first + i + c] = v[k][c];
					}
				}
			}
		}
		if ((p.flags & L2) == 0) {
			vec4 w = load4(p.w, 0, p.segment, i, VECTOR);
			y *= (p.flags & PLUS_ONE) != 0 ? w + 1 : w;
		}
		if (in_segment && (p.flags & OUT) != 0) {
			if (VECTOR) {
				store4(p.y, row, p.cols, first + i, true, y);
			} else {
				[[unroll]] for (uint c = 0; c < 4; c++) {
					if (i + c < p.segment) {
						p.y.v[row * p.cols + first + i + c] = y[c];
					}
				}
			}
		}
		if ((p.flags & Q8) != 0) {
			quantize(p.xq, p.xd, row * blocks + (first + i) / 32, in_segment ? y : vec4(0), i / 32 * 32 < p.segment);
		}
	}
}
