#version 460
// Rows of float32, or act(x)·up of two, in the integer form: see norm.go.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"
#include "q8.glsl"
#include "activation.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ACT = 0;
layout(constant_id = 2) const bool VECTOR = true; // rows are whole vectors

layout(push_constant) uniform Push {
	Floats x, up;
	Words xq;
	Pairs xd;
	uint rows, cols;
} p;

void main() {
	uint i = 4 * (gl_WorkGroupID.x * gl_WorkGroupSize.x + gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID);
	uint row = gl_WorkGroupID.y;
	uint blocks = (p.cols + 31) / 32;
	vec4 x = load4(p.x, row, p.cols, i, VECTOR);
	if (ACT != 0) {
		x = activate(x, ACT) * load4(p.up, row, p.cols, i, VECTOR);
	}
	quantize(p.xq, p.xd, row * blocks + i / 32, x, i / 32 < blocks);
}
