#version 460
// Attention for few rows whose queries are ready and whose keys and values are in the mirrors: see attention.go.
#extension GL_GOOGLE_include_directive : require
#include "attention.glsl"
