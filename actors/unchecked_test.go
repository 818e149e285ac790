//go:build !race && !invariants

package actors

const checked = false
