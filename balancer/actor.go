package balancer

import (
	"fmt"
	"sync"
	"time"

	"github.com/coli-moe/coli/messages"
)

// sampleEvery bounds how often the probe is asked: so that an answer covers a turn's half at most, and one between two trials is of neither.
const sampleEvery = turnTime / 2

// remembered is how many decisions a Log keeps.
const remembered = 64

// Log holds the newest decisions, for any goroutine.
type Log struct {
	mu  sync.Mutex
	all []Decision
}

func (l *Log) add(d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == remembered {
		l.all = append(l.all[:0], l.all[1:]...)
	}
	l.all = append(l.all, d)
}

// Decisions returns a copy, oldest first.
func (l *Log) Decisions() []Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Decision(nil), l.all...)
}

// Last is the newest decision; zero before the first.
func (l *Log) Last() (d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.all); n > 0 {
		d = l.all[n-1]
	}
	return d
}

// ActorConfig says whom the actor talks to.
type ActorConfig struct {
	Config
	Apply  func(messages.Policy) // puts a policy in force; called by the actor's goroutine, and by NewActor for the first one
	Log    *Log
	Self   messages.Address // gets the probe's answers
	Probe  messages.Address // nil: none
	Decide func(Decision)   // told of each decision, by the actor's goroutine; may be nil
}

// Actor turns the messages of a mailbox into steps of a Machine. Its methods are called by one goroutine at a time.
type Actor struct {
	cfg     ActorConfig
	machine *Machine
	asked   time.Time // the probe
}

// NewActor puts the first policy in force.
func NewActor(cfg ActorConfig) *Actor {
	a := &Actor{cfg: cfg, machine: New(cfg.Config)}
	a.cfg.Apply(a.machine.Policy())
	a.decided()
	return a
}

// Receive handles Took, which it takes back to its pool, and BlockIO. It panics on any other message.
func (a *Actor) Receive(m messages.Message) {
	switch m := m.(type) {
	case *messages.Took:
		before := a.machine.Policy().ID
		decided := a.machine.Took(m)
		messages.TookPool.Put(m)
		if p := a.machine.Policy(); p.ID != before {
			a.cfg.Apply(p)
		}
		if decided {
			a.decided()
		}
		a.ask()
	case *messages.BlockIO:
		a.machine.BlockIO(m)
	default:
		panic(fmt.Sprintf("balancer: message %T", m))
	}
}

func (a *Actor) decided() {
	d := a.machine.Last()
	d.At = time.Now()
	a.cfg.Log.add(d)
	if a.cfg.Decide != nil {
		a.cfg.Decide(d)
	}
}

// ask asks the probe, if its answer would help and the last question was long enough ago.
func (a *Actor) ask() {
	if a.cfg.Probe == nil || !a.machine.Wants() {
		return
	}
	if now := time.Now(); now.Sub(a.asked) >= sampleEvery {
		a.asked = now
		a.cfg.Probe.Send(&messages.Sample{To: a.cfg.Self})
	}
}
