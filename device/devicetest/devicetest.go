// Package devicetest opens a Vulkan device for tests: Lavapipe's CPU device unless another is asked for, with the validation layer, whose
// messages fail the test.
//
// The layer's synchronization checks see copies, and not what shaders read and write by address: a barrier missing between two dispatches
// has to show in results.
package devicetest

import (
	"cmp"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/coli-moe/coli/device"
)

// Environment variables.
const (
	DeviceEnv = "COLI_TEST_DEVICE" // the device to test on, as in device.Options.Select; llvmpipe if unset
	ciEnv     = "COLI_CI"          // 1: a machine without Vulkan fails tests instead of skipping them

	validationEnv = "COLI_TEST_VALIDATION" // 0: without the validation layer, on a machine that does not have it
)

// Open opens the test device and closes it when the test ends; buffers that are not freed by then fail the test. It skips the test on a
// machine without Vulkan, or without the validation layer.
func Open(tb testing.TB) *device.Device {
	tb.Helper()
	return OpenWith(tb, device.Options{})
}

// OpenWith is Open with options, as Options sets them.
func OpenWith(tb testing.TB, o device.Options) *device.Device {
	tb.Helper()
	d, err := device.Open(Options(tb, o))
	if err != nil {
		Skip(tb, err)
	}
	tb.Cleanup(func() {
		for _, u := range d.Usage() {
			tb.Errorf("%d bytes of %s are not freed", u.Bytes, u.Name)
		}
		if err := d.Close(); err != nil && !errors.Is(err, device.ErrLost) {
			tb.Errorf("closing the device: %v", err)
		}
	})
	return d
}

// Options are o for a test that opens the device by other means: Select, Validation and Message are set here.
func Options(tb testing.TB, o device.Options) device.Options {
	var mu sync.Mutex
	ended := false
	o.Select, o.Validation = cmp.Or(os.Getenv(DeviceEnv), "llvmpipe"), os.Getenv(validationEnv) != "0"
	o.Message = func(text string) {
		mu.Lock()
		defer mu.Unlock()
		if !ended && !ignored(text) {
			tb.Errorf("validation: %s", text)
		}
	}
	tb.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
	})
	return o
}

// Skip skips a test that has no device because of err; where the tests must have one (COLI_CI=1) it fails it.
func Skip(tb testing.TB, err error) {
	tb.Helper()
	if os.Getenv(ciEnv) == "1" {
		tb.Fatalf("no device to test on: %v", err)
	}
	tb.Skipf("no device to test on: %v", err)
}

// ignored are messages that say nothing about coli.
func ignored(text string) bool {
	return strings.Contains(text, "lvp is not a conformant vulkan implementation") || // Lavapipe greets so
		strings.Contains(text, "terminator_CreateInstance") // a driver of another card does not load
}
