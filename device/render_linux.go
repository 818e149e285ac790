package device

import (
	"fmt"
	"os"
	"path/filepath"
)

// noDevice says what to do about a missing device: often it is there, and its node may not be opened.
func noDevice() string {
	nodes, _ := filepath.Glob("/dev/dri/renderD*") //nolint:errcheck // the pattern is valid
	for _, n := range nodes {
		f, err := os.OpenFile(n, os.O_RDWR, 0)
		if err != nil && os.IsPermission(err) {
			return fmt.Sprintf("%s may not be opened: add the user to the group `render` (sudo usermod -aG render $USER) and log in again", n)
		}
		if err == nil {
			f.Close() //nolint:errcheck // nothing was written
		}
	}
	if len(nodes) == 0 {
		return "there is no /dev/dri/renderD* either: no card, or its kernel driver is not loaded"
	}
	return "install the card's Vulkan driver (Debian, Ubuntu: mesa-vulkan-drivers or NVIDIA's), or name its description with VK_DRIVER_FILES"
}
