#version 460
// Rows of many tensors to memory of the host, at the end of a frame: see rope.go.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

layout(local_size_x_id = 0) in;

struct Piece {
	Mirrors from;
	Floats to;
	uint width, which;
};

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pieces { Piece v[]; };

layout(push_constant) uniform Push {
	Pieces pieces;
	Places places;
	uint rows;
} p;

const uint ROWS = 2; // rows that follow each other, not those of a mirror

void main() {
	Piece piece = p.pieces.v[gl_WorkGroupID.z];
	uint row = gl_WorkGroupID.y, from = row;
	Floats source = Floats(piece.from);
	if (piece.which != ROWS) {
		ivec2 at = p.places.v[row];
		source = piece.from.v[2 * at.y + piece.which];
		from = at.x;
	}
	bool vec = piece.width % 4 == 0;
	for (uint i = 4 * gl_GlobalInvocationID.x; i < piece.width; i += 4 * gl_WorkGroupSize.x * gl_NumWorkGroups.x) {
		store4(piece.to, row, piece.width, i, vec, load4(source, from, piece.width, i, vec));
	}
}
