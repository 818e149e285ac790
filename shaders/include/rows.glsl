// What a subgroup of the few-row products does: OUTS weight rows times ROWS rows of activations.

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint OUTS = 1;   // weight rows a subgroup computes
layout(constant_id = 2) const uint UNROLL = 1; // pieces of a weight row that a lane loads at once, the lanes' number apart

#include "weights.glsl"

// Matrix is a matrix in device layout.
struct Matrix {
	uint64_t q, s; // its values and scales
	uint qStride, sStride;
	uint outs, cols;
};

uint64_t rowQ(Matrix m, uint o) { return m.q + uint64_t(o) * m.qStride; }
uint64_t rowS(Matrix m, uint o) { return m.s + uint64_t(o) * m.sStride; }

uint pieces(uint cols) { return (cols + COLS - 1) / COLS; }

// pieceOf returns the u-th piece that a lane of so many lanes loads in turn t.
uint pieceOf(uint t, uint lane, uint lanes, uint u) {
	return (t * UNROLL + u) * lanes + lane;
}

// turns returns how many turns the lanes take at a row's pieces.
uint turns(uint count, uint lanes) { return (count + UNROLL * lanes - 1) / (UNROLL * lanes); }

// loadRow loads piece i of row o. Beyond the last row or piece it loads that one, for lanes whose result does not count.
Weights loadRow(Matrix m, uint o, uint i, uint count) {
	o = min(o, m.outs - 1);
	return load(rowQ(m, o), rowS(m, o), min(i, count - 1), m.cols);
}

// total adds up a row's product over the subgroup.
float total(Matrix m, uint o, float acc) { return scaled(subgroupAdd(acc), rowS(m, min(o, m.outs - 1))); }
