//go:build invariants

package kvmirror

// invariants has the machine check itself after every step.
const invariants = true
