#version 460
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 3) const uint WHOLE = 1; // 1: columns are whole vectors; only for float32 activations

#define NEAR 0
#include "rows.glsl"
#include "experts.glsl"

layout(push_constant) uniform Push {
	Experts table;
	Ints ids;
	Floats weights;
	uint64_t x, xd;
	Floats y;
	uint64_t sOffset;
	uint qStride, sStride, rows, outs, cols, experts, topK, add;
} p;

// UNROLL is the number of experts that are multiplied at once.
void main() {
	uint row = gl_WorkGroupID.y;
	uint first = (gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID) * OUTS;
	if (first >= p.outs) {
		return;
	}
	float sum[OUTS], start[OUTS];
	[[unroll]] for (uint o = 0; o < OUTS; o++) {
		sum[o] = start[o] = 0;
		if (p.add != 0) {
			start[o] = p.y.v[row * p.outs + min(first + o, p.outs - 1)];
		}
	}
	uint count = pieces(p.cols);
	for (uint rank = 0; rank < p.topK; rank += UNROLL) {
		Matrix m[UNROLL];
		bool here[UNROLL];
		float weight[UNROLL], acc[OUTS * UNROLL];
		[[unroll]] for (uint k = 0; k < UNROLL; k++) {
			uint pair = row * p.topK + min(rank + k, p.topK - 1);
			uint64_t base = rank + k < p.topK ? expertMatrix(p.table, p.ids.v[pair], p.experts, 2) : 0;
			weight[k] = p.weights.v[pair];
			here[k] = base != 0;
			// In place of an expert that is not here its activations are read, which are never shorter than a row of weights: no branch
			// shall keep the loads of the others waiting.
			m[k] = here[k] ? Matrix(base, base + p.sOffset, p.qStride, p.sStride, p.outs, p.cols) : Matrix(p.x, p.x, 0, 0, p.outs, p.cols);
		}
		[[unroll]] for (uint j = 0; j < OUTS * UNROLL; j++) {
			acc[j] = 0;
		}
		for (uint i = gl_SubgroupInvocationID; i < count; i += gl_SubgroupSize) {
			Weights w[OUTS * UNROLL];
			[[unroll]] for (uint j = 0; j < OUTS * UNROLL; j++) {
				w[j] = loadRow(m[j % UNROLL], first + j / UNROLL, i, count, 0, w[j]);
			}
			[[unroll]] for (uint k = 0; k < UNROLL; k++) {
				uint pair = row * p.topK + min(rank + k, p.topK - 1);
				Values v = loadX(p.x + uint64_t(pair) * rowX(p.cols), p.xd + uint64_t(pair) * rowXD(p.cols), i, p.cols);
				[[unroll]] for (uint o = 0; o < OUTS; o++) {
					acc[o * UNROLL + k] = product(acc[o * UNROLL + k], w[o * UNROLL + k], v, i);
				}
			}
		}
		[[unroll]] for (uint j = 0; j < OUTS * UNROLL; j++) {
			uint k = j % UNROLL;
			float part = fma(weight[k], scaled(acc[j], rowS(m[k], min(first + j / UNROLL, p.outs - 1))), sum[j / UNROLL]);
			sum[j / UNROLL] = here[k] ? part : sum[j / UNROLL];
		}
	}
	[[unroll]] for (uint o = 0; o < OUTS; o++) {
		precise float y = start[o] + subgroupAdd(sum[o]);
		if (first + o < p.outs && subgroupElect()) {
			p.y.v[row * p.outs + first + o] = y;
		}
	}
}
