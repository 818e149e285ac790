package gpu

import (
	"testing"

	"github.com/coli-moe/coli/device/devicetest"
	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/parity"
	"github.com/coli-moe/coli/shaders"
	"github.com/coli-moe/coli/weights/format"
)

// open returns an executor on the test device.
func open(t testing.TB, o Options) *Executor {
	t.Helper()
	dev := devicetest.Open(t)
	e, err := New(dev, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("closing the executor: %v", err)
		}
	})
	return e
}

func TestParity(t *testing.T) {
	var all []*Executor
	parity.Run(t, parity.Config{
		New: func(t *testing.T) ops.Executor {
			e := open(t, Options{})
			all = append(all, e)
			return e
		},
		Integer: func(f format.Format) bool { return kernels.For(f).Form == kernels.FormQ8 },
		Formats: (*Executor)(nil).Supports,
		HeadDim: shaders.AttentionFits,
	})
	var sum Stats
	for _, e := range all {
		s := e.Stats()
		sum.MatMuls += s.MatMuls
		sum.Pairs += s.Pairs
		sum.Dispatches += s.Dispatches
	}
	if len(all) > 0 && (sum.MatMuls == 0 || sum.Pairs == 0 || sum.Dispatches == 0) {
		t.Errorf("the device did %+v: the table ran elsewhere", sum)
	}
}
