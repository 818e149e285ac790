// The join of workgroups within a dispatch: each writes its part, arrives at a counter, and the last one reads all parts. The counter is 0
// before and after. What is written and read must be declared coherent.
#extension GL_KHR_memory_scope_semantics : require

layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Counters { uint v[]; };

shared bool lastToArrive;

// Whether this is the last of n workgroups. All invocations call it, and see what every workgroup wrote before its call if it is. One
// invocation releases and acquires for its workgroup: the barriers order the others' accesses before and behind it.
bool arrive(Counters count, uint i, uint n, uint place) {
	const int memory = gl_StorageSemanticsBuffer | gl_StorageSemanticsShared;
	controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, memory, gl_SemanticsAcquireRelease);
	if (place == 0) {
		lastToArrive = atomicAdd(count.v[i], 1, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease) == n - 1;
		if (lastToArrive) {
			count.v[i] = 0;
		}
	}
	controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, memory, gl_SemanticsAcquireRelease);
	return lastToArrive;
}
