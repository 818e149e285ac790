package messages

// The conversation about bytes on disk.
//
//	tier ── Read ───▶ prefetcher       into a slot the tier has reserved
//	tier ── Raise ──▶ prefetcher       a predicted read is wanted now
//	tier ── Cancel ─▶ prefetcher       a predicted read is no longer wanted; answered by Landed with ErrCanceled if it had not begun
//	tier ◀─ Landed ── prefetcher       once for every Read

// Priority orders reads.
type Priority uint8

// The priorities.
const (
	Demand    Priority = iota // a step waits for it
	Predicted                 // a step may want it
	Warm                      // filling memory at the start, from the history
)

// Read asks for an expert's record. Slot belongs to the prefetcher until Landed.
type Read struct {
	Header
	Key      Key
	Slot     int32  // the tier's number of the slot, returned in Landed
	Dst      []byte // the slot's memory, aligned for direct I/O
	Priority Priority
}

// Raise turns a queued read into one on demand.
type Raise struct {
	Header
	Key Key
}

// Cancel withdraws a read that has not begun.
type Cancel struct {
	Header
	Key Key
}

// Landed answers a Read.
type Landed struct {
	Header
	Key      Key
	Slot     int32
	Data     []byte // the record inside the slot's memory
	Bytes    int64  // read from the disk, alignment included
	Nanos    int64  // from the beginning of the read to its end
	Priority Priority
	Err      error // nil; ErrCanceled; or what went wrong, naming file and offset
}
