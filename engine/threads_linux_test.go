package engine

import (
	"math"
	"testing"
)

func TestParseCPUMax(t *testing.T) {
	for s, want := range map[string]float64{
		"max 100000\n": math.Inf(1), "150000 100000\n": 1.5, "400000 100000": 4,
		"": math.Inf(1), "junk": math.Inf(1), "1 0": math.Inf(1), "-1 100": math.Inf(1),
	} {
		if got := parseCPUMax(s); got != want {
			t.Errorf("parseCPUMax(%q) = %v, want %v", s, got, want)
		}
	}
	if n, why := defaultThreads(); n < 1 || why == "" {
		t.Errorf("default threads %d, %q", n, why)
	}
}
