#version 460
// Rows of k and v to their mirror and to the host's staging rows: see rope.go.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const bool VECTOR = true;

layout(push_constant) uniform Push {
	Floats k, v;
	Places places;
	Mirrors mirrors;
	Floats stage_k, stage_v;
	uint rows, kwidth, vwidth;
} p;

void main() {
	uint i = 4 * gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
	bool is_k = gl_WorkGroupID.z == 0;
	Floats from = is_k ? p.k : p.v, stage = is_k ? p.stage_k : p.stage_v;
	uint width = is_k ? p.kwidth : p.vwidth;
	ivec2 at = p.places.v[row];
	vec4 x = load4(from, row, width, i, VECTOR);
	store4(p.mirrors.v[2 * at.y + gl_WorkGroupID.z], at.x, width, i, VECTOR, x);
	if (given(stage)) {
		store4(stage, row, width, i, VECTOR, x);
	}
}
