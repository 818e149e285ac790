package kernels

import (
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/coli-moe/coli/weights/format"
)

// fenced returns n bytes with memory that cannot be read right before them and right behind, the latter if atEnd.
func fenced(t *testing.T, n int, atEnd bool) []byte {
	t.Helper()
	page := os.Getpagesize()
	size := roundUp(n, page)
	m, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(m) })
	for _, fence := range [][]byte{m[:page], m[page+size:]} {
		if err := syscall.Mprotect(fence, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	if atEnd {
		return m[page+size-n : page+size : page+size]
	}
	return m[page : page+n : page+n]
}

func floatsOf(b []byte) []float32 { return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4) }

// No kernel reads beside its weights or activations: weights may be the last bytes of a mapped file.
func TestReadsNothingBeside(t *testing.T) {
	eachISA(t, func(t *testing.T, s *set) {
		rng := rand.New(rand.NewPCG(11, 12))
		for _, f := range format.All() {
			b := f.Info().Block
			for _, cols := range []int{b, 3 * b, 160, 320, 544, 768, 1056, 1, 9, 77, 1001} {
				if cols%b != 0 {
					continue
				}
				for _, atEnd := range []bool{false, true} {
					const n, rows = 3, 5
					row := randomRow(t, rng, f, cols)
					w := fenced(t, n*len(row), atEnd)
					for i := range n {
						copy(w[i*len(row):], row)
					}
					x := floatsOf(fenced(t, 4*rows*cols, atEnd))
					copy(x, randomFloats(rng, len(x)))
					var in Input
					in.Set(x, rows, cols)
					for r := range rows {
						in.quantize(s.vector, r)
					}
					dst := make([]float32, n*rows)
					s.kernels[f].MatMul(dst, n, w, n, &in, []int32{4})
					s.kernels[f].MatMul(dst, n, w, n, &in, []int32{0, 1, 2, 3, 4})
				}
			}
		}
		for _, n := range lengths {
			for _, atEnd := range []bool{false, true} {
				x, y := floatsOf(fenced(t, 4*n, atEnd)), floatsOf(fenced(t, 4*n, atEnd))
				s.dot(x, y)
				s.axpy(y, 1, x)
				s.add(y, x)
				s.scale(y, 2)
				s.mulScaled(y, x, y, 1, 1)
				s.siluMul(y, x, y)
				s.expSum(x, s.maximum(x))
				s.dotRows(x[:1], x, y, n, 1)
				s.axpyRows(x, y[:1], y, n, 1)
				s.decodeF16(x, fenced(t, 2*n, atEnd))
				s.decodeBF16(x, fenced(t, 2*n, atEnd))
			}
		}
	})
}
