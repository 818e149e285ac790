package device

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/coli-moe/coli/device/internal/vk"
)

func TestChoose(t *testing.T) {
	card := func(name string, kind Type, missing string) candidate {
		return candidate{Info: Info{Name: name, Type: kind, Missing: missing}}
	}
	old, new := card("Old Card", Discrete, "Vulkan 1.2"), card("New Card", Discrete, "")
	chip, lavapipe := card("Some Graphics", Integrated, ""), card("llvmpipe", CPU, "")
	for _, tt := range []struct {
		all      []candidate
		selected string
		want     string // a name, or what the error says
	}{
		{[]candidate{new, chip, lavapipe}, "", "New Card"},
		{[]candidate{old, chip, lavapipe}, "", "Some Graphics"},
		{[]candidate{old, lavapipe}, "", "Old Card"},
		{[]candidate{lavapipe}, "", "name it to use it"},
		{nil, "", "no Vulkan device"},
		{nil, "llvmpipe", "no Vulkan device"},
		{[]candidate{old, new, lavapipe}, "1", "New Card"},
		{[]candidate{old, new, lavapipe}, "card", "Old Card"},
		{[]candidate{old, new, lavapipe}, "LLVM", "llvmpipe"},
		{[]candidate{new, lavapipe}, "2", "no Vulkan device 2; there are 0 New Card, 1 llvmpipe"},
		{[]candidate{new}, "-1", "no Vulkan device -1"},
		{[]candidate{new, lavapipe}, "radeon", `no Vulkan device named "radeon"; there are 0 New Card, 1 llvmpipe`},
	} {
		c, err := choose(tt.all, tt.selected)
		switch {
		case err == nil && c.Name != tt.want:
			t.Errorf("%q: %s, want %s", tt.selected, c.Name, tt.want)
		case err != nil && (!errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%q: %v, want %s", tt.selected, err, tt.want)
		}
	}
}

func TestSubgroupSize(t *testing.T) {
	for _, tt := range []struct{ choice, least, most, want int }{
		{32, 32, 32, 32}, // NVIDIA's
		{64, 32, 64, 64}, // AMD's
		{32, 8, 32, 32},  // Intel's
		{8, 8, 8, 8},     // llvmpipe's with AVX,
		{4, 4, 4, 4},     // and without: it cannot be used
		{4, 4, 16, 8},
		{128, 64, 128, 64},
		{128, 128, 128, 128},
	} {
		if got := subgroupSize(tt.choice, tt.least, tt.most); got != tt.want {
			t.Errorf("%d of %d to %d: %d, want %d", tt.choice, tt.least, tt.most, got, tt.want)
		}
	}
}

// TestSmallDevices: shaders would give wrong results there, or not run.
func TestSmallDevices(t *testing.T) {
	d := openUnchecked(t)
	defer d.Close() //nolint:errcheck // not what is tested
	for want, most := range map[string]struct{ subgroup, invocations uint32 }{
		"subgroups of 8 to 64":         {4, 1024},
		"workgroups of 512 invocation": {8, 256},
	} {
		openSmaller(t, d, most.subgroup, most.invocations, want)
	}
}

// openSmaller opens a device like d, but with other subgroups and smaller workgroups, which must fail.
func openSmaller(t *testing.T, d *Device, subgroup, invocations uint32, want string) {
	vulkan := d.instance.Instance
	get := uintptr(reflect.ValueOf(vulkan).Elem().FieldByName("getPhysicalDeviceProperties2").Uint())
	defer replaceIn(vulkan, "getPhysicalDeviceProperties2", func(device uintptr, p *vk.PhysicalDeviceProperties2) uintptr {
		purego.SyscallN(get, device, uintptr(unsafe.Pointer(p)))
		p.Properties.Limits.MaxComputeWorkGroupInvocations = invocations
		for b := &p.Base; b != nil; b = (*vk.Base)(b.Next) {
			switch b.SType {
			case 50: // of PhysicalDeviceVulkan11Properties
				(*vk.PhysicalDeviceVulkan11Properties)(unsafe.Pointer(b)).SubgroupSize = subgroup
			case 1000225000: // of PhysicalDeviceSubgroupSizeControlProperties
				sizes := (*vk.PhysicalDeviceSubgroupSizeControlProperties)(unsafe.Pointer(b))
				sizes.MinSubgroupSize, sizes.MaxSubgroupSize = subgroup, subgroup
			}
		}
		return 0
	})()
	if _, err := Open(d.opts); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), want) {
		t.Errorf("opening gives %v, want %q", err, want)
	}
}

// TestComputeFamily: frames go to a queue that does not draw, where there is one.
func TestComputeFamily(t *testing.T) {
	const draws, computes, copies = vk.QueueGraphicsBit, vk.QueueComputeBit, 4
	for _, tt := range []struct {
		name     string
		families []uint32
		want     int
	}{
		{"NVIDIA", []uint32{draws | computes | copies, copies, computes | copies, 32}, 2},
		{"AMD", []uint32{draws | computes | copies, computes | copies, copies}, 1},
		{"one for all", []uint32{draws | computes | copies}, 0},
		{"none computes", []uint32{draws | copies, copies}, -1},
	} {
		var families []vk.QueueFamilyProperties
		for _, flags := range tt.families {
			families = append(families, vk.QueueFamilyProperties{QueueFlags: flags})
		}
		if got := computeFamily(families); got != tt.want {
			t.Errorf("%s: family %d, want %d", tt.name, got, tt.want)
		}
	}
}
