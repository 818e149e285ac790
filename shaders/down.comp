#version 460
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 3) const uint RANKS = 8; // subgroups of a workgroup: experts multiplied at once
layout(constant_id = 6) const uint WHOLE = 1; // 1: columns are whole vectors; only for float32 activations

#define TAIL 4
#include "rows.glsl"
#include "experts.glsl"
#include "tail.glsl"

layout(push_constant) uniform Push {
	Experts table;
	Ints ids;
	Floats weights;
	uint64_t x, xd;
	Floats y;
	uint64_t sOffset;
	uint qStride, sStride, rows, outs, cols, experts, topK, add;
	Floats normW, normY;
	uint64_t normQ;
	Counters count;
	uint normD;
	float eps;
} p;

shared float parts[RANKS * OUTS];

// multiply leaves the weighted products of a pair's expert with rows first to first+OUTS-1 in parts; those of an absent one are 0.
void multiply(uint pair, uint first) {
	float weight = p.weights.v[pair];
	uint64_t base = expertMatrix(p.table, p.ids.v[pair], p.experts, 2);
	uint64_t x = p.x + uint64_t(pair) * rowX(p.cols), xd = p.xd + uint64_t(pair) * rowXD(p.cols);
	float acc[OUTS];
	[[unroll]] for (uint o = 0; o < OUTS; o++) {
		acc[o] = 0;
	}
	Matrix m = Matrix(base, base + p.sOffset, p.qStride, p.sStride, p.outs, p.cols);
	if (base != 0) {
		uint count = pieces(p.cols);
		for (uint t = 0; t < turns(count, gl_SubgroupSize); t++) {
			Weights w[OUTS * UNROLL];
			[[unroll]] for (uint j = 0; j < OUTS * UNROLL; j++) {
				uint i = pieceOf(t, gl_SubgroupInvocationID, gl_SubgroupSize, j % UNROLL);
				w[j] = loadRow(m, first + j / UNROLL, i, count);
			}
			[[unroll]] for (uint u = 0; u < UNROLL; u++) {
				uint i = pieceOf(t, gl_SubgroupInvocationID, gl_SubgroupSize, u);
				Values v = loadX(x, xd, min(i, count - 1), p.cols);
				[[unroll]] for (uint o = 0; o < OUTS; o++) {
					float sum = product(acc[o], w[o * UNROLL + u], v, i);
					acc[o] = i < count ? sum : acc[o];
				}
			}
		}
		[[unroll]] for (uint o = 0; o < OUTS; o++) {
			acc[o] = weight * total(m, first + o, acc[o]);
		}
	}
	[[unroll]] for (uint o = 0; o < OUTS; o++) {
		if (subgroupElect()) {
			parts[gl_SubgroupID * OUTS + o] = acc[o];
		}
	}
}

void main() {
	uint row = gl_WorkGroupID.y, first = gl_WorkGroupID.x * OUTS, lane = place();
	bool mine = lane < OUTS && first + lane < p.outs; // each of these lanes finishes a sum
	float start = 0, sum = 0;
	if (mine && p.add != 0) {
		start = p.y.v[row * p.outs + first + lane];
	}
	for (uint rank = 0; rank < p.topK; rank += RANKS) {
		if (rank + gl_SubgroupID < p.topK) {
			multiply(row * p.topK + rank + gl_SubgroupID, first);
		}
		barrier();
		if (mine) {
			for (uint s = 0; s < min(RANKS, p.topK - rank); s++) {
				sum += parts[s * OUTS + lane];
			}
		}
		barrier();
	}
	if (mine) {
		precise float y = start + sum;
		finish(p.y, row * p.outs + first + lane, y);
	}
	if (LANES != 0 && arrive(p.count, row, gl_NumWorkGroups.x, lane)) {
		normalise(p.y, row, p.outs, p.normW, p.normY, p.normQ, p.normD, p.eps);
	}
}
