package main

import (
	"testing"

	"github.com/spf13/pflag"

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
