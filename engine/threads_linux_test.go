package engine

import "testing"

func TestDefaultThreads(t *testing.T) {
	if n, why := defaultThreads(); n < 1 || why == "" {
		t.Errorf("default threads %d, %q", n, why)
	}
}
