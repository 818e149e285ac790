package kernels

// Queries is how many queries DotTile and AxpyTile take.
const Queries = 4

// DotTile sets dst[i·ldd+j] = Σ q[i·size+c]·k[j·stride+c] over size columns, for i in [0, Queries) and j in [0, n): DotRows for each
// query, to the bit, in less time.
func DotTile(dst []float32, ldd int, q, k []float32, size, stride, n int) {
	if n > 0 {
		current().dotTile(dst[:(Queries-1)*ldd+n], ldd, q[:Queries*size], k[:(n-1)*stride+size], size, stride, n)
	}
}

// AxpyTile adds p[i·ldp+j]·v[j·stride+c] to acc[i·size+c], over size columns, for i in [0, Queries) and j in [0, n) in rising order: AxpyRows
// for each query, to the bit, in less time.
func AxpyTile(acc, p []float32, ldp int, v []float32, size, stride, n int) {
	if n > 0 {
		current().axpyTile(acc[:Queries*size], p[:(Queries-1)*ldp+n], ldp, v[:(n-1)*stride+size], size, stride, n)
	}
}

func dotTileGeneric(dst []float32, ldd int, q, k []float32, size, stride, n int) {
	for i := range Queries {
		dotRowsGeneric(dst[i*ldd:], q[i*size:][:size], k, stride, n)
	}
}

func axpyTileGeneric(acc, p []float32, ldp int, v []float32, size, stride, n int) {
	for i := range Queries {
		axpyRowsGeneric(acc[i*size:][:size], p[i*ldp:], v, stride, n)
	}
}
