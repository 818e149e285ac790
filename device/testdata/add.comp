#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

// y[i] = x[i] + step · workgroups
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint step = 1;
layout(buffer_reference, scalar) buffer Numbers { uint v[]; };
layout(push_constant, scalar) uniform Push { uint64_t x, y; uint n; } p;

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < p.n) Numbers(p.y).v[i] = Numbers(p.x).v[i] + step * gl_NumWorkGroups.x;
}
