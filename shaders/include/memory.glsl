// Memory by device address: every kernel's arrays.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Vectors { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Ints { int v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Places { ivec2 v[]; };  // (pos, seq) of each row
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Mirrors { Floats v[]; }; // K and V of each seq

// Whether an optional address is given.
bool given(Floats f) { return uvec2(f) != uvec2(0); }

// Four values of a row from column i on, of which those before n count; the rest are 0. Rows whose columns are no multiple of four are not
// aligned to vectors: vec is a constant that says they are.
vec4 load4(Floats f, uint row, uint n, uint i, bool vec) {
	if (i >= n) {
		return vec4(0);
	}
	if (vec) {
		return Vectors(f).v[(row * n + i) / 4];
	}
	vec4 x = vec4(0);
	[[unroll]] for (uint c = 0; c < 4; c++) {
		if (i + c < n) {
			x[c] = f.v[row * n + i + c];
		}
	}
	return x;
}

void store4(Floats f, uint row, uint n, uint i, bool vec, vec4 x) {
	if (i >= n) {
		return;
	}
	if (vec) {
		Vectors(f).v[(row * n + i) / 4] = x;
		return;
	}
	[[unroll]] for (uint c = 0; c < 4; c++) {
		if (i + c < n) {
			f.v[row * n + i + c] = x[c];
		}
	}
}

// The tests are on the bits: a compiler may assume that no float is a NaN.
bool isNaN(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
bool finite(float x) { return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u; }
