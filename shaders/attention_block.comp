#version 460
// Causal grouped-query attention for many rows: a workgroup takes up to 64 rows of one conversation and one head, and walks the positions in
// blocks of 64. See attention.go.
//
// Invocation (ty, tx) of 8 × 16 has the scores of rows 8ty… and positions 4tx…, and of the output of these rows the vectors tx, tx+16, ….
// Rows of shared memory are 8 or 16 vectors, of which invocations read a column at a time: vector i of a row is kept at i ^ row/4, so that
// neighbours find theirs in different banks.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#include "memory.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint DIM = 128; // values of a head

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Tiles { ivec4 v[]; };

layout(push_constant) uniform Push {
	Vectors q, o;
	Mirrors mirrors;
	Places places;
	Floats sinks;
	Vectors gate;
	uvec2 xq, xd, partial, count;
	Tiles tiles;
	uint rows, heads, kv_heads, kwidth, vwidth, window, flags;
	float scale;
} p;

const uint SINK = 4, GATE = 8;
const float LOWEST = -3.0e38; // of scores; no infinity, so that differences are numbers
const float LOG2E = 1.44269504;

const uint ROWS = 64, BLOCK = 64, DIMS = 32;                // rows, positions, and columns of q and k staged at a time
const uint VECTORS = DIM / 4;                               // of a head
const uint OUTS = (VECTORS + 15) / 16;                      // vectors of the output an invocation has in each of its rows
const uint VALUES = DIM <= 64 ? 64 : DIM <= 128 ? 32 : 16;  // positions whose values are staged at a time

shared vec4 stage[1024];  // q and k [64, 8] each; then values [VALUES, VECTORS]
shared vec4 chances[1024]; // [position, row/4]: the weights

uint slot(uint row, uint i) { return row * 8 + (i ^ row / 4 % 8); }

void main() {
	// The last rows see the most positions: they begin first.
	ivec4 tile = p.tiles.v[gl_NumWorkGroups.x - 1 - gl_WorkGroupID.x];
	uint first = tile.x, count = tile.y;
	if (count == 0) {
		return;
	}
	uint head = gl_WorkGroupID.y, kv = head / (p.heads / p.kv_heads);
	uint t = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
	uint tx = t % 16, ty = t / 16;
	int seq = p.places.v[first].y;
	Vectors keys = Vectors(p.mirrors.v[2 * seq]), values = Vectors(p.mirrors.v[2 * seq + 1]);

	int pos[8]; // of the invocation's rows, -1 beyond the tile
	float top[8], l[8];
	vec4 acc[8][OUTS];
	[[unroll]] for (uint r = 0; r < 8; r++) {
		uint row = 8 * ty + r;
		pos[r] = row < count ? p.places.v[first + row].x : -1;
		top[r] = LOWEST;
		l[r] = 0;
		[[unroll]] for (uint n = 0; n < OUTS; n++) {
			acc[r][n] = vec4(0);
		}
	}

	for (int base = tile.z; base < tile.w; base += int(BLOCK)) {
		uint here = min(BLOCK, uint(tile.w - base)); // positions
		float s[8][4];
		[[unroll]] for (uint r = 0; r < 8; r++) {
			[[unroll]] for (uint c = 0; c < 4; c++) {
				s[r][c] = 0;
			}
		}
		for (uint d = 0; d < VECTORS; d += DIMS / 4) {
			barrier();
			[[unroll]] for (uint n = 0; n < 4; n++) {
				uint row = (n * 128 + t) / 8, i = t % 8;
				bool in_head = d + i < VECTORS;
				stage[slot(row, i)] = in_head && row < count ? p.q.v[((first + row) * p.heads + head) * VECTORS + d + i] : vec4(0);
				stage[512 + slot(row, i)] =
					in_head && row < here ? keys.v[((base + row) * p.kwidth + kv * DIM) / 4 + d + i] : vec4(0);
			}
			barrier();
			for (uint i = 0; i < DIMS / 4; i++) {
				vec4 q[8];
				[[unroll]] for (uint r = 0; r < 8; r++) {
					q[r] = stage[slot(8 * ty + r, i)];
				}
				[[unroll]] for (uint c = 0; c < 4; c++) {
					vec4 k = stage[512 + slot(4 * tx + c, i)];
					[[unroll]] for (uint r = 0; r < 8; r++) {
						s[r][c] = fma(q[r].x, k.x, fma(q[r].y, k.y, fma(q[r].z, k.z, fma(q[r].w, k.w, s[r][c]))));
					}
				}
			}
		}

		// The highest score of each row, over the 16 invocations that share it.
		float m[8];
		[[unroll]] for (uint r = 0; r < 8; r++) {
			m[r] = LOWEST;
			[[unroll]] for (uint c = 0; c < 4; c++) {
				int at = base + int(4 * tx + c);
				bool seen = at <= pos[r] && (p.window == 0 || at + int(p.window) > pos[r]);
				s[r][c] = seen ? s[r][c] * (p.scale * LOG2E) : uintBitsToFloat(0xff800000u);
				m[r] = max(m[r], s[r][c]);
			}
		}
		barrier();
		stage[tx * 16 + 2 * ty] = vec4(m[0], m[1], m[2], m[3]);
		stage[tx * 16 + 2 * ty + 1] = vec4(m[4], m[5], m[6], m[7]);
		barrier();
		vec4 low = vec4(top[0], top[1], top[2], top[3]), high = vec4(top[4], top[5], top[6], top[7]);
		[[unroll]] for (uint i = 0; i < 16; i++) {
			low = max(low, stage[i * 16 + 2 * ty]);
			high = max(high, stage[i * 16 + 2 * ty + 1]);
		}
		[[unroll]] for (uint r = 0; r < 8; r++) {
			m[r] = r < 4 ? low[r % 4] : high[r % 4];
			float f = exp2(top[r] - m[r]);
			top[r] = m[r];
			l[r] *= f;
			[[unroll]] for (uint n = 0; n < OUTS; n++) {
				acc[r][n] *= f;
			}
			[[unroll]] for (uint c = 0; c < 4; c++) {
				s[r][c] = exp2(s[r][c] - m[r]);
				l[r] += s[r][c];
			}
		}
		[[unroll]] for (uint c = 0; c < 4; c++) {
			uint row = (4 * tx + c) * 16;
			chances[row + (2 * ty ^ tx)] = vec4(s[0][c], s[1][c], s[2][c], s[3][c]);
			chances[row + (2 * ty + 1 ^ tx)] = vec4(s[4][c], s[5][c], s[6][c], s[7][c]);
		}

		for (uint v0 = 0; v0 < here; v0 += VALUES) {
			barrier();
			for (uint i = t; i < VALUES * VECTORS; i += 128) {
				uint row = v0 + i / VECTORS;
				stage[i] = row < here ? values.v[((base + row) * p.vwidth + kv * DIM) / 4 + i % VECTORS] : vec4(0);
			}
			barrier();
			for (uint i = 0; i < VALUES; i++) {
				uint row = v0 + i;
				vec4 a = chances[row * 16 + (2 * ty ^ row / 4)], b = chances[row * 16 + (2 * ty + 1 ^ row / 4)];
				[[unroll]] for (uint n = 0; n < OUTS; n++) {
					vec4 v = stage[i * VECTORS + min(tx + 16 * n, VECTORS - 1)];
					[[unroll]] for (uint r = 0; r < 8; r++) {
						acc[r][n] += (r < 4 ? a[r % 4] : b[r % 4]) * v;
					}
				}
			}
		}
	}

	barrier();
	stage[tx * 16 + 2 * ty] = vec4(l[0], l[1], l[2], l[3]);
	stage[tx * 16 + 2 * ty + 1] = vec4(l[4], l[5], l[6], l[7]);
	barrier();
	vec4 low = vec4(0), high = vec4(0);
	[[unroll]] for (uint i = 0; i < 16; i++) {
		low += stage[i * 16 + 2 * ty];
		high += stage[i * 16 + 2 * ty + 1];
	}
	[[unroll]] for (uint r = 0; r < 8; r++) {
		float sum = r < 4 ? low[r % 4] : high[r % 4], f = 1;
		if ((p.flags & SINK) != 0) {
			float sink = p.sinks.v[head] * LOG2E, m = max(top[r], sink);
			f = exp2(top[r] - m);
			sum = sum * f + exp2(sink - m);
		}
		[[unroll]] for (uint n = 0; n < OUTS; n++) {
			uint v = tx + 16 * n;
			if (8 * ty + r >= count || v >= VECTORS) {
				continue;
			}
			uint at = ((first + 8 * ty + r) * p.heads + head) * VECTORS + v;
			vec4 x = acc[r][n] * f / sum;
			if ((p.flags & GATE) != 0) {
				x /= 1 + exp(-p.gate.v[at]);
			}
			p.o.v[at] = x;
		}
	}
}
