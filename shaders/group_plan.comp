// Sorts the pairs of a step by expert: GroupPush in group.go. A workgroup an expert; its threads read all ids, each a stretch of them.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

layout(constant_id = 0) const uint THREADS = 256;
layout(local_size_x_id = 0) in;

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Tiles { uvec4 v[]; };

layout(push_constant) uniform Push {
	Words ids;
	Tiles tiles;
	Words pairs;
	uint count, experts, tile_rows;
} p;

shared uint lower[THREADS]; // pairs of lower experts in the stretches up to a thread's
shared uint own[THREADS];   // pairs of this expert there

void main() {
	uint expert = gl_WorkGroupID.x, lane = gl_LocalInvocationIndex;
	uint stretch = (p.count + THREADS - 1) / THREADS, from = min(lane * stretch, p.count), to = min(from + stretch, p.count);
	uint l = 0, n = 0;
	for (uint i = from; i < to; i++) {
		uint id = p.ids.v[i]; // a negative one is a large one here
		l += id < expert ? 1 : 0;
		n += id == expert ? 1 : 0;
	}
	lower[lane] = l;
	own[lane] = n;
	for (uint by = 1; by < THREADS; by *= 2) {
		barrier();
		if (lane >= by) {
			l += lower[lane - by];
			n += own[lane - by];
		}
		barrier();
		lower[lane] = l;
		own[lane] = n;
	}
	barrier();
	uint start = lower[THREADS - 1], total = own[THREADS - 1];

	uint at = start + (lane > 0 ? own[lane - 1] : 0);
	for (uint i = from; i < to; i++)
		if (p.ids.v[i] == expert) p.pairs.v[at++] = i;

	// The last expert clears what is left of the tiles.
	uint tile = start / p.tile_rows + expert;
	uint end = expert + 1 < p.experts ? (start + total) / p.tile_rows + expert + 1 : p.count / p.tile_rows + p.experts;
	for (uint i = lane; tile + i < end; i += THREADS) {
		uint done = i * p.tile_rows;
		p.tiles.v[tile + i] = uvec4(expert, start + done, done < total ? min(p.tile_rows, total - done) : 0, 0);
	}
}
