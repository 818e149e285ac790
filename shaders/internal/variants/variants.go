// Package variants is the table of the compute shaders: which modules are compiled from which source.
//
// Each file of kernels has a list of its own; All joins them.
package variants

import "slices"

// Variant is one SPIR-V module.
type Variant struct {
	Name    string   // of the module, and of its file in spv
	Source  string   // without ".comp"
	Defines []string // NAME or NAME=VALUE
	// Newer is true for a source that needs extensions which the glslc of Debian 12 does not know. glslang compiles it, and only where
	// there is one that does; elsewhere the committed module stands.
	Newer bool
}

// All lists every module.
func All() []Variant { return slices.Concat(gemv, gemm, others) }

// Sources lists every source once, in the order of All.
func Sources() []string {
	var out []string
	for _, v := range All() {
		if !slices.Contains(out, v.Source) {
			out = append(out, v.Source)
		}
	}
	return out
}
