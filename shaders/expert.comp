#version 460
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 3) const uint WHOLE = 1; // 1: columns are whole vectors; only for float32 activations

#include "rows.glsl"
#include "experts.glsl"

layout(push_constant) uniform Push {
	Experts table;
	Ints ids;
	uint64_t x, xd;
	Floats y;
	uint64_t sOffset;
	uint qStride, sStride, pairs, outs, cols, experts, which, divide;
} p;

void main() {
	uint pair = gl_WorkGroupID.y;
	uint64_t base = expertMatrix(p.table, p.ids.v[pair], p.experts, p.which);
	uint first = (gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID) * OUTS;
	if (base == 0 || first >= p.outs) {
		return;
	}
	Matrix m = Matrix(base, base + p.sOffset, p.qStride, p.sStride, p.outs, p.cols);
	uint row = pair / p.divide;
	uint64_t x = p.x + uint64_t(row) * rowX(m.cols), xd = p.xd + uint64_t(row) * rowXD(m.cols);
	float acc[OUTS];
	[[unroll]] for (uint o = 0; o < OUTS; o++) {
		acc[o] = 0;
	}
	uint count = pieces(m.cols);
	for (uint t = 0; t < turns(count, gl_SubgroupSize); t++) {
		Weights w[OUTS * UNROLL];
		[[unroll]] for (uint j = 0; j < OUTS * UNROLL; j++) {
			uint i = pieceOf(t, gl_SubgroupInvocationID, gl_SubgroupSize, j % UNROLL);
			w[j] = loadRow(m, first + j / UNROLL, i, count);
		}
		[[unroll]] for (uint u = 0; u < UNROLL; u++) {
			uint i = pieceOf(t, gl_SubgroupInvocationID, gl_SubgroupSize, u);
			Values v = loadX(x, xd, min(i, count - 1), m.cols);
			[[unroll]] for (uint o = 0; o < OUTS; o++) {
				float sum = product(acc[o], w[o * UNROLL + u], v, i);
				acc[o] = i < count ? sum : acc[o];
			}
		}
	}
	[[unroll]] for (uint o = 0; o < OUTS; o++) {
		float y = total(m, first + o, acc[o]);
		if (first + o < m.outs && subgroupElect()) {
			p.y.v[pair * m.outs + first + o] = y;
		}
	}
}
