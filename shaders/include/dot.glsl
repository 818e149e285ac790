// dot4 adds the products of four pairs of int8 to sum: with DOT as one instruction.
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
// OpSDot, with the capabilities DotProduct and DotProductInput4x8BitPacked; the form is PackedVectorFormat4x8Bit.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int packedDot(uint a, uint b, spirv_literal int form);

int dot4(uint a, uint b, int sum) { return sum + packedDot(a, b, 0); }
#else
int dot4(uint a, uint b, int sum) {
	[[unroll]] for (int i = 0; i < 32; i += 8) {
		sum += bitfieldExtract(int(a), i, 8) * bitfieldExtract(int(b), i, 8);
	}
	return sum;
}
#endif
