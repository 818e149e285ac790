#version 460
// Attention for rows of different conversations whose queries, keys and values are what the projections wrote: see attention.go.
#extension GL_GOOGLE_include_directive : require
#define QKV
#include "attention.glsl"
