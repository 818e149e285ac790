// Sums over a workgroup, in the same order always.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

// The invocation's place counted by subgroups, which gl_LocalInvocationIndex need not be.
uint place() { return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; }

shared float partOf[64]; // 256 invocations in subgroups of at least 4

// Every invocation gets the sum. A second call needs a barrier before it.
float workgroupSum(float x) {
	x = subgroupAdd(x);
	if (gl_NumSubgroups == 1) {
		return x;
	}
	if (subgroupElect()) {
		partOf[gl_SubgroupID] = x;
	}
	barrier();
	x = 0;
	for (uint i = 0; i < gl_NumSubgroups; i++) {
		x += partOf[i];
	}
	return x;
}
