// The frame of the gemm kernels: which tile a workgroup computes, where its weights and rows are, and what happens to the results.
// GEMMPush in gemm.go says what the fields mean.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#include "activation.glsl"

layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint ROWS = 64; // rows of a tile
layout(constant_id = 2) const uint FORMAT = 4;
layout(constant_id = 3) const uint ACT = 0; // the activation of a gated unit, by the numbers of norm.go
layout(local_size_x_id = 0) in;

const uint F32 = 0, F16 = 1, BF16 = 2, Q5_K = 3, Q8_0 = 4, I8ROW = 5, Q4_0 = 6, I4G64 = 7, MXFP4 = 8, Q4_K = 9, Q6_K = 10;

const bool GATED = ACT != 0;
const uint OUTS = 64; // weight rows of a tile
const uint PITCH = 5; // uvec4 from one row to the next in shared memory: 64 bytes, and 16 that spread rows over the banks

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer U32x4 { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer U32x2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer U32 { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) readonly buffer U16 { uint16_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 1) readonly buffer U8 { uint8_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer F32x4 { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer F32x2 { vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer U64 { uint64_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer F32x1 { float v[]; };

layout(push_constant, std430) uniform Push {
	uint64_t w, x, xd, y, bias, tiles, pairs, s_offset;
	uint q_stride, s_stride, rows, out_, cols, matrix, divide, flags;
} p;

uint64_t gate, up;         // the matrices; up is used if gated
uint first_out;            // the tile's first output
uint count;                // rows the tile has
shared uint row_of[ROWS];  // which row of y each of them is

// begin finds the tile. It is false if there is nothing to do, for the whole workgroup.
bool begin() {
	first_out = gl_WorkGroupID.x * (GATED ? OUTS / 2 : OUTS);
	uint first = gl_WorkGroupID.y * ROWS, lane = gl_LocalInvocationIndex;
	gate = p.w;
	if (p.tiles != 0) {
		uvec4 tile = U32x4(p.tiles).v[gl_WorkGroupID.y]; // expert, first pair, pairs
		first = tile.y;
		count = tile.z;
		if (count == 0) return false;
		gate = U64(p.w).v[tile.x * 3 + p.matrix];
		if (GATED) {
			gate = U64(p.w).v[tile.x * 3];
			up = U64(p.w).v[tile.x * 3 + 1];
			if (up == 0) return false;
		}
		if (gate == 0) return false;
		if (lane < count) row_of[lane] = U32(p.pairs).v[first + lane];
	} else {
		count = min(ROWS, p.rows - first);
		if (lane < count) row_of[lane] = first + lane;
	}
	barrier();
	return true;
}

// A gated tile has 16 rows of gate, the same 16 of up, and so on, so that both halves of a product are in one thread.
uint out_of(uint o) { return first_out + (GATED ? o / 32 * 16 + o % 16 : o); }

uint64_t matrix_of(uint o) { return GATED && (o & 16) != 0 ? up : gate; }

// source is the row of x that row r < count reads.
uint source(uint r) { return p.tiles == 0 ? row_of[r] : row_of[r] / p.divide; }

float activate(float x) { return activate(vec4(x), ACT).x; }

// finish writes the value of local output o and row r.
void finish(uint o, uint r, float v) {
	uint out_ = out_of(o);
	if (r >= count || out_ >= p.out_) return;
	F32x1 y = F32x1(p.y + (uint64_t(row_of[r]) * p.out_ + out_) * 4);
	if (!GATED && p.bias != 0) v += F32x1(p.bias).v[out_];
	y.v[0] = (p.flags & 1) != 0 ? y.v[0] + v : v;
}
