package probe

import (
	"fmt"

	"github.com/coli-moe/coli/messages"
)

// Actor answers messages.Sample with the difference to the same asker's last one, at first to the time the actor was made. It has one
// goroutine's calls at a time, as every receiver.
type Actor struct {
	probe *Probe
	begin Snapshot
	now   Snapshot
	last  map[messages.Address]*Snapshot
}

// NewActor makes the actor of p, which stays the caller's to close.
func NewActor(p *Probe) *Actor {
	a := &Actor{probe: p, last: map[messages.Address]*Snapshot{}}
	_ = p.Read(&a.begin) // a closed probe answers samples with nothing
	return a
}

// Receive handles Sample. It panics on any other message.
func (a *Actor) Receive(m messages.Message) {
	sample, ok := m.(*messages.Sample)
	if !ok {
		panic(fmt.Sprintf("probe: message %T", m))
	}
	last := a.last[sample.To]
	if last == nil {
		last = &Snapshot{}
		last.copy(&a.begin)
		a.last[sample.To] = last
	}
	answer := &messages.BlockIO{}
	if a.probe.Read(&a.now) == nil {
		fill(answer, a.probe.Mode(), &a.now, last)
		last.copy(&a.now)
	}
	sample.To.Send(answer)
}

// fill sets m to what happened between last and now.
func fill(m *messages.BlockIO, mode Mode, now, last *Snapshot) {
	m.Read = now.Own.Took.Since(last.Own.Took)
	if mode == Timed {
		m.Requests = int64(now.Own.Reads - last.Own.Reads)
		m.Bytes = int64(now.Own.Bytes - last.Own.Bytes)
		m.InFlight = now.Own.InFlight
		return
	}
	m.Known = true
	reads, before := now.Reads(), last.Reads()
	m.InFlight = reads.InFlight
	reads.since(&before)
	m.Requests, m.Bytes, m.Lost = int64(reads.Requests), int64(reads.Bytes), int64(reads.Lost)
	m.Queue, m.Device = reads.Queue, reads.Device
}

func (s *Snapshot) copy(from *Snapshot) {
	devices := append(s.Devices[:0], from.Devices...)
	*s = *from
	s.Devices = devices
}
