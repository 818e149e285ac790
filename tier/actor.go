package tier

import (
	"fmt"

	"github.com/coli-moe/coli/messages"
)

// ActorConfig says what the actor owns and whom it talks to.
type ActorConfig struct {
	Config                      // Slots is set to len(Memory)
	Memory     [][]byte         // the slots, each large enough for a record and aligned for direct I/O; nil with Data
	Prefetcher messages.Address // gets Read, Raise and Cancel; nil with Data
	CPU        messages.Address // gets Compute; nil with Data
}

// Warm starts the actor from the usage history; see Machine.Warm. Sent at most once, before the first Issue.
type Warm struct {
	messages.Header
	History []uint64 // by layer and expert, layers outermost
}

// Actor turns the messages of a mailbox into steps of a Machine and its effects into messages. Its methods are called by one goroutine
// at a time.
type Actor struct {
	cfg      ActorConfig
	machine  *Machine
	inFlight []bool           // by slot: a Read was sent and not answered
	hand     messages.Message // the message in hand
	flow     uint64           // its flow, handed on with its effects
}

// NewActor returns an actor with nothing in memory.
func NewActor(cfg ActorConfig) (*Actor, error) {
	cfg.Slots = len(cfg.Memory)
	machine, err := New(cfg.Config)
	if err != nil {
		return nil, err
	}
	if cfg.Data == nil && (cfg.Prefetcher == nil || cfg.CPU == nil) {
		return nil, fmt.Errorf("tier: slots to be read into need a prefetcher and CPU experts")
	}
	return &Actor{cfg: cfg, machine: machine, inFlight: make([]bool, len(cfg.Memory))}, nil
}

// Receive handles one message and puts it back into its pool. Messages that are not the tier's are ignored.
func (a *Actor) Receive(msg messages.Message) {
	a.hand, a.flow = msg, msg.Head().Flow
	switch m := msg.(type) {
	case *messages.Issue:
		a.do(a.machine.Issue(m.Step))
		messages.Issues.Put(m)
	case *messages.Landed:
		if m.Slot >= 0 && int(m.Slot) < len(a.inFlight) {
			a.inFlight[m.Slot] = false
		}
		a.do(a.machine.Landed(m))
		messages.Landeds.Put(m)
	case *messages.Computed:
		a.do(a.machine.Computed(m.Step, m.Key))
		messages.Computeds.Put(m)
	case *messages.Finish:
		a.do(a.machine.Finish(m.Step, m.Aborted))
		messages.Finishes.Put(m)
	case *messages.Predict:
		a.do(a.machine.Predict(m.Layer, m.Experts))
		messages.Predicts.Put(m)
	case *messages.Tokens:
		a.do(a.machine.Tokens(m.N))
		messages.TokensPool.Put(m)
	case *Warm:
		a.do(a.machine.Warm(m.History))
	case *messages.Figures:
		m.Tier = a.machine.Figures()
		if len(a.cfg.Memory) > 0 {
			m.Tier.SlotBytes = int64(len(a.cfg.Memory[0]))
		}
		m.Done()
	}
}

// Restart rebuilds the state after a panic; see Machine.Recover. It is called before the next message, once whoever waits for the message
// in hand has been told. Nobody waits for a Computed or a Finish, and nobody sends it again: these take effect here.
func (a *Actor) Restart() {
	a.do(a.machine.Recover(a.inFlight))
	hand := a.hand
	a.hand = nil
	switch m := hand.(type) {
	case *messages.Computed:
		a.do(a.machine.Computed(m.Step, m.Key))
	case *messages.Finish:
		a.do(a.machine.Finish(m.Step, m.Aborted))
	}
}

// do carries out effects, and clears each that is done: Restart must know the others.
func (a *Actor) do(effects []Effect) {
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case Read:
			m := messages.Reads.Get()
			m.Flow, m.Key, m.Slot, m.Dst, m.Priority = a.flow, e.Key, e.Slot, a.cfg.Memory[e.Slot], e.Priority
			a.cfg.Prefetcher.Send(m)
			a.inFlight[e.Slot] = true
		case Raise:
			m := messages.Raises.Get()
			m.Flow, m.Key = a.flow, e.Key
			a.cfg.Prefetcher.Send(m)
		case Cancel:
			m := messages.Cancels.Get()
			m.Flow, m.Key = a.flow, e.Key
			a.cfg.Prefetcher.Send(m)
		case Compute:
			m := messages.Computes.Get()
			m.Flow, m.Step, m.Use, m.Data, m.Err = a.flow, e.Step, e.Use, e.Data, e.Err
			a.cfg.CPU.Send(m)
		case SplitDone:
			if e.Err != nil {
				e.Step.Split.Fail(e.Err)
			} else {
				e.Step.Split.Done()
			}
		}
		*e = Effect{}
	}
}
