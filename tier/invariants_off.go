//go:build !invariants

package tier

// invariants has the machine check itself after every step.
const invariants = false
