package device

import (
	"io/fs"
	"strings"
	"testing"
)

func TestAdviceLooksAtTheNodes(t *testing.T) {
	for _, tt := range []struct {
		nodes []string
		err   error
		want  string
	}{
		{nil, nil, "no /dev/dri/renderD*"},
		{[]string{"/dev/dri/renderD128"}, nil, "mesa-vulkan-drivers"},
		{
			[]string{"/dev/dri/renderD128"},
			&fs.PathError{Op: "open", Err: fs.ErrPermission},
			"/dev/dri/renderD128 may not be opened: add the user to the group `render`",
		},
		{[]string{"/dev/dri/renderD128"}, &fs.PathError{Op: "open", Err: fs.ErrInvalid}, "VK_DRIVER_FILES"},
	} {
		if got := adviseOn(tt.nodes, func(string) error { return tt.err }); !strings.Contains(got, tt.want) {
			t.Errorf("%q, %v: %q, want %q", tt.nodes, tt.err, got, tt.want)
		}
	}
}
