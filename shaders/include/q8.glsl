// The integer form of activations, as package kernels makes it: 8 neighbouring lanes hold a block of 32 columns, 4 each.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

// a/b rounded to the nearest: the division of a GPU may be off by more, and a quotient off by one bit now and then rounds to another integer.
float quotient(float a, float b) {
	precise float r = 1.0 / b;
	precise float q = a * r;
	return fma(fma(-q, b, a), r, q);
}

// quantize writes block `block` (of all rows) from the four values of this lane. All lanes of the block call it.
void quantize(Words xq, Pairs xd, uint block, vec4 x, bool write) {
	uvec4 bits = floatBitsToUint(x) & 0x7fffffffu; // by which a NaN is larger than infinity
	uint top = max(max(bits.x, bits.y), max(bits.z, bits.w));
	top = max(top, subgroupShuffleXor(top, 1));
	top = max(top, subgroupShuffleXor(top, 2));
	top = max(top, subgroupShuffleXor(top, 4));
	float d = quotient(uintBitsToFloat(top), 127.0);
	ivec4 q = ivec4(0);
	// Below the smallest normal number a device may take d for 0; so small a block is 0 here.
	if (top >= 0x7f800000u) {
		d = uintBitsToFloat(0x7fc00000u);
	} else if (top < 0x04000000u) {
		d = 0;
	} else {
		[[unroll]] for (uint c = 0; c < 4; c++) {
			q[c] = clamp(int(roundEven(quotient(x[c], d))), -127, 127);
		}
	}
	int sum = q.x + q.y + q.z + q.w;
	sum += subgroupShuffleXor(sum, 1);
	sum += subgroupShuffleXor(sum, 2);
	sum += subgroupShuffleXor(sum, 4);
	if (!write) {
		return;
	}
	uint lane = gl_SubgroupInvocationID % 8;
	uvec4 b = uvec4(q) & 0xffu;
	xq.v[block * 8 + lane] = b.x | b.y << 8 | b.z << 16 | b.w << 24;
	if (lane == 0) {
		xd.v[block] = vec2(d, d * float(sum));
	}
}
