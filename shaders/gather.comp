#version 460
// Copies rows by index: see elementwise.go.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const bool VECTOR = true;

layout(push_constant) uniform Push {
	Floats dst, src;
	Ints index;
	uint n, cols;
} p;

void main() {
	uint i = 4 * gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
	store4(p.dst, row, p.cols, i, VECTOR, load4(p.src, p.index.v[row], p.cols, i, VECTOR));
}
