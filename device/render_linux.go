package device

import (
	"fmt"
	"os"
	"path/filepath"
)

// noDevice says what to do about a missing device.
func noDevice() string {
	nodes, _ := filepath.Glob("/dev/dri/renderD*") //nolint:errcheck // the pattern is valid
	return adviseOn(nodes, func(node string) error {
		f, err := os.OpenFile(node, os.O_RDWR, 0)
		if err == nil {
			err = f.Close()
		}
		return err
	})
}

// adviseOn looks at the nodes through which drivers reach cards: often the card and its driver are there, and the user may not use it.
func adviseOn(nodes []string, open func(node string) error) string {
	for _, node := range nodes {
		if os.IsPermission(open(node)) {
			return fmt.Sprintf("%s may not be opened: add the user to the group `render` (sudo usermod -aG render $USER) and log in again", node)
		}
	}
	advice := "install the card's Vulkan driver (Debian, Ubuntu: mesa-vulkan-drivers, or NVIDIA's), or name its description with VK_DRIVER_FILES"
	if len(nodes) == 0 {
		return advice + "; there is no /dev/dri/renderD* either: no card, or the kernel's driver is not loaded"
	}
	return advice
}
