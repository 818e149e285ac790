package vk

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
)

// LoaderEnv names the environment variable that gives the Vulkan loader to open instead of the system's.
const LoaderEnv = "COLI_VK_LOADER"

// ErrNoLoader is why there is no Vulkan on this machine.
var ErrNoLoader = errors.New("no Vulkan loader")

// loader is the opened library, once for the process: drivers do not bear being unloaded.
var loader struct {
	sync.Mutex
	get proc // vkGetInstanceProcAddr
}

// openLoader returns vkGetInstanceProcAddr. A failure is tried again by the next call.
func openLoader() (proc, error) {
	loader.Lock()
	defer loader.Unlock()
	if loader.get != 0 {
		return loader.get, nil
	}
	names := loaderNames
	if s := os.Getenv(LoaderEnv); s != "" {
		names = []string{s}
	}
	var tried []string
	for _, name := range names {
		p, err := openLibrary(name)
		if err == nil {
			loader.get = proc(p)
			return loader.get, nil
		}
		tried = append(tried, fmt.Sprintf("%s: %v", name, err))
	}
	return 0, fmt.Errorf("%w (%s)", ErrNoLoader, strings.Join(tried, "; "))
}
