//go:build !windows

package vk

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// loaderNames are looked for where the system looks for libraries; macOS's dlopen looks for a bare name in the current directory, too, so
// there the names are whole (those of Vulkan's SDK and of Homebrew). MoltenVK is Vulkan without a loader.
var loaderNames = func() []string {
	if runtime.GOOS == "darwin" {
		return []string{
			"/usr/local/lib/libvulkan.1.dylib", "/opt/homebrew/lib/libvulkan.1.dylib",
			"/usr/local/lib/libMoltenVK.dylib", "/opt/homebrew/lib/libMoltenVK.dylib",
		}
	}
	return []string{"libvulkan.so.1", "libvulkan.so"}
}()

func openLibrary(name string) (uintptr, error) {
	lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, err
	}
	return purego.Dlsym(lib, "vkGetInstanceProcAddr")
}
