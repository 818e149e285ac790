package device

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/coli-moe/coli/device/internal/vk"
)

// instance is Vulkan, with the validation layer or without.
type instance struct{ *vk.Instance }

// instances are kept for the process: the loader unloads the drivers with the last instance, and NVIDIA's was no longer found after some
// forty loads in one process. Devices are looked for anew by every List and Open.
var instances struct {
	sync.Mutex
	all map[instanceKind]*instance
}

type instanceKind struct {
	loader     string // what the environment says
	validation bool
}

// openInstance returns the instance of a kind. A failure is tried again by the next call.
func openInstance(validation bool) (*instance, error) {
	instances.Lock()
	defer instances.Unlock()
	kind := instanceKind{os.Getenv(vk.LoaderEnv), validation}
	if i := instances.all[kind]; i != nil {
		return i, nil
	}
	i, err := newInstance(validation)
	if err != nil {
		return nil, explain(err)
	}
	if instances.all == nil {
		instances.all = map[instanceKind]*instance{}
	}
	instances.all[kind] = i
	return i, nil
}

const (
	validationLayer = "VK_LAYER_KHRONOS_validation"
	debugUtils      = "VK_EXT_debug_utils"
	portability     = "VK_KHR_portability_enumeration"
)

func newInstance(validation bool) (*instance, error) {
	name := vk.CString("coli")
	app := &vk.ApplicationInfo{PApplicationName: name, PEngineName: name, ApiVersion: vk.Version13}
	vk.Chain(app)
	info := &vk.InstanceCreateInfo{PApplicationInfo: app}
	chain := []vk.Extensible{info}
	have, err := vk.InstanceExtensions()
	if err != nil {
		return nil, err
	}
	var layers, extensions []string
	if slices.Contains(have, portability) {
		extensions = append(extensions, portability)
		info.Flags |= vk.InstanceCreateEnumeratePortabilityBitKHR
	}
	if validation {
		installed, err := vk.LayerNames()
		if err != nil {
			return nil, err
		}
		if !slices.Contains(installed, validationLayer) {
			return nil, fmt.Errorf("%s is not installed (package vulkan-validationlayers)", validationLayer)
		}
		layers = append(layers, validationLayer)
		extensions = append(extensions, debugUtils, "VK_EXT_validation_features")
		enable := new(uint32)
		*enable = vk.ValidationFeatureEnableSynchronizationValidationEXT
		chain = append(chain, &vk.ValidationFeaturesEXT{EnabledValidationFeatureCount: 1, PEnabledValidationFeatures: enable}, vk.MessengerInfo())
	}
	info.EnabledLayerCount, info.PpEnabledLayerNames = uint32(len(layers)), vk.CStrings(layers)
	info.EnabledExtensionCount, info.PpEnabledExtensionNames = uint32(len(extensions)), vk.CStrings(extensions)
	vk.Chain(chain...)
	i, err := vk.CreateInstance(info)
	if err != nil {
		return nil, err
	}
	if validation {
		if err := i.CreateMessenger(vk.MessengerInfo()); err != nil {
			i.Destroy()
			return nil, err
		}
	}
	return &instance{i}, nil
}

// explain says what to do when there is no Vulkan, or no card for it.
func explain(err error) error {
	switch {
	case errors.Is(err, ErrNoLoader):
		return fmt.Errorf("%w; install the Vulkan loader and the driver of your card (Debian, Ubuntu: libvulkan1 and mesa-vulkan-drivers or "+
			"NVIDIA's driver; macOS: MoltenVK), or name the loader with %s", err, vk.LoaderEnv)
	case errors.Is(err, vk.ErrorIncompatibleDriver):
		return fmt.Errorf("%w: the Vulkan loader has found no driver that works here: %s", ErrNoDevice, noDevice())
	case errors.Is(err, vk.ErrorInitializationFailed): // so loaders answer where drivers have no device
		return errNoCard()
	}
	return err
}

// errNoCard is for drivers without a device.
func errNoCard() error {
	return fmt.Errorf("%w: there are Vulkan drivers, but none of them finds a card that it is for: %s", ErrNoDevice, noDevice())
}
