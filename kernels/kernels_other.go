//go:build !amd64

package kernels

func detect() isa { return generic }

func vectorsOf(isa) vector { return vectorGeneric }
