package prefetcher

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/coli-moe/coli/messages"
)

var priorities = []string{"demand", "predicted", "warm"}

// TestQueue plays scenarios. Each line of a script is a call, its effects are the output:
//
//	read LAYER/EXPERT PRIORITY slot=N · raise KEY · cancel KEY · done KEY · allow READERS · stop
func TestQueue(t *testing.T) {
	datadriven.Walk(t, "testdata/queue", func(t *testing.T, path string) {
		var q *queue
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			if d.Cmd == "new" {
				var readers int
				d.ScanArgs(t, "readers", &readers)
				q = newQueue(readers)
				return ""
			}
			for line := range strings.Lines(d.Input) {
				var op, prio string
				m := messages.Read{Slot: -1}
				n, _ := fmt.Sscanf(line, "%s %d/%d %s slot=%d", &op, &m.Key.Layer, &m.Key.Expert, &prio, &m.Slot)
				switch {
				case op == "read" && n == 5:
					for p, name := range priorities {
						if name == prio {
							m.Priority = messages.Priority(p)
						}
					}
					q.add(&m)
				case op == "raise" && n == 3:
					q.raise(m.Key)
				case op == "cancel" && n == 3:
					q.cancel(m.Key)
				case op == "done" && n == 3:
					q.done(m.Key)
				case op == "stop":
					q.stop(messages.ErrStopped)
				case op == "allow":
					var readers int
					if _, err := fmt.Sscanf(line, "allow %d", &readers); err != nil {
						d.Fatalf(t, "%q: %v", line, err)
					}
					q.allow(readers)
				default:
					d.Fatalf(t, "what is %q?", line)
				}
				for e, ok := q.next(); ok; e, ok = q.next() {
					what := "begin"
					if e.err != nil {
						what = "refuse"
					}
					fmt.Fprintf(&out, "%s %d/%d %s slot=%d", what, e.read.Key.Layer, e.read.Key.Expert, priorities[e.read.Priority], e.read.Slot)
					if e.err != nil {
						fmt.Fprintf(&out, ": %v", e.err)
					}
					out.WriteString("\n")
				}
			}
			return out.String()
		})
	})
}

// TestQueueRandom plays random calls against what the queue promises: few enough reads in flight, one of a key, the most urgent first,
// and one answer for each.
func TestQueueRandom(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		readers := 1 + rng.IntN(4)
		q := newQueue(readers)
		inFlight := map[messages.Key]int32{} // slot
		waiting := map[int32]messages.Key{}  // by slot, of reads that were not answered
		priority := map[int32]messages.Priority{}
		ended := map[int32]bool{}
		urgent := func(p messages.Priority) bool { // is there a more urgent read that could begin?
			for slot, key := range waiting {
				if _, busy := inFlight[key]; !busy && priority[slot] < p {
					return true
				}
			}
			return false
		}
		play := func() {
			for e, ok := q.next(); ok; e, ok = q.next() {
				slot, key := e.read.Slot, e.read.Key
				if waiting[slot] != key || ended[slot] {
					t.Fatalf("seed %d: slot %d is answered twice", seed, slot)
				}
				delete(waiting, slot)
				if e.err != nil {
					ended[slot] = true
					continue
				}
				if _, twice := inFlight[key]; twice || len(inFlight) >= readers {
					t.Fatalf("seed %d: %v begins beside %v", seed, key, inFlight)
				}
				if urgent(e.read.Priority) {
					t.Fatalf("seed %d: %v begins before a more urgent read", seed, key)
				}
				inFlight[key] = slot
			}
		}
		finish := func() {
			for key, slot := range inFlight {
				delete(inFlight, key)
				ended[slot] = true
				q.done(key)
				play()
				return
			}
		}
		slots := int32(0)
		for range 300 {
			key := messages.Key{Expert: rng.Int32N(6)}
			switch rng.IntN(7) {
			case 6:
				readers = 1 + rng.IntN(4)
				q.allow(readers)
			case 0, 1, 2:
				p := messages.Priority(rng.IntN(3))
				for slot, k := range waiting { // a later read lends its priority to those of its key before it
					if k == key {
						priority[slot] = min(priority[slot], p)
					}
				}
				slots++
				waiting[slots], priority[slots] = key, p
				q.add(&messages.Read{Key: key, Slot: slots, Priority: p})
			case 3:
				for slot, k := range waiting {
					if k == key {
						priority[slot] = messages.Demand
					}
				}
				q.raise(key)
			case 4:
				q.cancel(key)
			case 5:
				finish()
			}
			play()
		}
		if rng.IntN(2) == 0 {
			q.stop(messages.ErrStopped)
			play()
		}
		for len(inFlight) > 0 {
			finish()
		}
		if len(ended) != int(slots) || len(waiting) > 0 || len(q.active) > 0 {
			t.Fatalf("seed %d: %d of %d reads answered, %d known still", seed, len(ended), slots, len(q.active))
		}
	}
}

func TestQueueAllocatesNothing(t *testing.T) {
	q := newQueue(2)
	m := &messages.Read{Priority: messages.Predicted}
	if n := testing.AllocsPerRun(100, func() {
		for i := range int32(8) {
			m.Key.Expert = i
			q.add(m)
		}
		q.raise(messages.Key{Expert: 6})
		q.cancel(messages.Key{Expert: 7})
		for e, ok := q.next(); ok; e, ok = q.next() {
			if e.err == nil {
				q.done(e.read.Key)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if len(q.active) != 0 || q.inFlight != 0 {
		t.Errorf("%d reads left, %d in flight", len(q.active), q.inFlight)
	}
}

func TestQueueStopKeepsItsReason(t *testing.T) {
	q := newQueue(1)
	why := errors.New("the drive is gone")
	q.stop(why)
	q.add(&messages.Read{Slot: 5})
	if e, ok := q.next(); !ok || e.err != why || e.read.Slot != 5 {
		t.Errorf("%+v %v", e, ok)
	}
}
