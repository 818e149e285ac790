#version 460
#extension GL_GOOGLE_include_directive : require
#include "rows.glsl"

layout(constant_id = 3) const uint ROWS = 1; // rows of x that share a load of weights

layout(push_constant) uniform Push {
	uint64_t w, s, x, xd;
	Floats y, bias;
	uint qStride, sStride, rows, outs, cols, add;
} p;

void main() {
	uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
	uint first = (group * gl_NumSubgroups + gl_SubgroupID) * OUTS;
	if (first >= p.outs) {
		return;
	}
	Matrix m = Matrix(p.w, p.s, p.qStride, p.sStride, p.outs, p.cols);
	uint count = pieces(m.cols);
	for (uint r0 = 0; r0 < p.rows; r0 += ROWS) {
		float acc[OUTS * ROWS], start[OUTS * ROWS];
		[[unroll]] for (uint j = 0; j < OUTS * ROWS; j++) {
			uint o = min(first + j / ROWS, m.outs - 1), r = min(r0 + j % ROWS, p.rows - 1);
			acc[j] = start[j] = 0;
			if (given(p.bias)) {
				start[j] = p.bias.v[o];
			}
			if (p.add != 0) {
				start[j] += p.y.v[r * m.outs + o];
			}
		}
		for (uint at = gl_SubgroupInvocationID; at < count; at += gl_SubgroupSize * UNROLL) {
			Weights w[OUTS * UNROLL];
			[[unroll]] for (uint j = 0; j < OUTS * UNROLL; j++) {
				w[j] = loadRow(m, first + j / UNROLL, at + j % UNROLL * gl_SubgroupSize, count);
			}
			[[unroll]] for (uint r = 0; r < ROWS; r++) {
				uint row = min(r0 + r, p.rows - 1);
				uint64_t x = p.x + uint64_t(row) * rowX(m.cols), xd = p.xd + uint64_t(row) * rowXD(m.cols);
				[[unroll]] for (uint u = 0; u < UNROLL; u++) {
					uint i = at + u * gl_SubgroupSize;
					Values v = loadX(x, xd, min(i, count - 1), m.cols);
					[[unroll]] for (uint o = 0; o < OUTS; o++) {
						float sum = product(acc[o * ROWS + r], w[o * UNROLL + u], v, i);
						acc[o * ROWS + r] = i < count ? sum : acc[o * ROWS + r];
					}
				}
			}
		}
		[[unroll]] for (uint j = 0; j < OUTS * ROWS; j++) {
			uint o = first + j / ROWS, r = r0 + j % ROWS;
			precise float y = start[j] + total(m, o, acc[j]);
			if (o < m.outs && r < p.rows && subgroupElect()) {
				p.y.v[r * m.outs + o] = y;
			}
		}
	}
}
