package cpu

import (
	"testing"

	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/parity"
	"github.com/coli-moe/coli/weights/format"
)

func TestParity(t *testing.T) {
	for _, threads := range []int{1, 3} {
		parity.Run(t, parity.Config{
			New: func(t *testing.T) ops.Executor {
				e := New(threads)
				t.Cleanup(e.Close)
				return e
			},
			Integer: func(f format.Format) bool { return kernels.For(f).Form == kernels.FormQ8 },
		})
	}
}
