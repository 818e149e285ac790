//go:build !amd64

package kernels

func detect() isa { return generic }

func vectorsOf(isa) vector { return vectorGeneric }

// lastCache is not known without the processor's own word.
func lastCache() int64 { return 0 }
