// Causal grouped-query attention for few rows: workgroups take parts of a row's positions, the last one to end joins them. See attention.go.
// With QKV the queries, keys and values are what the projections wrote: each workgroup normalises and rotates what it needs of them.
//
// What a workgroup waits for is memory, so that all of a block's keys and values are asked for at once: for the scores eight lanes share a
// position, for the sums a lane has one vector of the head at every STRANDS-th position.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "memory.glsl"
#include "q8.glsl"
#include "arrive.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;
layout(constant_id = 1) const uint DIM = 128;  // values of a head
layout(constant_id = 2) const uint HEADS = 1;  // query heads of a workgroup, which share a KV head; HEADS·DIM ≤ 512
layout(constant_id = 3) const uint CHUNKS = 1; // workgroups of a KV head
layout(constant_id = 4) const uint PART = 64;  // fewest positions of a part
layout(constant_id = 5) const uint AHEAD = 2;  // positions of eight lanes in a block
#ifdef QKV
layout(constant_id = 6) const bool NORM = true;
layout(constant_id = 7) const bool WHOLE = true; // of the whole projection
layout(constant_id = 8) const uint KEEP = 1;     // its units of an invocation
layout(constant_id = 9) const uint ROTATED = 16; // units of a head that are rotated
layout(constant_id = 10) const float LIMIT = 0;  // of queries, keys and values; 0 for none
#endif

layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer Partials { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Rows { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Tables { uvec4 v[]; };

layout(push_constant) uniform Push {
#ifdef QKV
	Vectors q, k, v, qw, kw, table;
	Tables mirrors;
	Places places;
	Vectors o;
	Words xq;
	Pairs xd;
	Partials partial;
	Counters count;
	uint heads, kv_heads, window, flags;
	float scale, eps;
#else
	Vectors q, o;
	Tables mirrors;
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
#endif
} p;

#ifdef QKV
uint kwidth() { return p.kv_heads * DIM; }
uint vwidth() { return p.kv_heads * DIM; }
#else
uint kwidth() { return p.kwidth; }
uint vwidth() { return p.vwidth; }
#endif

const uint OUT = 1, Q8 = 2, SINK = 4, GATE = 8, PLUS_ONE = 16;
const float LOWEST = -3.0e38; // of scores; no infinity, so that differences are numbers
const float LOG2E = 1.44269504;

const uint VECTORS = DIM / 4;
const uint ALL = HEADS * VECTORS;                       // vectors of the workgroup's heads
const uint EACH = (VECTORS + 7) / 8;                    // vectors of a key that a lane has: c, c+8, c+16, …
const uint CLUSTERS = THREADS / 8, BLOCK = AHEAD * CLUSTERS; // positions
const uint STRANDS = THREADS / VECTORS < BLOCK ? THREADS / VECTORS : BLOCK;
const uint VALUES = (BLOCK + STRANDS - 1) / STRANDS;    // positions of a strand
const uint JOINS = THREADS / ALL > STRANDS ? STRANDS : THREADS / ALL > 1 ? THREADS / ALL : 1; // strands in which parts are joined
const uint JOIN = 4;                                    // parts that are read at a time

shared float scores[2 * HEADS * BLOCK]; // of this block and the one before, which some may still read
shared vec4 sums[STRANDS * ALL];
shared vec2 tops[STRANDS * HEADS]; // the highest score of a strand's positions, and the sum of the weights relative to it

#ifdef QKV
#include "qkv.glsl"

const uint PER = DIM / 8;                 // units of a head
const uint NORMS = WHOLE ? 2 : HEADS + 1; // of the queries, of the key
const uint PLACES = 64;                   // most subgroups

shared vec4 queries[ALL], key[VECTORS], value[VECTORS]; // of the row
shared float norms[NORMS * PLACES];                     // sums of squares

// prepare leaves the queries of the workgroup's heads in shared memory, as qkv_post.comp leaves them in memory, and the row's own key and
// value if asked to, which it may store.
void prepare(uint row, uint pos, uint kv, uint head, uint mine, uint t, bool own, bool store, uvec4 mirrors) {
	vec4 squared[NORMS][2 * KEEP];
	[[unroll]] for (uint j = 0; j < NORMS; j++) {
		bool of_key = j == NORMS - 1;
		uint heads = of_key ? p.kv_heads : p.heads, units = WHOLE ? heads * PER : PER;
		uint at0 = (row * heads + (WHOLE ? 0 : of_key ? kv : head + min(j, mine - 1))) * VECTORS;
		[[unroll]] for (uint c = 0; c < KEEP; c++) {
			uint unit = c * THREADS + t;
			uvec2 i = vectors_of(min(unit, units - 1), PER, ROTATED);
			vec4 a = of_key ? p.k.v[at0 + i.x] : p.q.v[at0 + i.x], b = of_key ? p.k.v[at0 + i.y] : p.q.v[at0 + i.y];
			squared[j][2 * c] = unit < units ? a : vec4(0);
			squared[j][2 * c + 1] = unit < units ? b : vec4(0);
		}
	}
	// A unit of the workgroup's own heads, the last of which is the key's.
	uint h0 = min(t / PER, HEADS), unit = t % PER;
	bool of_key = h0 == HEADS, wanted = t < (HEADS + 1) * PER && (of_key ? own : h0 < mine);
	uvec2 i = vectors_of(unit, PER, ROTATED);
	uint which = of_key ? kv : head + min(h0, mine - 1), weights0 = WHOLE ? which * VECTORS : 0;
	uint own0 = (row * (of_key ? p.kv_heads : p.heads) + which) * VECTORS, rotation = 2 * (pos * ROTATED + min(unit, ROTATED - 1));
	vec4 y, z, wy = vec4(1), wz = wy;
	if (of_key) {
		y = p.k.v[own0 + i.x];
		z = p.k.v[own0 + i.y];
	} else {
		y = p.q.v[own0 + i.x];
		z = p.q.v[own0 + i.y];
	}
	if (NORM) {
		wy = of_key ? p.kw.v[weights0 + i.x] : p.qw.v[weights0 + i.x];
		wz = of_key ? p.kw.v[weights0 + i.y] : p.qw.v[weights0 + i.y];
	}
	vec4 t0 = p.table.v[rotation], t1 = p.table.v[rotation + 1], x = p.v.v[(row * p.kv_heads + kv) * VECTORS + t % VECTORS];
	if (NORM) {
		[[unroll]] for (uint j = 0; j < NORMS; j++) {
			float sum = 0;
			[[unroll]] for (uint c = 0; c < KEEP; c++) {
				sum += squares(squared[j][2 * c], squared[j][2 * c + 1]);
			}
			sum = subgroupAdd(sum);
			if (subgroupElect()) {
				norms[j * PLACES + gl_SubgroupID] = sum;
			}
		}
		barrier();
		uint j = of_key ? NORMS - 1 : WHOLE ? 0 : h0;
		float sum = 0;
		for (uint s = 0; s < gl_NumSubgroups; s++) {
			sum += norms[j * PLACES + s];
		}
		float scale = norm_scale(sum, WHOLE ? (of_key ? p.kv_heads : p.heads) * DIM : DIM, p.eps);
		bool plus = (p.flags & PLUS_ONE) != 0;
		y *= scale * (plus ? wy + 1 : wy);
		z *= scale * (plus ? wz + 1 : wz);
	}
	if (LIMIT > 0) {
		y = limited(y, LIMIT);
		z = limited(z, LIMIT);
		x = limited(x, LIMIT);
	}
	if (unit < ROTATED) {
		rotate(y, z, t0, t1);
	}
	uint place0 = (pos * p.kv_heads + kv) * VECTORS; // in the mirrors
	if (wanted) {
		if (of_key) {
			key[i.x] = y;
			key[i.y] = z;
		} else {
			queries[h0 * VECTORS + i.x] = y;
			queries[h0 * VECTORS + i.y] = z;
		}
		if (of_key && store) {
			Vectors(mirrors.xy).v[place0 + i.x] = y;
			Vectors(mirrors.xy).v[place0 + i.y] = z;
		}
	}
	if (own && t < VECTORS) {
		value[t] = x;
		if (store) {
			Vectors(mirrors.zw).v[place0 + t] = x;
		}
	}
	barrier();
}
#endif

// ask loads a block's keys and values; positions beyond the last get the last one's.
void ask(Rows keys, Rows values, uint base, uint last, uint kv, uint t, out vec4 k[AHEAD][EACH], out vec4 v[VALUES]) {
	uint lane = t % 8, cluster = t / 8, column = t % VECTORS, strand = t / VECTORS;
	[[unroll]] for (uint u = 0; u < AHEAD; u++) {
		uint i = (min(base + u * CLUSTERS + cluster, last) * kwidth() + kv * DIM) / 4 + lane;
		[[unroll]] for (uint e = 0; e < EACH; e++) {
			k[u][e] = lane + 8 * e < VECTORS ? keys.v[i + 8 * e] : vec4(0);
		}
	}
	[[unroll]] for (uint e = 0; e < VALUES; e++) {
		v[e] = values.v[(min(base + strand + e * STRANDS, last) * vwidth() + kv * DIM) / 4 + column];
	}
}

// The vector v of a head, whose values sum up to x under the maximum top with weights that sum up to l.
void finish(uint row, uint head, uint v, vec4 x, float top, float l) {
#ifndef QKV
	if ((p.flags & SINK) != 0) {
		float sink = p.sinks.v[head] * LOG2E, m = max(top, sink), f = exp2(top - m);
		x *= f;
		l = l * f + exp2(sink - m);
	}
#endif
	x /= l;
	uint at = (row * p.heads + head) * VECTORS + v;
#ifndef QKV
	if ((p.flags & GATE) != 0) {
		x /= 1 + exp(-p.gate.v[at]);
	}
#endif
	if ((p.flags & OUT) != 0) {
		p.o.v[at] = x;
	}
	if ((p.flags & Q8) != 0) {
		quantize(p.xq, p.xd, at / 8, x, true);
	}
}

void main() {
	// Parts are the slowest dimension, so that those with positions begin first.
	uint row = gl_WorkGroupID.y, kv = gl_WorkGroupID.x / CHUNKS, part = gl_WorkGroupID.z, splits = gl_NumWorkGroups.z;
	uvec4 mirrors = p.mirrors.v[0]; // most often there is no other; so it is not waited for twice
	ivec2 at = p.places.v[row];
	if (at.y != 0) {
		mirrors = p.mirrors.v[at.y];
	}
	uint group = p.heads / p.kv_heads, first = gl_WorkGroupID.x % CHUNKS * HEADS;
	uint mine = min(HEADS, group - first); // heads
	uint head = kv * group + first;
	uint end = at.x + 1, begin = p.window != 0 && end > p.window ? end - p.window : 0;
	uint size = max(PART, (end - begin + splits - 1) / splits);
	uint parts = (end - begin + size - 1) / size;
	if (part >= parts) {
		return;
	}
	uint from = begin + part * size, to = min(end, from + size);
	Rows keys = Rows(mirrors.xy), values = Rows(mirrors.zw);

	uint t = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
	uint lane = t % 8, cluster = t / 8, column = t % VECTORS, strand = t / VECTORS;
	vec4 k[AHEAD][EACH], v[VALUES];
	uint last = to - 1;
#ifdef QKV
	// The row's own key and value are in no mirror yet; the part that they are in has them from the projections.
	bool own = part == parts - 1;
	uint self = own ? at.x : 0xffffffffu;
	if (own) {
		last = max(to, 2) - 2;
	}
#endif
	ask(keys, values, from, last, kv, t, k, v);
#ifdef QKV
	prepare(row, at.x, kv, head, mine, t, own, first == 0, mirrors);
#endif
	vec4 q[HEADS][EACH], acc[HEADS];
	float top[HEADS], l[HEADS];
	[[unroll]] for (uint h = 0; h < HEADS; h++) {
		[[unroll]] for (uint e = 0; e < EACH; e++) {
			uint v = lane + 8 * e;
#ifdef QKV
			q[h][e] = v < VECTORS && h < mine ? queries[h * VECTORS + v] * (p.scale * LOG2E) : vec4(0);
#else
			q[h][e] = v < VECTORS && h < mine ? p.q.v[(row * p.heads + head + h) * VECTORS + v] * (p.scale * LOG2E) : vec4(0);
#endif
		}
		acc[h] = vec4(0);
		top[h] = LOWEST;
		l[h] = 0;
	}
	uint turn = 0;
	for (uint base = from;;) {
#ifdef QKV
		[[unroll]] for (uint u = 0; u < AHEAD; u++) {
			if (base + u * CLUSTERS + cluster >= self) {
				[[unroll]] for (uint e = 0; e < EACH; e++) {
					k[u][e] = key[min(lane + 8 * e, VECTORS - 1)];
				}
			}
		}
		[[unroll]] for (uint e = 0; e < VALUES; e++) {
			v[e] = base + strand + e * STRANDS >= self ? value[column] : v[e];
		}
#endif
		[[unroll]] for (uint h = 0; h < HEADS; h++) {
			[[unroll]] for (uint u = 0; u < AHEAD; u++) {
				vec4 sum = q[h][0] * k[u][0];
				[[unroll]] for (uint e = 1; e < EACH; e++) {
					sum += q[h][e] * k[u][e];
				}
				float s = sum.x + sum.y + (sum.z + sum.w);
				s += subgroupShuffleXor(s, 1);
				s += subgroupShuffleXor(s, 2);
				s += subgroupShuffleXor(s, 4);
				uint i = u * CLUSTERS + cluster;
				if (lane == 0) {
					scores[turn + h * BLOCK + i] = base + i < to ? s : LOWEST;
				}
			}
		}
		barrier();
		[[unroll]] for (uint h = 0; h < HEADS; h++) {
			float m = top[h];
			for (uint i = gl_SubgroupInvocationID; i < BLOCK; i += gl_SubgroupSize) {
				m = max(m, scores[turn + h * BLOCK + i]);
			}
			m = subgroupMax(m);
			float f = exp2(top[h] - m);
			top[h] = m;
			l[h] *= f;
			acc[h] *= f;
			[[unroll]] for (uint e = 0; e < VALUES; e++) {
				uint i = strand + e * STRANDS;
				float w = i < BLOCK ? exp2(scores[turn + h * BLOCK + i] - m) : 0;
				l[h] += w;
				acc[h] += w * v[e];
			}
		}
		base += BLOCK;
		if (base >= to) {
			break;
		}
		turn = HEADS * BLOCK - turn;
		ask(keys, values, base, last, kv, t, k, v);
	}

	// The strands join. All of the workgroup have the same maximum.
	if (strand < STRANDS) {
		[[unroll]] for (uint h = 0; h < HEADS; h++) {
			sums[strand * ALL + h * VECTORS + column] = acc[h];
			if (column == 0) {
				tops[strand * HEADS + h] = vec2(top[h], l[h]);
			}
		}
	}
	barrier();
	uint row_head = row * p.heads + head;
	for (uint j = t; j < mine * VECTORS; j += THREADS) {
		uint h = j / VECTORS, v = j % VECTORS;
		vec4 x = sums[j];
		vec2 m = tops[h];
		for (uint s = 1; s < STRANDS; s++) {
			x += sums[s * ALL + j];
			m.y += tops[s * HEADS + h].y;
		}
		if (parts == 1) {
			finish(row, head + h, v, x, m.x, m.y);
			continue;
		}
		uint i = ((row_head + h) * splits + part) * (VECTORS + 1);
		p.partial.v[i + v] = x;
		if (v == 0) {
			p.partial.v[i + VECTORS] = vec4(m, 0, 0);
		}
	}
	if (parts == 1 || !arrive(p.count, row * gl_NumWorkGroups.x + gl_WorkGroupID.x, parts, t)) {
		return;
	}

	// The last workgroup joins the parts in strands, then the strands.
	for (uint i = t; i < JOINS * ALL; i += THREADS) {
		uint strand = i / ALL, j = i % ALL, h = j / VECTORS, v = j % VECTORS;
		if (h >= mine) {
			continue;
		}
		uint from = (row_head + h) * splits;
		float top = LOWEST, l = 0;
		vec4 x = vec4(0);
		for (uint s = strand; s < parts; s += JOINS * JOIN) {
			vec4 value[JOIN];
			vec2 m[JOIN];
			[[unroll]] for (uint u = 0; u < JOIN; u++) {
				uint i = (from + min(s + u * JOINS, parts - 1)) * (VECTORS + 1);
				m[u] = p.partial.v[i + VECTORS].xy;
				value[u] = p.partial.v[i + v];
			}
			float highest = top;
			[[unroll]] for (uint u = 0; u < JOIN; u++) {
				highest = max(highest, m[u].x); // beyond the last part it is that part's
			}
			float f = exp2(top - highest);
			x *= f;
			l *= f;
			top = highest;
			[[unroll]] for (uint u = 0; u < JOIN; u++) {
				float w = s + u * JOINS < parts ? exp2(m[u].x - top) : 0;
				l += w * m[u].y;
				x += w * value[u];
			}
		}
		sums[i] = x;
		if (v == 0) {
			tops[strand * HEADS + h] = vec2(top, l);
		}
	}
	barrier();
	for (uint j = t; j < mine * VECTORS; j += THREADS) {
		uint h = j / VECTORS;
		float top = LOWEST, l = 0;
		[[unroll]] for (uint s = 0; s < JOINS; s++) {
			top = max(top, tops[s * HEADS + h].x);
		}
		vec4 x = vec4(0);
		[[unroll]] for (uint s = 0; s < JOINS; s++) {
			vec2 m = tops[s * HEADS + h];
			float w = exp2(m.x - top);
			l += w * m.y;
			x += w * sums[s * ALL + j];
		}
		finish(row, head + h, j % VECTORS, x, top, l);
	}
}
