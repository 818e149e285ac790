package messages

// The conversation about the device's copy of the KV cache. The host's rows are the cache; the device has a copy of some.
//
//	executor ── KVReady ────▶ kv mirror   before a step, where the device lacks room or rows for it; answered by the message's join
//	executor ── KVWrote ────▶ kv mirror   after a frame: rows the device wrote, to be copied to the host; likewise, when they are there
//	executor ── KVRelease ──▶ kv mirror   a conversation is over; likewise, when its memory is free
//
// The sender owns the messages and uses them again once they are answered. In between, what their slices refer to is the mirror's.

// KVReady asks that the device has what a step needs of some caches.
type KVReady struct {
	Header
	Join
	Caches []KVCache
}

// KVCache is the cache of one layer in one conversation.
type KVCache struct {
	ID             int32 // of the copy, given by the sender, dense from 0
	Layer          int32 // for messages to the user
	KWidth, VWidth int32 // float32 values of a row

	Rows int       // the device must have room for this many,
	K, V []float32 // and these of the host's, from the first on
	Mark int       // of which so many are there, unless the copy moves

	Room         int    // answered: rows there is room for,
	KAddr, VAddr uint64 // and where the first is
}

// KVWrote hands over rows that the device has written to host memory.
type KVWrote struct {
	Header
	Join
	Copies []KVCopy
}

// KVCopy is a run of floats to be copied.
type KVCopy struct{ Dst, Src []float32 }

// KVRelease gives up the copies of some caches.
type KVRelease struct {
	Header
	Join
	IDs []int32
}
