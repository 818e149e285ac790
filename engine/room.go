package engine

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/ops"
)

// What the accounts of a model list.
const (
	EntryDense   = "dense weights" // that the CPU multiplies with
	EntryExperts = "experts"       // of the CPU's layers: all of them, or the slots of those that are read from disk
	EntryState   = "layer state"   // of conversations
	EntryWeights = "weights"       // of the device's layers, with their experts
	EntrySteps   = "steps"         // activations, tables and results of the device's steps
)

// room is who holds a model's memory. The leases are those that decide asked for: what a holder has taken of its own may be less until it
// is used, and more than a lease of layer state where nobody said how long conversations become.
type room struct {
	ram                           *ledger.Ledger
	layers, dense, state, experts *ledger.Lease // nil: nothing
	taken                         atomic.Int64  // of layer state, by all sessions

	device  *ledger.Ledger // nil without layers on a device
	name    string         // its name
	planned []ledger.Entry // on it
}

// grant asks for memory that nothing is taken of yet.
func (r *room) grant(name string, bytes int64) (*ledger.Lease, error) {
	x, err := r.ram.Grant(name, bytes)
	if err == nil {
		x.Hold(0)
	}
	return x, err
}

// clear gives all leases back, before it is decided again.
func (r *room) clear() {
	for _, x := range []**ledger.Lease{&r.layers, &r.dense, &r.state, &r.experts} {
		if *x != nil {
			(*x).Release()
		}
		*x = nil
	}
}

// use adds layer state that a session has taken.
func (r *room) use(bytes int64) { r.state.Hold(r.taken.Add(bytes)) }

// account tells the room what the session's layer state takes now.
func (s *Session) account() {
	bytes := int64(0)
	for _, layer := range s.step.State {
		for _, kv := range layer {
			bytes += stateSize(kv)
		}
	}
	s.m.room.use(bytes - s.held)
	s.held = bytes
}

func stateSize(kv *ops.KV) int64 { return 4 * int64(cap(kv.K)+cap(kv.V)) }

// Ledger says who has been granted how much memory and what each has really taken: of RAM, and, if layers were bound to a device, of its.
// Any goroutine may call it, while steps run too.
func (m *Model) Ledger() []ledger.Account {
	r := &m.room
	if r.device == nil {
		return []ledger.Account{r.inRAM()}
	}
	onDevice := r.onDevice()
	if r.layers != nil {
		held := int64(0)
		for _, e := range onDevice.Entries {
			held += e.Held
		}
		r.layers.Hold(held)
	}
	return []ledger.Account{r.inRAM(), onDevice}
}

func (r *room) inRAM() ledger.Account {
	a := ledger.Account{Of: "RAM", Entries: r.ram.Report()}
	a.Budget, a.Known = r.ram.Budget()
	return a
}

// onDevice compares what was planned with the leases of the device's buffers.
func (r *room) onDevice() ledger.Account {
	a := ledger.Account{Of: r.name, Entries: slices.Clone(r.planned)}
	a.Budget, a.Known = r.device.Budget()
	for _, buffers := range r.device.Report() {
		name := EntrySteps
		switch {
		case strings.HasPrefix(buffers.Name, "layer ") || buffers.Name == "the head":
			name = EntryWeights
		case buffers.Name == "KV cache":
			name = EntryState
		}
		for i := range a.Entries {
			if a.Entries[i].Name == name {
				a.Entries[i].Held += buffers.Held
			}
		}
	}
	return a
}

// entries are what is planned for the device, the largest first.
func (b *binding) entries() []ledger.Entry {
	if b.card == nil {
		return nil
	}
	state, steps := int64(0), b.card.fixed
	for il := range b.n {
		state += b.demand.layers[il] - b.demand.weights[il]
	}
	if b.card.steps != nil {
		steps = b.card.steps(b.n)
	}
	out := []ledger.Entry{{Name: EntryWeights, Bytes: b.weights()}, {Name: EntryState, Bytes: state}, {Name: EntrySteps, Bytes: steps}}
	slices.SortStableFunc(out, func(x, y ledger.Entry) int { return cmp.Compare(y.Bytes, x.Bytes) })
	return out
}

// weights are the bytes of the weights that are planned for the card.
func (b *binding) weights() (bytes int64) {
	for il := range b.n {
		bytes += b.demand.weights[il]
	}
	if b.head {
		bytes += b.demand.head
	}
	return bytes
}

// bytes are all that the card must have room for: what is planned, and what a step takes for a moment.
func (b *binding) bytes() int64 {
	bytes := b.card.fixed
	for il := range b.n {
		bytes += b.demand.layers[il]
	}
	if b.head {
		bytes += b.demand.head
	}
	return bytes
}
