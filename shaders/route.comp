#version 460
// The experts of each row from its logits: see route.go.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

layout(push_constant) uniform Push {
	Floats logits, bias;
	Ints ids;
	Floats weights;
	Ints host;
	uint rows, experts, topk, groups, topk_groups;
	float scale;
	uint flags;
} p;

float logit_of(uint row, uint e) { return p.logits.v[row * p.experts + e]; }

#include "route.glsl"

void main() { route(gl_WorkGroupID.x); }
