#version 460
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 3) const uint ROWS = 1; // rows of x that share a load of weights
layout(constant_id = 4) const uint JOIN = 0; // 1: the subgroups of a workgroup take turns at the pieces of the same weight rows
layout(constant_id = 7) const uint WHOLE = 1; // 1: columns are whole vectors; only for float32 activations

#define TAIL 5
#include "rows.glsl"
#include "tail.glsl"

layout(push_constant) uniform Push {
	uint64_t w, s, x, xd;
	Floats y, bias;
	uint qStride, sStride, rows, outs, cols, add;
	Floats normW, normY;
	uint64_t normQ;
	Counters count;
	uint normD;
	float eps;
} p;

const uint SUMS = OUTS * ROWS;

shared float parts[JOIN != 0 ? THREADS / 4 * SUMS : 1]; // subgroups have 4 lanes at least

float start(uint o, uint r) {
	float y = 0;
	if (given(p.bias)) {
		y = p.bias.v[o];
	}
	if (p.add != 0) {
		y += p.y.v[r * p.outs + o];
	}
	return y;
}

// multiply computes OUTS weight rows from first on; lane is this one of those that take turns at them.
void multiply(uint first, uint lane, uint lanes) {
	Matrix m = Matrix(p.w, p.s, p.qStride, p.sStride, p.outs, p.cols);
	uint count = pieces(m.cols);
	for (uint r0 = 0; r0 < p.rows; r0 += ROWS) {
		// Without JOIN every lane knows the start of all sums, otherwise each knows that of the sum that it finishes.
		float acc[SUMS], before[SUMS], own = 0;
		[[unroll]] for (uint j = 0; j < SUMS; j++) {
			acc[j] = 0;
			if (JOIN == 0) {
				before[j] = start(min(first + j / ROWS, m.outs - 1), min(r0 + j % ROWS, p.rows - 1));
			}
		}
		if (JOIN != 0 && lane < SUMS) {
			own = start(min(first + lane / ROWS, m.outs - 1), min(r0 + lane % ROWS, p.rows - 1));
		}
		for (uint t = 0; t < turns(count, lanes); t++) {
			Weights w[OUTS * UNROLL];
			[[unroll]] for (uint j = 0; j < OUTS * UNROLL; j++) {
				w[j] = loadRow(m, first + j / UNROLL, pieceOf(t, lane, lanes, j % UNROLL), count);
			}
			[[unroll]] for (uint r = 0; r < ROWS; r++) {
				uint row = min(r0 + r, p.rows - 1);
				uint64_t x = p.x + uint64_t(row) * rowX(m.cols), xd = p.xd + uint64_t(row) * rowXD(m.cols);
				[[unroll]] for (uint u = 0; u < UNROLL; u++) {
					uint i = pieceOf(t, lane, lanes, u);
					Values v = loadX(x, xd, min(i, count - 1), m.cols);
					[[unroll]] for (uint o = 0; o < OUTS; o++) {
						float sum = product(acc[o * ROWS + r], w[o * UNROLL + u], v, i);
						acc[o * ROWS + r] = i < count ? sum : acc[o * ROWS + r];
					}
				}
			}
		}
		[[unroll]] for (uint j = 0; j < SUMS; j++) {
			uint o = first + j / ROWS, r = r0 + j % ROWS;
			if (JOIN != 0) {
				float part = subgroupAdd(acc[j]);
				if (subgroupElect()) {
					parts[gl_SubgroupID * SUMS + j] = part;
				}
			} else {
				precise float y = before[j] + total(m, o, acc[j]);
				if (o < m.outs && r < p.rows && subgroupElect()) {
					finish(p.y, r * m.outs + o, y);
				}
			}
		}
		if (JOIN != 0) {
			barrier();
			uint o = first + lane / ROWS, r = r0 + lane % ROWS;
			if (lane < SUMS && o < m.outs && r < p.rows) {
				float sum = 0;
				for (uint s = 0; s < gl_NumSubgroups; s++) {
					sum += parts[s * SUMS + lane];
				}
				precise float y = own + scaled(sum, rowS(m, o));
				finish(p.y, r * m.outs + o, y);
			}
			barrier();
		}
	}
}

void main() {
	uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
	uint first = JOIN != 0 ? group * OUTS : (group * gl_NumSubgroups + gl_SubgroupID) * OUTS;
	if (first < p.outs) {
		multiply(first, JOIN != 0 ? place() : gl_SubgroupInvocationID, JOIN != 0 ? gl_NumSubgroups * gl_SubgroupSize : gl_SubgroupSize);
	}
	if (LANES != 0 && arrive(p.count, 0, gl_NumWorkGroups.x * gl_NumWorkGroups.y, place())) {
		for (uint row = 0; row < p.rows; row++) {
			normalise(p.y, row, p.outs, p.normW, p.normY, p.normQ, p.normD, p.eps);
		}
	}
}
