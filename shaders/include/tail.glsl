// The norm of rows in the tail of the product that completes them: what rmsnorm.comp would do in a stage of its own is done by the
// workgroup that ends last. A kernel defines TAIL, the id of the first of two constants, and its push constants end with those of TailNorm.
#include "arrive.glsl"
#include "reduce.glsl"
#include "norm.glsl"
#include "q8.glsl"

layout(constant_id = 0) const uint THREADS = 128;   // of a workgroup
layout(constant_id = TAIL) const uint LANES = 0;    // that a row has in rmsnorm.comp: the threads of a workgroup or a subgroup; 0: no norm
layout(constant_id = TAIL + 1) const uint KEEP = 1; // vectors that each of them holds

const uint TURNS = LANES == 0 ? 1 : (LANES + THREADS - 1) / THREADS; // an invocation does the work of so many lanes

layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Finished { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer FinishedVectors { vec4 v[]; };

// finish writes a value of the product.
void finish(Floats y, uint i, float x) {
	if (LANES != 0) {
		Finished(y).v[i] = x;
	} else {
		y.v[i] = x;
	}
}

// columnOf is where the j-th vector of this invocation begins in a row, beyond every row for a lane too many.
uint columnOf(uint j) {
	uint lane = j / KEEP * THREADS + place();
	return lane < LANES ? 4 * (j % KEEP * LANES + lane) : 0xffffffffu;
}

// normalise writes the norm of a row of y. The whole workgroup calls it.
void normalise(Floats y, uint row, uint cols, Floats weight, Floats outY, uint64_t q, uint scales, float eps) {
	// All that is read is asked for before the sum, which waits for it.
	vec4 v[TURNS * KEEP], w[TURNS * KEEP];
	[[unroll]] for (uint j = 0; j < TURNS * KEEP; j++) {
		uint i = columnOf(j);
		v[j] = w[j] = vec4(0);
		if (i < cols) {
			v[j] = FinishedVectors(y).v[(row * cols + i) / 4];
			w[j] = Vectors(weight).v[i / 4];
		}
	}
	uint parts = LANES / gl_SubgroupSize;
	[[unroll]] for (uint t = 0; t < TURNS; t++) {
		float sum = 0;
		[[unroll]] for (uint k = 0; k < KEEP; k++) {
			sum = squares(v[t * KEEP + k], sum);
		}
		sum = subgroupAdd(sum);
		uint part = t * gl_NumSubgroups + gl_SubgroupID;
		if (part < parts && subgroupElect()) {
			partOf[part] = sum;
		}
	}
	barrier();
	float sum = 0;
	for (uint i = 0; i < parts; i++) {
		sum += partOf[i];
	}
	float scale = normScale(sum / float(cols), eps);
	[[unroll]] for (uint j = 0; j < TURNS * KEEP; j++) {
		uint i = columnOf(j);
		vec4 x = v[j] * scale * w[j];
		if (given(outY) && i < cols) {
			Vectors(outY).v[(row * cols + i) / 4] = x;
		}
		if (q != 0) {
			quantize(Words(q), Pairs(q + scales), (row * cols + i) / 32, x, i < cols);
		}
	}
	barrier(); // the next row's parts
}
