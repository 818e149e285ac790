#version 460
// Causal grouped-query attention for few rows: workgroups take parts of a row's positions, the last one to end joins them. See attention.go.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "memory.glsl"
#include "q8.glsl"
#include "arrive.glsl"

layout(local_size_x_id = 0) in;                // at most 8 subgroups
layout(constant_id = 1) const uint DIM = 128;  // values of a head
layout(constant_id = 2) const uint HEADS = 1;  // query heads of a workgroup, which share a KV head; HEADS·DIM ≤ 512
layout(constant_id = 3) const uint CHUNKS = 1; // workgroups of a KV head
layout(constant_id = 4) const uint PART = 32;  // fewest positions of a part

layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer Partials { vec4 v[]; };

layout(push_constant) uniform Push {
	Vectors q, o;
	Mirrors mirrors;
	Places places;
	Floats sinks;
	Vectors gate;
	Words xq;
	Pairs xd;
	Partials partial;
	Counters count;
	uvec2 tiles;
	uint rows, heads, kv_heads, kwidth, vwidth, window, flags;
	float scale;
} p;

const uint OUT = 1, Q8 = 2, SINK = 4, GATE = 8;
const float LOWEST = -3.0e38; // of scores; no infinity, so that differences are numbers
const float LOG2E = 1.44269504;

// Eight lanes share a position: lane c has the vectors c, c+8, c+16, … of the head.
const uint VECTORS = DIM / 4;
const uint EACH = (VECTORS + 7) / 8;
const uint AHEAD = HEADS > 2 ? 2 : 4; // positions whose rows are read at a time
const uint ALL = HEADS * VECTORS;     // vectors of the workgroup's heads
const uint SUBGROUPS = 8;
const uint PARTS = 64; // most parts of a row

shared vec4 sums[SUBGROUPS * ALL];
shared float tops[HEADS * PARTS];    // of each subgroup, then of each part: the highest score
shared float weights[HEADS * PARTS]; // and the sum of the weights relative to it

// Both halves of the work end in this: sums of n sources under their own maxima become factors under the common one. tops and weights are
// [HEADS, PARTS]; the invocation gets its source's factor, tops is left alone, weights become the sums under the common maximum.
float common_top(uint h, uint n) {
	float top = LOWEST;
	for (uint s = 0; s < n; s++) {
		top = max(top, tops[h * PARTS + s]);
	}
	return top;
}

// The vector v of head h, whose values sum up to x under the maximum top with weights that sum up to l.
void finish(uint row, uint head, uint v, vec4 x, float top, float l) {
	if ((p.flags & SINK) != 0) {
		float sink = p.sinks.v[head] * LOG2E, m = max(top, sink), f = exp2(top - m);
		x *= f;
		l = l * f + exp2(sink - m);
	}
	x /= l;
	uint at = (row * p.heads + head) * VECTORS + v;
	if ((p.flags & GATE) != 0) {
		x /= 1 + exp(-p.gate.v[at]);
	}
	if ((p.flags & OUT) != 0) {
		p.o.v[at] = x;
	}
	if ((p.flags & Q8) != 0) {
		quantize(p.xq, p.xd, at / 8, x, true);
	}
}

void main() {
	uint row = gl_WorkGroupID.z, kv = gl_WorkGroupID.y / CHUNKS, part = gl_WorkGroupID.x;
	uint group = p.heads / p.kv_heads, first = gl_WorkGroupID.y % CHUNKS * HEADS;
	uint mine = min(HEADS, group - first); // heads
	uint head = kv * group + first;
	ivec2 at = p.places.v[row];
	uint end = at.x + 1, begin = p.window != 0 && end > p.window ? end - p.window : 0;
	uint size = max(PART, (end - begin + gl_NumWorkGroups.x - 1) / gl_NumWorkGroups.x);
	uint parts = (end - begin + size - 1) / size;
	if (part >= parts) {
		return;
	}
	uint from = begin + part * size, to = min(end, from + size);

	uint t = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
	uint lane = t % 8, cluster = t / 8, clusters = gl_WorkGroupSize.x / 8;
	vec4 q[HEADS][EACH], acc[HEADS][EACH];
	float top[HEADS], l[HEADS];
	[[unroll]] for (uint h = 0; h < HEADS; h++) {
		[[unroll]] for (uint e = 0; e < EACH; e++) {
			uint v = lane + 8 * e;
			q[h][e] = v < VECTORS && h < mine ? p.q.v[(row * p.heads + head + h) * VECTORS + v] * (p.scale * LOG2E) : vec4(0);
			acc[h][e] = vec4(0);
		}
		top[h] = LOWEST;
		l[h] = 0;
	}
	Vectors keys = Vectors(p.mirrors.v[2 * at.y]), values = Vectors(p.mirrors.v[2 * at.y + 1]);
	for (uint base = from; base < to; base += AHEAD * clusters) {
		vec4 k[AHEAD][EACH], v[AHEAD][EACH];
		[[unroll]] for (uint u = 0; u < AHEAD; u++) {
			uint pos = min(base + u * clusters + cluster, to - 1);
			uint ki = (pos * p.kwidth + kv * DIM) / 4 + lane, vi = (pos * p.vwidth + kv * DIM) / 4 + lane;
			bool any = base + u * clusters < to; // of all clusters
			[[unroll]] for (uint e = 0; e < EACH; e++) {
				bool in_head = any && lane + 8 * e < VECTORS;
				k[u][e] = in_head ? keys.v[ki + 8 * e] : vec4(0);
				v[u][e] = in_head ? values.v[vi + 8 * e] : vec4(0);
			}
		}
		[[unroll]] for (uint h = 0; h < HEADS; h++) {
			float s[AHEAD], m = top[h];
			[[unroll]] for (uint u = 0; u < AHEAD; u++) {
				vec4 sum = q[h][0] * k[u][0];
				[[unroll]] for (uint e = 1; e < EACH; e++) {
					sum += q[h][e] * k[u][e];
				}
				s[u] = sum.x + sum.y + (sum.z + sum.w);
				s[u] += subgroupShuffleXor(s[u], 1);
				s[u] += subgroupShuffleXor(s[u], 2);
				s[u] += subgroupShuffleXor(s[u], 4);
				if (base + u * clusters + cluster < to) {
					m = max(m, s[u]);
				}
			}
			float f = exp2(top[h] - m);
			top[h] = m;
			l[h] *= f;
			[[unroll]] for (uint e = 0; e < EACH; e++) {
				acc[h][e] *= f;
			}
			[[unroll]] for (uint u = 0; u < AHEAD; u++) {
				float w = base + u * clusters + cluster < to ? exp2(s[u] - m) : 0;
				l[h] += w;
				[[unroll]] for (uint e = 0; e < EACH; e++) {
					acc[h][e] += w * v[u][e];
				}
			}
		}
	}

	// The clusters of a subgroup join, then the subgroups.
	[[unroll]] for (uint h = 0; h < HEADS; h++) {
		float m = top[h];
		for (uint d = 8; d < gl_SubgroupSize; d *= 2) {
			m = max(m, subgroupShuffleXor(m, d));
		}
		float f = exp2(top[h] - m), sum = l[h] * f;
		for (uint d = 8; d < gl_SubgroupSize; d *= 2) {
			sum += subgroupShuffleXor(sum, d);
		}
		[[unroll]] for (uint e = 0; e < EACH; e++) {
			vec4 x = acc[h][e] * f;
			for (uint d = 8; d < gl_SubgroupSize; d *= 2) {
				x += subgroupShuffleXor(x, d);
			}
			uint v = lane + 8 * e;
			if (gl_SubgroupInvocationID < 8 && v < VECTORS) {
				sums[gl_SubgroupID * ALL + h * VECTORS + v] = x;
			}
		}
		if (gl_SubgroupInvocationID == 0) {
			tops[h * PARTS + gl_SubgroupID] = m;
			weights[h * PARTS + gl_SubgroupID] = sum;
		}
	}
	barrier();
	uint row_head = row * p.heads + head;
	for (uint j = t; j < mine * VECTORS; j += gl_WorkGroupSize.x) {
		uint h = j / VECTORS, v = j % VECTORS;
		float m = common_top(h, gl_NumSubgroups), sum = 0;
		vec4 x = vec4(0);
		for (uint s = 0; s < gl_NumSubgroups; s++) {
			float f = exp2(tops[h * PARTS + s] - m);
			sum += weights[h * PARTS + s] * f;
			x += sums[s * ALL + j] * f;
		}
		if (parts == 1) {
			finish(row, head + h, v, x, m, sum);
			continue;
		}
		uint i = ((row_head + h) * gl_NumWorkGroups.x + part) * (VECTORS + 1);
		p.partial.v[i + v] = x;
		if (v == 0) {
			p.partial.v[i + VECTORS] = vec4(m, sum, 0, 0);
		}
	}
	if (parts == 1 || !arrive(p.count, row * gl_NumWorkGroups.y + gl_WorkGroupID.y, parts, t)) {
		return;
	}

	// The last workgroup joins the parts: first their maxima and weights, then the values, in as many strands as there are invocations for.
	for (uint i = t; i < mine * parts; i += gl_WorkGroupSize.x) {
		uint h = i / parts, s = i % parts;
		vec4 x = p.partial.v[((row_head + h) * gl_NumWorkGroups.x + s) * (VECTORS + 1) + VECTORS];
		tops[h * PARTS + s] = x.x;
		weights[h * PARTS + s] = x.y;
	}
	barrier();
	const uint STRANDS = min(SUBGROUPS, max(1, gl_WorkGroupSize.x / ALL));
	for (uint i = t; i < STRANDS * ALL; i += gl_WorkGroupSize.x) {
		uint strand = i / ALL, j = i % ALL, h = j / VECTORS, v = j % VECTORS;
		if (h >= mine) {
			continue;
		}
		float m = common_top(h, parts);
		vec4 x = vec4(0);
		for (uint s = strand; s < parts; s += STRANDS) {
			x += exp2(tops[h * PARTS + s] - m) * p.partial.v[((row_head + h) * gl_NumWorkGroups.x + s) * (VECTORS + 1) + v];
		}
		sums[strand * ALL + j] = x;
	}
	barrier();
	for (uint j = t; j < mine * VECTORS; j += gl_WorkGroupSize.x) {
		uint h = j / VECTORS;
		float m = common_top(h, parts), sum = 0;
		for (uint s = 0; s < parts; s++) {
			sum += weights[h * PARTS + s] * exp2(tops[h * PARTS + s] - m);
		}
		vec4 x = sums[j];
		for (uint s = 1; s < STRANDS; s++) {
			x += sums[s * ALL + j];
		}
		finish(row, head + h, j % VECTORS, x, m, sum);
	}
}
