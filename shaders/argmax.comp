#version 460
// The column of each row's highest value: see route.go.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "memory.glsl"
#include "arrive.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const bool VECTOR = true;

layout(buffer_reference, std430, buffer_reference_align = 8) coherent buffer Bests { uvec2 v[]; };

layout(push_constant) uniform Push {
	Floats x;
	Ints result;
	Bests partial;
	Counters count;
	uint rows, cols;
} p;

const uint BAD = 0xffffffffu; // the key of what is not finite, above all others

uint key(float x) {
	uint b = floatBitsToUint(x);
	if ((b & 0x7f800000u) == 0x7f800000u) {
		return BAD;
	}
	if (b == 0x80000000u) { // both zeros are one
		b = 0;
	}
	return (b & 0x80000000u) != 0 ? ~b : b | 0x80000000u;
}

shared uvec2 bests[64];

// (key, column), the lowest column of the highest key.
uvec2 workgroupBest(uvec2 b) {
	uint top = subgroupMax(b.x);
	uint col = subgroupMin(b.x == top ? b.y : BAD);
	if (subgroupElect()) {
		bests[gl_SubgroupID] = uvec2(top, col);
	}
	barrier();
	b = bests[0];
	for (uint i = 1; i < gl_NumSubgroups; i++) {
		if (bests[i].x > b.x || bests[i].x == b.x && bests[i].y < b.y) {
			b = bests[i];
		}
	}
	return b;
}

void main() {
	uint row = gl_WorkGroupID.y, parts = gl_NumWorkGroups.x;
	uvec2 best = uvec2(0, BAD);
	for (uint i = 4 * gl_GlobalInvocationID.x; i < p.cols; i += 4 * gl_WorkGroupSize.x * parts) {
		vec4 x = load4(p.x, row, p.cols, i, VECTOR);
		[[unroll]] for (uint c = 0; c < 4; c++) {
			uint k = key(x[c]);
			if (i + c < p.cols && (k > best.x || best.y == BAD)) {
				best = uvec2(k, i + c);
			}
		}
	}
	best = workgroupBest(best);
	uint t = gl_LocalInvocationID.x;
	if (parts > 1) {
		if (t == 0) {
			p.partial.v[row * parts + gl_WorkGroupID.x] = best;
		}
		if (!arrive(p.count, row, parts, t)) {
			return;
		}
		best = uvec2(0, BAD);
		for (uint i = t; i < parts; i += gl_WorkGroupSize.x) {
			best = p.partial.v[row * parts + i];
		}
		best = workgroupBest(best);
	}
	if (t == 0) {
		p.result.v[row] = best.x == BAD ? -1 : int(best.y);
	}
}
