#version 460
// Norm, clamp, rotation and store of the rows of q, k and v: see rope.go.
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"
#include "reduce.glsl"
#include "qkv.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEEP = 1; // units an invocation holds

layout(push_constant) uniform Push {
	Floats q, k, v, qw, kw;
	Pairs table;
	Places places;
	Mirrors mirrors;
	Floats stage_k, stage_v;
	uint rows, heads, kv_heads, head_dim, dim;
	float eps, limit;
	uint flags;
} p;

const uint NORM = 1, WHOLE = 2, PLUS_ONE = 4;

vec4 weight(vec4 w) { return (p.flags & PLUS_ONE) != 0 ? w + 1 : w; }

void main() {
	uint row = gl_WorkGroupID.y, part = gl_WorkGroupID.x;
	bool whole = (p.flags & WHOLE) != 0;
	uint qparts = whole ? 1 : p.heads, kparts = whole ? 1 : p.kv_heads;
	uint tensor = part < qparts ? 0 : part < qparts + kparts ? 1 : 2; // q, k, v
	uint heads = tensor == 0 ? p.heads : p.kv_heads;                   // of the tensor
	uint head0 = whole ? 0 : part - (tensor == 0 ? 0 : tensor == 1 ? qparts : qparts + kparts);
	uint count = whole ? heads : 1; // heads of this workgroup
	Vectors x = Vectors(tensor == 0 ? p.q : tensor == 1 ? p.k : p.v);
	uint row0 = row * heads * p.head_dim / 4; // in vectors
	uint per = p.head_dim / 8, units = count * per, rotated = p.dim / 8;
	ivec2 at = p.places.v[row];

	bool norm = (p.flags & NORM) != 0 && tensor != 2; // the same in the whole workgroup
	Vectors w = Vectors(tensor == 0 ? p.qw : p.kw);
	Vectors mirror, stage;
	bool staged = false;
	if (tensor != 0) {
		mirror = Vectors(p.mirrors.v[2 * at.y + tensor - 1]);
		stage = Vectors(tensor == 1 ? p.stage_k : p.stage_v);
		staged = given(p.stage_k);
	}

	// All that is read is asked for before the sum, which waits for it.
	vec4 a[KEEP], b[KEEP], wa[KEEP], wb[KEEP], t0[KEEP], t1[KEEP];
	float sum = 0;
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		uint unit = k * gl_WorkGroupSize.x + place();
		a[k] = b[k] = wa[k] = wb[k] = t0[k] = t1[k] = vec4(0);
		if (unit < units) {
			uvec2 own = vectors_of(unit, per, rotated);
			uint u = unit % per, i = row0 + head0 * p.head_dim / 4;
			a[k] = x.v[i + own.x];
			b[k] = x.v[i + own.y];
			if (norm) { // weights are of the whole projection, or of a head: it is the only one then
				wa[k] = w.v[own.x];
				wb[k] = w.v[own.y];
			}
			if (tensor != 2 && u < rotated) {
				Vectors t = Vectors(p.table);
				uint i = (at.x * p.dim / 2 + 4 * u) / 2;
				t0[k] = t.v[i];
				t1[k] = t.v[i + 1];
			}
			sum += squares(a[k], b[k]);
		}
	}
	float scale = 1;
	if (norm) {
		scale = norm_scale(workgroupSum(sum), count * p.head_dim, p.eps);
	}
	[[unroll]] for (uint k = 0; k < KEEP; k++) {
		uint unit = k * gl_WorkGroupSize.x + place();
		if (unit >= units) {
			continue;
		}
		uvec2 to = vectors_of(unit, per, rotated);
		vec4 y = a[k], z = b[k];
		if (norm) {
			y *= scale * weight(wa[k]);
			z *= scale * weight(wb[k]);
		}
		if (p.limit > 0) {
			y = limited(y, p.limit);
			z = limited(z, p.limit);
		}
		if (tensor != 2 && unit % per < rotated) {
			rotate(y, z, t0[k], t1[k]);
		}
		uint head = head0 * p.head_dim / 4;
		if (tensor == 0) {
			x.v[row0 + head + to.x] = y;
			x.v[row0 + head + to.y] = z;
			continue;
		}
		uint m = at.x * heads * p.head_dim / 4 + head;
		mirror.v[m + to.x] = y;
		mirror.v[m + to.y] = z;
		if (staged) {
			stage.v[row0 + head + to.x] = y;
			stage.v[row0 + head + to.y] = z;
		}
	}
}
