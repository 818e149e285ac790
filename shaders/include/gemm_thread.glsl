// Sums in registers: a thread has PER weight rows, those of own_out, and four rows, those of own_row.
const uint PER = ROWS * 16 / THREADS;

// own_out keeps a row of gate and that of up together: they are 2i and 2i+1.
uint own_out(uint i) {
	uint pair = gl_LocalInvocationIndex % (OUTS / PER) + OUTS / PER * (i / 2);
	return pair / 16 * 32 + pair % 16 + i % 2 * 16;
}

uint own_row(uint j) { return gl_LocalInvocationIndex / (OUTS / PER) + ROWS / 4 * j; }

float acc[PER][4];

void clear() {
	[[unroll]] for (uint i = 0; i < PER; i++) [[unroll]] for (uint j = 0; j < 4; j++) acc[i][j] = 0;
}

void write() {
	[[unroll]] for (uint j = 0; j < 4; j++)
		[[unroll]] for (uint i = 0; i < PER; i += GATED ? 2 : 1)
			finish(own_out(i), own_row(j), GATED ? activate(acc[i][j]) * acc[i + 1][j] : acc[i][j]);
}
