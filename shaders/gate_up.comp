#version 460
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 3) const uint WHOLE = 1; // 1: columns are whole vectors; only for float32 activations

#include "rows.glsl"
#include "experts.glsl"
#include "q8.glsl"
#include "activation.glsl"

layout(push_constant) uniform Push {
	Experts table;
	Ints ids;
	uint64_t x, xd;
	Floats y;
	Words yq;
	Pairs yd;
	uint64_t sOffset;
	uint qStride, sStride, pairs, outs, cols, experts, topK, act;
} p;

shared float h[32]; // what the workgroup computes: a block of the integer form

void main() {
	uint pair = gl_WorkGroupID.y;
	int id = p.ids.v[pair];
	uint64_t gates = expertMatrix(p.table, id, p.experts, 0), ups = expertMatrix(p.table, id, p.experts, 1);
	if (gates == 0 || ups == 0) {
		return;
	}
	Matrix gate = Matrix(gates, gates + p.sOffset, p.qStride, p.sStride, p.outs, p.cols);
	Matrix up = Matrix(ups, ups + p.sOffset, p.qStride, p.sStride, p.outs, p.cols);
	uint row = pair / p.topK;
	uint64_t x = p.x + uint64_t(row) * rowX(p.cols), xd = p.xd + uint64_t(row) * rowXD(p.cols);
	uint own = gl_SubgroupID * OUTS, first = gl_WorkGroupID.x * 32 + own;
	float g[OUTS], u[OUTS];
	[[unroll]] for (uint o = 0; o < OUTS; o++) {
		g[o] = u[o] = 0;
	}
	uint count = pieces(p.cols);
	for (uint t = 0; t < turns(count, gl_SubgroupSize); t++) {
		Weights wg[OUTS * UNROLL], wu[OUTS * UNROLL];
		[[unroll]] for (uint j = 0; j < OUTS * UNROLL; j++) {
			uint o = first + j / UNROLL, i = pieceOf(t, gl_SubgroupInvocationID, gl_SubgroupSize, j % UNROLL);
			wg[j] = loadRow(gate, o, i, count);
			wu[j] = loadRow(up, o, i, count);
		}
		[[unroll]] for (uint k = 0; k < UNROLL; k++) {
			uint i = pieceOf(t, gl_SubgroupInvocationID, gl_SubgroupSize, k);
			Values v = loadX(x, xd, min(i, count - 1), p.cols);
			[[unroll]] for (uint o = 0; o < OUTS; o++) {
				float sg = product(g[o], wg[o * UNROLL + k], v, i), su = product(u[o], wu[o * UNROLL + k], v, i);
				g[o] = i < count ? sg : g[o];
				u[o] = i < count ? su : u[o];
			}
		}
	}
	[[unroll]] for (uint o = 0; o < OUTS; o++) {
		float a = total(gate, first + o, g[o]), b = total(up, first + o, u[o]);
		if (subgroupElect()) {
			h[own + o] = first + o < p.outs ? activate(vec4(a), p.act).x * b : 0;
		}
	}
	barrier();
	uint lane = gl_SubgroupInvocationID;
	if (gl_SubgroupID != 0 || lane >= 8) {
		return;
	}
	vec4 four = vec4(h[4 * lane], h[4 * lane + 1], h[4 * lane + 2], h[4 * lane + 3]);
	if (given(p.y)) {
		store4(p.y, pair, p.outs, gl_WorkGroupID.x * 32 + 4 * lane, (p.outs & 3) == 0, four);
	}
	if (uvec2(p.yq) != uvec2(0)) {
		quantize(p.yq, p.yd, pair * ((p.outs + 31) / 32) + gl_WorkGroupID.x, four, true);
	}
}
