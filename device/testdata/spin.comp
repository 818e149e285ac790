#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require

// Keeps the device busy for a number of rounds.
layout(local_size_x = 1) in;
layout(constant_id = 0) const uint rounds = 1;
layout(buffer_reference, scalar) buffer Number { uint v; };
layout(push_constant, scalar) uniform Push { Number x; } p;

void main() {
    uint v = p.x.v | 1;
    for (uint i = 0; i < rounds; i++) { v ^= v << 13; v ^= v >> 17; v ^= v << 5; }
    if (v == 0) p.x.v = 1; // so that the loop is needed
}
