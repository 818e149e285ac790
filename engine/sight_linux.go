package engine

import (
	"errors"
	"fmt"
	"io/fs"
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

// noAccess is an error where there are nodes and none may be opened: whoever has a card is told then why it is not used, unasked too.
func noAccess() error {
	return locked(filepath.Glob, func(node string) error {
		f, err := os.OpenFile(node, os.O_RDWR, 0)
		if err == nil {
			err = f.Close()
		}
		return err
	})
}

func locked(glob func(string) ([]string, error), open func(node string) error) (err error) {
	for _, pattern := range nodes {
		found, _ := glob(pattern) //nolint:errcheck // the patterns are valid
		for _, node := range found {
			if !errors.Is(open(node), fs.ErrPermission) {
				return nil
			}
			if err == nil {
				err = fmt.Errorf("%s may not be opened: add the user to the groups `render` and `video` "+
					"(sudo usermod -aG render,video $USER) and log in again; with --device none no card is looked for", node)
			}
		}
	}
	return err
}
