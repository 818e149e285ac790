package actors

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coli-moe/coli/messages"
)

// sleeper is a receiver that takes the time a job says, and panics where it is told to.
type sleeper struct{}

func (sleeper) Receive(m messages.Message) {
	j := m.(*job)
	time.Sleep(time.Duration(j.id))
	if j.do == "panic" {
		panic("boom")
	}
	j.Done()
}

func newSleeper() (Receiver, error) { return sleeper{}, nil }

func TestStats(t *testing.T) {
	for _, tt := range []struct {
		name    string
		measure bool
	}{{"counted", false}, {"measured", true}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := Start(Options{Measure: tt.measure})
				defer r.Stop(context.Background()) //nolint:errcheck // stopped before
				if _, err := r.Declare("later"); err != nil {
					t.Fatal(err)
				}
				ref, err := r.Spawn(Spec{Name: "disk", Resource: "a disk", New: newSleeper})
				if err != nil {
					t.Fatal(err)
				}
				jobs := []*job{newJob(int(time.Millisecond), ""), newJob(int(time.Second), "panic"), newJob(int(4*time.Microsecond), "")}
				for _, j := range jobs {
					ref.Send(j)
				}
				time.Sleep(time.Microsecond)
				synctest.Wait()
				if s := r.Stats()[1]; s.Length != 2 || s.Handled != 1 || s.Failed != 0 || s.Handle.Count != 0 {
					t.Errorf("with the first in hand: %+v", s)
				}
				for _, j := range jobs {
					<-j.C()
				}
				synctest.Wait()

				want := ActorStats{Name: "disk", Resource: "a disk", Handled: 3, Failed: 1, Restarts: 1}
				if tt.measure {
					for i, wait := range []time.Duration{0, time.Millisecond, time.Millisecond + time.Second} {
						want.Wait.Add(wait)
						want.Handle.Add(time.Duration(jobs[i].id))
					}
				} else if jobs[0].Enqueued != 0 {
					t.Error("the clock was looked at for a message that nobody measures")
				}
				s := r.Stats()
				if len(s) != 2 || s[0] != (ActorStats{Name: "later"}) || s[1] != want {
					t.Errorf("got  %+v\nwant %+v", s, want)
				}

				if err := r.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				late := newJob(0, "")
				ref.Send(late)
				<-late.C()
				want.Dead = true
				want.Failed++
				if s := r.Stats(); s[1] != want || !s[0].Dead {
					t.Errorf("after the end: %+v\nwant %+v", s, want)
				}
			})
		})
	}
}

// TestStatsWhileWorking: figures are read while messages are sent and handled, and in the end nothing is missing.
func TestStatsWhileWorking(t *testing.T) {
	r := Start(Options{Measure: true})
	defer r.Stop(context.Background()) //nolint:errcheck // stopped below
	ref, err := r.Spawn(Spec{Name: "echo", New: newEcho})
	if err != nil {
		t.Fatal(err)
	}
	const senders, each = 4, 200
	var sending, reading sync.WaitGroup
	var over atomic.Bool
	reading.Go(func() {
		for last := uint64(0); !over.Load(); {
			s := r.Stats()[0]
			if s.Handled < last || s.Handled > senders*each || s.Wait.Count > s.Handled {
				t.Errorf("%d handled, %d timed, after %d", s.Handled, s.Wait.Count, last)
				return
			}
			last = s.Handled
		}
	})
	for range senders {
		sending.Go(func() {
			j := newJob(0, "")
			for range each {
				j.Reset()
				ref.Send(j)
				<-j.C()
			}
		})
	}
	sending.Wait()
	over.Store(true)
	reading.Wait()
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats()[0]; s.Handled != senders*each || s.Wait.Count != s.Handled || s.Handle.Count != s.Handled || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}

// TestMeasuringDoesNotAllocate: what is measured may be measured on the hot path.
func TestMeasuringDoesNotAllocate(t *testing.T) {
	r := Start(Options{Measure: true})
	defer r.Stop(context.Background()) //nolint:errcheck // of no matter here
	ref, err := r.Spawn(Spec{Name: "echo", New: newEcho})
	if err != nil {
		t.Fatal(err)
	}
	j := newJob(0, "")
	if n := testing.AllocsPerRun(1000, func() {
		j.Reset()
		ref.Send(j)
		<-j.C()
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
	if r.Stats()[0].Wait.Count == 0 {
		t.Error("nothing was measured")
	}
}
