// Sums in cooperative matrices, for subgroups of 32: each has TALL × WIDE matrices of 16 rows × 16 outputs.
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

const uint TALL = 4 * ROWS / THREADS, WIDE = 2;
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define INTS coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
SUMS acc[TALL * WIDE];
shared float stage[THREADS / 32 * 256]; // a matrix of each subgroup

uint first_row() { return gl_SubgroupID / (OUTS / 16 / WIDE) * TALL * 16; }
uint first_o() { return gl_SubgroupID % (OUTS / 16 / WIDE) * WIDE * 16; }

void clear() {
	[[unroll]] for (uint i = 0; i < TALL * WIDE; i++) acc[i] = SUMS(0);
}

// values returns the eight values of a matrix that finish gets from this lane: 2i rows further down each.
void values(SUMS m, out float v[8]) {
	uint at = gl_SubgroupID * 256;
	subgroupBarrier();
	coopMatStore(m, stage, at, 16, gl_CooperativeMatrixLayoutRowMajor);
	subgroupBarrier();
	[[unroll]] for (uint i = 0; i < 8; i++) v[i] = stage[at + 32 * i + gl_SubgroupInvocationID];
}

void write() {
	uint o = first_o() + gl_SubgroupInvocationID % 16, r = first_row() + gl_SubgroupInvocationID / 16;
	[[unroll]] for (uint i = 0; i < TALL; i++)
		[[unroll]] for (uint j = 0; j < WIDE; j += GATED ? 2 : 1) {
			float v[8], u[8];
			values(acc[i * WIDE + j], v);
			if (GATED) values(acc[i * WIDE + j + 1], u);
			[[unroll]] for (uint k = 0; k < 8; k++)
				finish(o + 16 * j, r + 16 * i + 2 * k, GATED ? activate(v[k]) * u[k] : v[k]);
		}
}
