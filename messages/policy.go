package messages

import "github.com/coli-moe/coli/internal/loghist"

// The conversation about how experts are read.
//
//	engine ── Took ─────▶ balancer    after each decode step of a model that streams
//	balancer ── Sample ─▶ probe       what has the disk done? asked while a search is on, at most every 40 ms
//	balancer ◀─ BlockIO ─ probe       the answer
//	balancer ── Policy ─▶ prefetcher  how many reads at a time; the engine looks at the same policy before each step
//
// Nobody waits for any of these: without a balancer its last decision stands, without a probe it goes by Took alone.

// Took tells what a decode step took.
type Took struct {
	Header
	Nanos     int64  // the step's
	Waited    int64  // nanoseconds of it that the engine waited for the disk with nothing to compute
	Reading   int64  // nanoseconds of it with at least one read in flight
	ReadNanos int64  // of the reads that ended in it, from begin to end, summed: ReadNanos/Reading were in flight on average
	Reads     int64  // experts read during it
	Bytes     int64  // of them
	Policy    uint64 // the Policy.ID it was made under
}

// Sample asks the probe for its figures.
type Sample struct {
	Header
	To Address // gets BlockIO
}

// BlockIO is what the drive did since the last one, for this process.
type BlockIO struct {
	Header
	Known    bool  // the block layer was measured; otherwise only reads as the program saw them
	Requests int64 // to the drive
	Bytes    int64
	InFlight int64        // now
	Lost     int64        // completions that nobody saw
	Queue    loghist.Hist // before the drive had them
	Device   loghist.Hist // in the drive
	Read     loghist.Hist // whole reads of experts, as the program saw them
}

// Policy is how experts are read from now on.
type Policy struct {
	Header
	ID      uint64 // rises with each
	Readers int    // reads at a time
	Depth   int    // experts predicted for a layer and row; 0: none
	Horizon int    // layers with experts ahead that are predicted, 1: the next
}
