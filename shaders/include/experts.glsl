// The table of a layer's experts: the addresses of gate, up and down of each, 0 for what is not here.
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Experts { uint64_t v[]; };

// expertMatrix returns the address of one of the matrices (0 gate, 1 up, 2 down) of an expert, 0 for an id that is none.
uint64_t expertMatrix(Experts table, int id, uint experts, uint which) {
	return uint(id) < experts ? table.v[uint(id) * 3 + which] : 0;
}
