package engine

import (
	"errors"
	"fmt"
	"strconv"
)

// GPULayers says how many layers a device runs: "auto" or "all", as many as fit, or a number. "" is "auto".
type GPULayers string

// The settings that are no numbers.
const (
	GPUAuto GPULayers = "auto" // on a device that is likely to be faster than the CPU
	GPUAll  GPULayers = "all"  // on whatever device there is
)

// Set takes the value of a flag.
func (g *GPULayers) Set(s string) error {
	if v := GPULayers(s); v == GPUAuto || v == GPUAll {
		*g = v
		return nil
	}
	if n, err := strconv.ParseInt(s, 10, 32); err != nil || n < 0 {
		return errors.New("want auto, all or a number of layers")
	}
	*g = GPULayers(s)
	return nil
}

func (g *GPULayers) String() string { return string(*g) }

// Type is what a flag's help calls the value.
func (g *GPULayers) Type() string { return "string" }

// count is the most layers of a model of so many; asked says that somebody wanted them on a device.
func (g GPULayers) count(layers int) (n int, asked bool, err error) {
	switch g {
	case "", GPUAuto:
		return layers, false, nil
	case GPUAll:
		return layers, true, nil
	}
	var checked GPULayers
	if err := checked.Set(string(g)); err != nil {
		return 0, false, fmt.Errorf("--gpu-layers %s: %w", g, err)
	}
	n, err = strconv.Atoi(string(g))
	return min(n, layers), n > 0, err
}

// planLayers says how many layers, from the first on and at most want, fit in the free bytes of a device beside the fixed ones, each with
// its own bytes, and whether the head does: it goes where the last layer is, if its bytes fit too.
func planLayers(free, fixed int64, layers []int64, tail int64, want int) (n int, head bool) {
	left := free - fixed
	for n < min(want, len(layers)) && layers[n] <= left {
		left -= layers[n]
		n++
	}
	return n, n > 0 && n == len(layers) && tail <= left
}
