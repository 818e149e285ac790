package probe

import (
	"testing"
	"time"

	"github.com/coli-moe/coli/internal/loghist"
	"github.com/coli-moe/coli/messages"
)

// asker keeps the answers.
type asker struct{ answers []*messages.BlockIO }

func (a *asker) Send(m messages.Message) { a.answers = append(a.answers, m.(*messages.BlockIO)) }

func TestActorAnswersWithTheDifference(t *testing.T) {
	p, err := Open(Options{Timed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	read := func(bytes int64) {
		p.Begin()
		p.Observe(bytes, time.Millisecond, false)
	}
	read(1)
	a := NewActor(p)
	var one, other asker
	ask := func(who *asker, requests, bytes, inFlight int64) {
		t.Helper()
		a.Receive(&messages.Sample{To: who})
		got := who.answers[len(who.answers)-1]
		if got.Known || got.Requests != requests || got.Bytes != bytes || got.InFlight != inFlight || got.Read.Count != uint64(requests) {
			t.Errorf("%+v, want %d requests, %d bytes, %d in flight", got, requests, bytes, inFlight)
		}
	}
	read(10)
	ask(&one, 1, 10, 0)
	read(100)
	p.Begin()
	ask(&one, 1, 100, 1)
	ask(&one, 0, 0, 1)
	ask(&other, 2, 110, 1)
	p.Observe(1000, time.Second, true)
	ask(&other, 1, 1000, 0)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	ask(&one, 0, 0, 0)
}

func TestAnswerSumsUpDrives(t *testing.T) {
	ops := func(n uint64) Ops {
		h := loghist.Hist{Count: n, Sum: 10 * n}
		return Ops{Requests: n + 3, Bytes: 4096 * (n + 3), Completed: n, Lost: 1, InFlight: 2, Queue: h, Device: h}
	}
	last := Snapshot{Devices: []Device{{Disk: Disk{Major: 8}, Read: ops(100), Write: ops(7)}}}
	now := Snapshot{Devices: []Device{
		{Disk: Disk{Major: 8}, Read: ops(104), Write: ops(900)},
		{Disk: Disk{Major: 259, Minor: 1}, Read: ops(1)},
	}}
	var m messages.BlockIO
	fill(&m, EBPF, &now, &last)
	if !m.Known || m.Requests != 8 || m.Bytes != 8*4096 || m.InFlight != 4 || m.Lost != 1 || m.Queue.Count != 5 || m.Device.Sum != 50 {
		t.Errorf("%+v", m)
	}
	d := now.Since(&last)
	if r := d.Devices[0].Read; r.Requests != 4 || r.Completed != 4 || r.Lost != 0 || r.InFlight != 2 || r.Device.Count != 4 {
		t.Errorf("drive 8:0 since the last: %+v", r)
	}
	if w, r := d.Devices[0].Write, d.Devices[1].Read; w.Requests != 893 || r.Requests != 4 {
		t.Errorf("writes %+v, new drive %+v", w, r)
	}
	if now.Devices[0].Read.Requests != 107 {
		t.Error("Since changed what it was asked of")
	}
}
