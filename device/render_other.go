//go:build !linux

package device

// noDevice says what to do about a missing device.
func noDevice() string {
	return "install the card's Vulkan driver, or name its description with VK_DRIVER_FILES"
}
