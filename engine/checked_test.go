//go:build race || invariants

package engine

// checked builds allocate: the race detector makes sync.Pool forget, and the tier's self-checks need memory.
const checked = true
