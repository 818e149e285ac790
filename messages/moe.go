package messages

// The conversation of a MoE step.
//
//	engine ── Issue ──▶ tier          which experts, how many rows each
//	engine ◀─ Split ─── tier          (the step's join) the experts that are in memory, with their bytes
//	          tier ──── Compute ────▶ CPU experts      an expert whose bytes have landed
//	tier ◀──────────── Computed ───── whoever computed an expert: its bytes are no longer needed by the step
//	engine ── Finish ──▶ tier          all pairs are computed
//
// The engine computes what Split gave it while the rest is read, then takes part in computing what lands.

// Where says where a routed expert was found.
type Where uint8

// The places.
const (
	InMemory Where = iota // resident when the step was issued
	InFlight              // being read already: a prediction, or another request
	OnDisk                // read on demand
)

// Use is one distinct expert of a step.
type Use struct {
	Expert int32
	Rows   int32  // rows of the step routed to it
	Where  Where  // set by the tier
	Data   []byte // its record's bytes, set by the tier; nil until they are in memory
}

// Step is one MoE step of one layer. The engine owns it; between Issue and the completion of Split it belongs to the tier, and each
// Use's Data to whoever computes it until Computed.
type Step struct {
	ID    uint64 // rising with every step
	Layer int32
	Rows  int32
	Uses  []Use // distinct experts, in rising order
	Split Join  // completed when every Use has its Where, and Data if InMemory
}

// Issue opens a step. It is answered by completing Step.Split.
type Issue struct {
	Header
	Step *Step
}

// Fail completes the step's split with an error.
func (m *Issue) Fail(err error) { m.Step.Split.Fail(err) }

// Compute hands the CPU experts an expert whose bytes have landed; or, with Err, says that they cannot be had. A step that was aborted
// is never used again, so a Compute that comes late is told by its Step.
type Compute struct {
	Header
	Step *Step
	Use  int32 // index in Step.Uses
	Data []byte
	Err  error
}

// Computed tells the tier that a step no longer reads an expert's bytes.
type Computed struct {
	Header
	Step uint64 // ID
	Key  Key
}

// Finish closes a step. An aborted step gives up what it still waited for: the engine computes it without the pipeline.
type Finish struct {
	Header
	Step    uint64 // ID
	Aborted bool
}
