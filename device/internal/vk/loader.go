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

// loaders are the libraries opened, by the variable's value: for the process, since drivers do not bear being unloaded.
var loaders struct {
	sync.Mutex
	get map[string]proc // vkGetInstanceProcAddr
}

// openLoader returns vkGetInstanceProcAddr. A failure is tried again by the next call.
func openLoader() (proc, error) {
	loaders.Lock()
	defer loaders.Unlock()
	env := os.Getenv(LoaderEnv)
	if p, ok := loaders.get[env]; ok {
		return p, nil
	}
	names := loaderNames
	if env != "" {
		names = []string{env}
	}
	var tried []string
	for _, name := range names {
		p, err := openLibrary(name)
		if err == nil {
			if loaders.get == nil {
				loaders.get = map[string]proc{}
			}
			loaders.get[env] = proc(p)
			return proc(p), nil
		}
		tried = append(tried, fmt.Sprintf("%s: %v", name, err))
	}
	return 0, fmt.Errorf("%w (%s)", ErrNoLoader, strings.Join(tried, "; "))
}
