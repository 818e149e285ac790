#version 460
// A router's product for few rows and the choice of experts behind it: see route.go. A workgroup computes the logit of a row and an
// expert; the one of a row that ends last chooses.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"
#include "arrive.glsl"

layout(constant_id = 3) const uint FORMAT = 0; // F32, F16, BF16
layout(constant_id = 4) const uint UNROLL = 4; // pieces of 16 bytes of weights that an invocation asks for at once
layout(constant_id = 5) const bool VECTOR = true;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Codes { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Logits { float v[]; };

layout(push_constant) uniform Push {
	Codes w;
	Floats x, wbias;
	Logits logits;
	Counters count;
	Floats bias;
	Ints ids;
	Floats weights;
	Ints host;
	uint qstride, cols, rows, experts, topk, groups, topk_groups;
	float scale;
	uint flags;
} p;

float logit_of(uint row, uint e) { return p.logits.v[row * p.experts + e]; }

#include "route.glsl"

const uint F32 = 0, F16 = 1;
const uint FOURS = FORMAT == F32 ? 1 : 2; // of columns in a piece

vec4 weights_of(uvec4 piece, uint four) {
	if (FORMAT == F32) {
		return uintBitsToFloat(piece);
	}
	uvec2 w = four == 0 ? piece.xy : piece.zw;
	return FORMAT == F16 ? vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y))
		: uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u));
}

vec4 activations(uint row, uint column) {
	if (VECTOR) {
		vec4 x = Vectors(p.x).v[(row * p.cols + min(column, p.cols - 4)) / 4]; // without a branch, which would wait for it
		return column < p.cols ? x : vec4(0);
	}
	return load4(p.x, row, p.cols, column, false);
}

void main() {
	uint e = gl_WorkGroupID.x, row = gl_WorkGroupID.y, t = place(), n = gl_WorkGroupSize.x;
	uint pieces = (p.cols + 4 * FOURS - 1) / (4 * FOURS), first = e * (p.qstride / 16);
	float before = given(p.wbias) ? p.wbias.v[e] : 0, acc = 0;
	for (uint at = t; at < pieces; at += n * UNROLL) {
		uvec4 w[UNROLL];
		vec4 x[UNROLL * FOURS];
		[[unroll]] for (uint u = 0; u < UNROLL; u++) {
			w[u] = p.w.v[first + min(at + u * n, pieces - 1)];
			[[unroll]] for (uint f = 0; f < FOURS; f++) {
				x[u * FOURS + f] = activations(row, 4 * ((at + u * n) * FOURS + f)); // 0 beyond the end
			}
		}
		[[unroll]] for (uint u = 0; u < UNROLL; u++) {
			float sum = acc;
			[[unroll]] for (uint f = 0; f < FOURS; f++) {
				vec4 a = weights_of(w[u], f), b = x[u * FOURS + f];
				sum = fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
			}
			acc = at + u * n < pieces ? sum : acc;
		}
	}
	acc = workgroupSum(acc);
	if (t == 0) {
		precise float y = before + acc;
		p.logits.v[row * p.experts + e] = y;
	}
	if (arrive(p.count, row, p.experts, t)) {
		route(row);
	}
}
