package engine

import (
	"os"
	"path/filepath"
)

// nodes are how a driver reaches a card. GPUs of phones (/dev/kgsl-3d0, /dev/mali0) are not among them: they are part of a processor, and
// such a device has to be asked for.
var nodes = []string{
	"/dev/dri/renderD*", // of all that the kernel's own drivers know: AMD's, Intel's, NVIDIA's with its module for displays or with nouveau
	"/dev/nvidia[0-9]*", // NVIDIA's driver; in containers it often has nothing else
	"/dev/nvidiactl",    // likewise
	"/dev/dxg",          // what Windows lends to WSL
}

// drivers are variables that name Vulkan drivers, or its loader: whoever sets one wants them to be looked at.
var drivers = []string{"VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "COLI_VK_LOADER"}

// cardInSight says whether looking for a card can find one. The drivers of a machine without one take longer to load than the first answer
// of a small model.
func cardInSight() bool { return inSight(os.Getenv, filepath.Glob) }

func inSight(env func(string) string, glob func(string) ([]string, error)) bool {
	for _, name := range drivers {
		if env(name) != "" {
			return true
		}
	}
	for _, pattern := range nodes {
		if found, err := glob(pattern); len(found) > 0 || err != nil {
			return true
		}
	}
	return false
}
