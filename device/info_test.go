package device

import (
	"errors"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	card := func(name string, kind Type, missing string) candidate {
		return candidate{Info: Info{Name: name, Type: kind, Missing: missing}}
	}
	old, new := card("Old Card", Discrete, "Vulkan 1.2"), card("New Card", Discrete, "")
	chip, lavapipe := card("Some Graphics", Integrated, ""), card("llvmpipe", CPU, "")
	for _, tt := range []struct {
		all      []candidate
		selected string
		want     string // a name, or what the error says
	}{
		{[]candidate{new, chip, lavapipe}, "", "New Card"},
		{[]candidate{old, chip, lavapipe}, "", "Some Graphics"},
		{[]candidate{old, lavapipe}, "", "Old Card"},
		{[]candidate{lavapipe}, "", "name it to use it"},
		{nil, "", "no Vulkan device"},
		{nil, "llvmpipe", "no Vulkan device"},
		{[]candidate{old, new, lavapipe}, "1", "New Card"},
		{[]candidate{old, new, lavapipe}, "card", "Old Card"},
		{[]candidate{old, new, lavapipe}, "LLVM", "llvmpipe"},
		{[]candidate{new, lavapipe}, "2", "no Vulkan device 2; there are 0 New Card, 1 llvmpipe"},
		{[]candidate{new}, "-1", "no Vulkan device -1"},
		{[]candidate{new, lavapipe}, "radeon", `no Vulkan device named "radeon"; there are 0 New Card, 1 llvmpipe`},
	} {
		c, err := choose(tt.all, tt.selected)
		switch {
		case err == nil && c.Name != tt.want:
			t.Errorf("%q: %s, want %s", tt.selected, c.Name, tt.want)
		case err != nil && (!errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%q: %v, want %s", tt.selected, err, tt.want)
		}
	}
}
