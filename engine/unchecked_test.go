//go:build !race && !invariants

package engine

const checked = false
