package messages

import "errors"

// ErrCanceled is the error of a read that was withdrawn before it began.
var ErrCanceled = errors.New("read canceled")

// Predict tells the tier which experts a layer's next step will probably use, most probable first. Each call replaces the layer's last
// prediction.
type Predict struct {
	Header
	Layer   int32
	Experts []int32

	own [64]int32
}

// Set fills the message with a copy of experts, in memory of its own unless there are many.
func (m *Predict) Set(layer int32, experts []int32) {
	m.Layer, m.Experts = layer, append(m.own[:0], experts...)
}

// Tokens tells the tier that n tokens have been computed: heat ages by tokens, not by steps.
type Tokens struct {
	Header
	N int32
}

// Figures asks the tier for its counters; it is answered by completing Join after Tier is filled.
type Figures struct {
	Header
	Join
	Tier TierFigures
}

// TierFigures count what happened since the start. Pairs are (row, expert), reads whole experts.
type TierFigures struct {
	Slots, SlotBytes                          int64 // RAM for experts
	Resident                                  int64 // experts in memory now
	PairsInMemory, PairsInFlight, PairsOnDisk int64
	Promotions                                int64 // experts that got a slot to stay in
	Evictions                                 int64 // experts that lost theirs
	DemandReads, PredictedReads, WarmReads    int64
	PredictedUsed                             int64 // predicted reads whose expert was then routed to
	Needed, NeededPredicted                   int64 // experts not in memory that a step needed; of these, predicted before it was issued
	BytesRead, ReadNanos                      int64 // ReadNanos summed over readers
	Canceled, FailedReads                     int64
}

// Precision is the share of predicted reads that were used; ok is false before the first.
func (f *TierFigures) Precision() (p float64, ok bool) {
	return share(f.PredictedUsed, f.PredictedReads)
}

// Recall is the share of the experts that had to come from disk which had been predicted; ok is false before the first.
func (f *TierFigures) Recall() (r float64, ok bool) { return share(f.NeededPredicted, f.Needed) }

func share(part, whole int64) (float64, bool) {
	if whole == 0 {
		return 0, false
	}
	return float64(part) / float64(whole), true
}
