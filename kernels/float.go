package kernels

import (
	"unsafe"

	"github.com/coli-moe/coli/weights/format"
)

// floatKernel is one instruction set's product of a float format with float32 activations.
//
// The order of its sums: with AVX-512, column c goes to lane c%16 of vector c/16%2, in rising order, then v0+v1; with AVX2, to lane c%8
// of vector c/8%4, then (v0+v1)+(v2+v3); and over the lanes as panel.go has it. Absent columns count as zeros. With F8E4M3, column c goes to
// lane c%16 or c%8; each lane sums the columns that share a scale, in rising order, and then acc = fma(sum, scale, acc).
type floatKernel struct {
	// row sets dst[i] for n weight rows, stride bytes apart, and one activation row of cols values.
	row func(dst *float32, w *byte, stride, n int, x *float32, cols int)
	// rows does the same for four activation rows; args points to a floatArgs.
	rows func(args *byte, w *byte, stride, n, cols int)
}

// floatArgs is read by the assembly, which knows its layout (gen/float.go).
type floatArgs struct {
	dst, x [4]*float32
}

// floatKernels has what assembly there is, F32's for every instruction set that has any. The rest goes through format.Decode.
var floatKernels = map[format.Format]*[numISAs]*floatKernel{}

// registerFloat is for the init functions of the formats' files.
func registerFloat(f format.Format, i isa, k *floatKernel) {
	if floatKernels[f] == nil {
		floatKernels[f] = new([numISAs]*floatKernel)
	}
	floatKernels[f][i] = k
}

// floatMatMul returns the product of f for the highest instruction set not above limit, and whether it reads the weights as they are.
func floatMatMul(f format.Format, limit isa) (used isa, direct bool, m matmulFunc) {
	if impls := floatKernels[f]; impls != nil {
		if i, k := best(*impls, limit); k != nil {
			return i, true, k.matmul
		}
	}
	var f32 *floatKernel
	if impls := floatKernels[format.F32]; impls != nil {
		used, f32 = best(*impls, limit)
	}
	return used, f == format.F32, decoded(f, f32)
}

// decoded returns the product that decodes each weight row once and gives it to k, or to Go if k is nil.
func decoded(f format.Format, k *floatKernel) matmulFunc {
	return func(dst []float32, ldd int, w []byte, stride, n int, x *Input, rows []int32) {
		p := panels.Get().(*panel)
		defer panels.Put(p)
		p.a = grow(p.a, x.Cols)
		for i := range n {
			if err := format.Decode(f, p.a, w[i*stride:][:stride]); err != nil {
				panic("kernels: " + err.Error()) // the sizes are MatMul's own
			}
			if k != nil {
				k.matmul(dst[i:], ldd, unsafe.Slice((*byte)(unsafe.Pointer(&p.a[0])), 4*x.Cols), 4*x.Cols, 1, x, rows)
				continue
			}
			for j, r := range rows {
				dst[j*ldd+i] = dotGeneric(p.a, x.F32[int(r)*x.Cols:][:x.Cols])
			}
		}
	}
}

// weightBlock is about how many bytes of weights all activation rows pass before the next ones: they stay in the L2 cache.
const weightBlock = 512 << 10

func (k *floatKernel) matmul(dst []float32, ldd int, w []byte, stride, n int, x *Input, rows []int32) {
	step := max(1, weightBlock/stride)
	p := panels.Get().(*panel)
	defer panels.Put(p)
	a := &p.floats
	for i := 0; i < n; i += step {
		count := min(step, n-i)
		for j := 0; j < len(rows); {
			if j+4 > len(rows) {
				k.row(&dst[j*ldd+i], &w[i*stride], stride, count, &x.F32[int(rows[j])*x.Cols], x.Cols)
				j++
				continue
			}
			for g := range a.x {
				a.dst[g], a.x[g] = &dst[(j+g)*ldd+i], &x.F32[int(rows[j+g])*x.Cols]
			}
			k.rows((*byte)(unsafe.Pointer(a)), &w[i*stride], stride, count, x.Cols)
			j += 4
		}
	}
	*a = floatArgs{} // the pool shall not keep the caller's memory alive
}
