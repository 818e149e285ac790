package engine

import (
	"io/fs"
	"path"
	"slices"
	"strings"
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

// TestLocked: cards of which the user may open none are a line that names the first and the groups; one that opens, or cannot for another
// reason, is not.
func TestLocked(t *testing.T) {
	for _, tt := range []struct {
		name  string
		nodes []string
		opens string
		err   error
		want  string
	}{
		{"no card", nil, "", fs.ErrPermission, ""},
		{"the kernel's driver", []string{"/dev/dri/renderD128", "/dev/dri/renderD129"}, "", fs.ErrPermission, "/dev/dri/renderD128"},
		{"NVIDIA's", []string{"/dev/nvidia0", "/dev/nvidiactl"}, "", fs.ErrPermission, "/dev/nvidia0"},
		{"the second may be opened", []string{"/dev/dri/renderD128", "/dev/dri/renderD129"}, "/dev/dri/renderD129", fs.ErrPermission, ""},
		{"NVIDIA's may be opened", []string{"/dev/dri/renderD128", "/dev/nvidia0"}, "/dev/nvidia0", fs.ErrPermission, ""},
		{"broken", []string{"/dev/dri/renderD128"}, "", fs.ErrInvalid, ""},
	} {
		glob := func(pattern string) ([]string, error) {
			return slices.DeleteFunc(slices.Clone(tt.nodes), func(node string) bool {
				ok, err := path.Match(pattern, node)
				return !ok || err != nil
			}), nil
		}
		err := locked(glob, func(node string) error {
			if node == tt.opens {
				return nil
			}
			return &fs.PathError{Op: "open", Path: node, Err: tt.err}
		})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want+" may not be opened: ") ||
			!strings.Contains(err.Error(), "`render` and `video`")) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
	}
}
