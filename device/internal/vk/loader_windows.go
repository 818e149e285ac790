package vk

import (
	"path/filepath"

	"golang.org/x/sys/windows"
)

var loaderNames = []string{"vulkan-1.dll"}

// openLibrary looks in System32 and beside the program, never in the current directory; a name with a directory is opened as it is.
func openLibrary(name string) (uintptr, error) {
	flags := uintptr(windows.LOAD_LIBRARY_SEARCH_SYSTEM32 | windows.LOAD_LIBRARY_SEARCH_APPLICATION_DIR)
	if filepath.IsAbs(name) {
		flags |= windows.LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR
	}
	lib, err := windows.LoadLibraryEx(name, 0, flags)
	if err != nil {
		return 0, err
	}
	return windows.GetProcAddress(lib, "vkGetInstanceProcAddr")
}
