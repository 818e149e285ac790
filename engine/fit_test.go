package engine

import "testing"

func TestPlanLayers(t *testing.T) {
	layers := []int64{10, 20, 10, 5}
	for _, tt := range []struct {
		name        string
		free, fixed int64
		tail        int64
		want        int
		n           int
		head        bool
	}{
		{"all, to the byte", 55, 3, 7, 4, 4, true},
		{"all but the head", 54, 3, 7, 4, 4, false},
		{"one byte less than the last layer", 47, 3, 7, 4, 3, false},
		{"a layer that does not fit ends it, though a later one would", 35, 3, 0, 4, 2, false},
		{"fewer than fit are asked for", 1000, 3, 7, 2, 2, false},
		{"more than there are", 1000, 3, 7, 9, 4, true},
		{"none asked for", 1000, 3, 0, 0, 0, false},
		{"not even the first", 12, 3, 0, 4, 0, false},
		{"the fixed part alone is too much", 2, 3, 0, 4, 0, false},
		{"nothing is free", 0, 0, 0, 4, 0, false},
	} {
		if n, head := planLayers(tt.free, tt.fixed, layers, tt.tail, tt.want); n != tt.n || head != tt.head {
			t.Errorf("%s: %d layers, head %v, want %d, %v", tt.name, n, head, tt.n, tt.head)
		}
	}
	// A device with room for exactly k layers gets k, whatever they weigh.
	sum := int64(3)
	for k := range len(layers) + 1 {
		if n, _ := planLayers(sum, 3, layers, 1, len(layers)); n != k {
			t.Errorf("room for %d layers: %d planned", k, n)
		}
		if k < len(layers) {
			sum += layers[k]
		}
	}
	if n, head := planLayers(100, 0, nil, 0, 5); n != 0 || head {
		t.Errorf("a model without layers: %d, %v", n, head)
	}
}

func TestGPULayers(t *testing.T) {
	for _, s := range []string{"-1", "some", "1.5", "", "99999999999"} {
		if err := new(GPULayers).Set(s); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
	for _, tt := range []struct {
		g     GPULayers
		n     int
		asked bool
	}{{"", 16, false}, {"auto", 16, false}, {"all", 16, true}, {"0", 0, false}, {"3", 3, true}, {"99", 16, true}} {
		if tt.g != "" {
			if err := new(GPULayers).Set(string(tt.g)); err != nil {
				t.Errorf("%q: %v", tt.g, err)
			}
		}
		if n, asked, err := tt.g.count(16); n != tt.n || asked != tt.asked || err != nil {
			t.Errorf("%q of 16 layers: %d, asked %v, error %v", tt.g, n, asked, err)
		}
	}
	if _, _, err := GPULayers("lots").count(16); err == nil {
		t.Error("a setting that is none was accepted")
	}
}
