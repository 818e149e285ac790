package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/engine"
)

func TestDeviceFlags(t *testing.T) {
	for _, tt := range []struct {
		device, layers         string // as given; "" for not at all
		wantDevice, wantLayers string
		asked                  bool
	}{
		{"", "", "", "auto", false},
		{"none", "", "none", "auto", false},
		{"CPU", "99", "none", "99", false}, // llama.cpp's word
		{"None", "all", "none", "all", false},
		{"llvmpipe", "", "llvmpipe", "auto", true},
		{"llvmpipe", "0", "llvmpipe", "0", false},
		{" 1 ", "", "1", "auto", true},
		{"Vulkan1", "", "1", "auto", true}, // llama.cpp's name
		{"vulkan card", "", "vulkan card", "auto", true},
		{"", "all", "", "all", true},
		{"", "auto", "", "auto", false},
		{"", "12", "", "12", true},
		{"", "-1", "", "all", true}, // as llama.cpp's users write it
		{"", "0", "", "0", false},
	} {
		var o deviceOptions
		o.flags(pflag.NewFlagSet("", pflag.ContinueOnError))
		if tt.device != "" {
			if err := o.device.Set(tt.device); err != nil {
				t.Errorf("--device %s: %v", tt.device, err)
			}
		}
		if tt.layers != "" {
			if err := o.layers.Set(tt.layers); err != nil {
				t.Errorf("--gpu-layers %s: %v", tt.layers, err)
			}
		}
		var opt engine.Options
		o.apply(&opt)
		if opt.Device != tt.wantDevice || opt.GPULayers.String() != tt.wantLayers || o.asked() != tt.asked {
			t.Errorf("--device %q --gpu-layers %q: device %q, layers %q, asked %v", tt.device, tt.layers, opt.Device, opt.GPULayers, o.asked())
		}
	}
	var layers layersFlag
	for _, s := range []string{"some", "1.5", "", "--1"} {
		if err := layers.Set(s); err == nil {
			t.Errorf("--gpu-layers %q was accepted", s)
		}
	}
}

// TestDeviceFaults: whatever fails on the device, and when, the command prints the CPU's words, says in one line what became of the
// layers, and succeeds.
func TestDeviceFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("some twenty runs of the command")
	}
	if ok, err := llvmpipe(); !ok {
		if err != nil {
			t.Fatal(err)
		}
		t.Skip("no llvmpipe among the Vulkan devices; mesa-vulkan-drivers has it")
	}
	run := func(fault string) (out, said string) {
		cmd := coli(t, "run", "--device", "llvmpipe", "--gpu-layers", "all", "--temp", "0", "-n", "8", "Hello")
		cmd.Env = append(cmd.Env, device.FaultEnv+"="+fault)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v\n%s", fault, err, &stderr)
		}
		return stdout.String(), stderr.String()
	}
	want, _ := run("")
	loading, step := 0, 0
	for _, kind := range []string{"alloc", "submit", "wait", "frame", "lost"} {
		hit := true
		for n := 1; hit; n = 2*n + n/2 + 1 {
			fault := fmt.Sprintf("%s=%d", kind, n)
			out, said := run(fault)
			if out != want {
				t.Errorf("%s: %q, want %q", fault, out, want)
			}
			atLoad := strings.Count(said, "did not reach the device") + strings.Count(said, "all layers on the CPU: ")
			inStep := strings.Count(said, "from here on everything runs on the CPU")
			if hit = atLoad+inStep > 0; atLoad+inStep > 1 {
				t.Errorf("%s: said more than once:\n%s", fault, said)
			}
			loading, step = loading+atLoad, step+inStep
		}
	}
	if loading == 0 || step == 0 {
		t.Errorf("the device failed %d times while loading and %d times in a step", loading, step)
	}
}
