package engine

import (
	"path"
	"testing"
)

// TestCardInSight: without a node of the kernel's, and without a word about drivers, there is no card to look for.
func TestCardInSight(t *testing.T) {
	for _, tt := range []struct {
		name, variable, node string
		want                 bool
	}{
		{"nothing", "", "/dev/null", false},
		{"a display without a card", "", "/dev/dri/card0", false},
		{"the kernel's driver", "", "/dev/dri/renderD128", true},
		{"NVIDIA's in a container", "", "/dev/nvidia0", true},
		{"NVIDIA's second", "", "/dev/nvidia1", true},
		{"its control", "", "/dev/nvidiactl", true},
		{"WSL", "", "/dev/dxg", true},
		{"a driver is named", "VK_DRIVER_FILES", "/dev/null", true},
		{"by the old name", "VK_ICD_FILENAMES", "/dev/null", true},
		{"in addition", "VK_ADD_DRIVER_FILES", "/dev/null", true},
		{"the loader is named", "COLI_VK_LOADER", "/dev/null", true},
	} {
		env := func(name string) string {
			if name == tt.variable {
				return "something"
			}
			return ""
		}
		glob := func(pattern string) ([]string, error) {
			if ok, err := path.Match(pattern, tt.node); !ok || err != nil {
				return nil, err
			}
			return []string{tt.node}, nil
		}
		if got := inSight(env, glob); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
