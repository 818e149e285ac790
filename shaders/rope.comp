#version 460
// Rotates heads in place by their row's position: see rope.go.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
	Floats q, k;
	Pairs table;
	Places places;
	uint rows, qheads, kheads, head_dim, dim;
} p;

void main() {
	uint half_dim = p.dim / 2;
	uint head = gl_GlobalInvocationID.x / half_dim, i = gl_GlobalInvocationID.x % half_dim;
	uint row = gl_WorkGroupID.y;
	if (head >= p.qheads + p.kheads) {
		return;
	}
	vec2 cs = p.table.v[p.places.v[row].x * half_dim + i];
	bool is_q = head < p.qheads;
	Floats x = is_q ? p.q : p.k;
	uint at = (is_q ? row * p.qheads + head : row * p.kheads + head - p.qheads) * p.head_dim + i;
	float a = x.v[at], b = x.v[at + half_dim];
	x.v[at] = a * cs.x - b * cs.y;
	x.v[at + half_dim] = b * cs.x + a * cs.y;
}
