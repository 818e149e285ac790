// The integer form of activations, as package kernels makes it: 8 neighbouring lanes hold a block of 32 columns, 4 each.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

// a/b rounded to the nearest. A GPU's own division may be off by more, and a quotient that is off by one bit now and then rounds to another
// integer. The remainder is exact without relying on fma, which may round twice: Dekker's product of halves of 12 bits. There must be no
// loop around it: spirv-opt forgets about precise when it unrolls.
vec4 quotient(vec4 a, float b) {
	precise float r = 1.0 / b;
	precise vec4 q = a * r;
	precise vec4 product = q * b;
	vec4 qh = uintBitsToFloat(floatBitsToUint(q) & 0xfffff000u);
	float bh = uintBitsToFloat(floatBitsToUint(b) & 0xfffff000u);
	precise vec4 ql = q - qh;
	precise float bl = b - bh;
	precise vec4 error = ql * bl - (((product - qh * bh) - ql * bh) - qh * bl);
	precise vec4 rest = (a - product) - error;
	precise vec4 result = q + rest * r;
	return result;
}

// quantize writes block `block` (of all rows) from the four values of this lane. All lanes of the block call it.
void quantize(Words xq, Pairs xd, uint block, vec4 x, bool write) {
	uvec4 bits = floatBitsToUint(x) & 0x7fffffffu; // by which a NaN is larger than infinity
	uint top = max(max(bits.x, bits.y), max(bits.z, bits.w));
	top = max(top, subgroupShuffleXor(top, 1));
	top = max(top, subgroupShuffleXor(top, 2));
	top = max(top, subgroupShuffleXor(top, 4));
	// A small block is divided as one 2^64 times as large: the remainders would be below the smallest normal number.
	bool small = top < 0x20000000u;
	float up = small ? uintBitsToFloat(0x5f800000u) : 1, down = small ? uintBitsToFloat(0x1f800000u) : 1;
	float d = quotient(vec4(uintBitsToFloat(top) * up), 127.0).x;
	ivec4 q = ivec4(0);
	// Below the smallest normal number a device may take d for 0; so small a block is 0 here.
	if (top >= 0x7f800000u) {
		d = uintBitsToFloat(0x7fc00000u);
	} else if (top < 0x04000000u) {
		d = 0;
	} else {
		q = clamp(ivec4(roundEven(quotient(x * up, d))), -127, 127);
		d *= down;
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
