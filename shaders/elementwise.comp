#version 460
// Sums, limits and gated units, value by value: see elementwise.go.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"
#include "activation.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OP = 0;

layout(push_constant) uniform Push {
	Floats dst, a, b;
	uint n;
	float x;
} p;

const uint ADD = 0, CLAMP = 1, GLU = 2;

void main() {
	uint i = 4 * ((gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
	bool whole = i + 4 <= p.n;
	// One row of n values; its last vector, if it is short, value by value.
	vec4 a = load4(p.a, 0, p.n, i, whole);
	if (OP == CLAMP) {
		[[unroll]] for (uint c = 0; c < 4; c++) {
			a[c] = isNaN(a[c]) ? a[c] : clamp(a[c], -p.x, p.x);
		}
	} else {
		vec4 b = load4(p.b, 0, p.n, i, whole);
		a = OP == ADD ? a + b : activate(a, 1) * b;
	}
	store4(p.dst, 0, p.n, i, whole, a);
}
