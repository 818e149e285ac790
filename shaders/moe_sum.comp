// The weighted sum of each row's experts: MoESumPush in group.go. A thread a value.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

layout(constant_id = 0) const uint THREADS = 256;
layout(local_size_x_id = 0) in;

layout(push_constant) uniform Push {
	Floats slots, weights, y;
	uint rows, cols, top_k, flags;
} p;

void main() {
	uint r = gl_WorkGroupID.y, c = gl_GlobalInvocationID.x;
	if (c >= p.cols) return;
	float sum = 0;
	for (uint i = r * p.top_k; i < (r + 1) * p.top_k; i++) sum += p.weights.v[i] * p.slots.v[i * p.cols + c];
	p.y.v[r * p.cols + c] = (p.flags & 1) != 0 ? p.y.v[r * p.cols + c] + sum : sum;
}
