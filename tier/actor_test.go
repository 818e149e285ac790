package tier

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/messages"
)

// inbox records what an actor sends.
type inbox struct{ got []messages.Message }

func (b *inbox) Send(m messages.Message) { b.got = append(b.got, m) }

// take returns the messages so far and forgets them.
func (b *inbox) take() []messages.Message {
	got := b.got
	b.got = nil
	return got
}

func newActor(t *testing.T, slots int) (a *Actor, disk, cpu *inbox) {
	t.Helper()
	disk, cpu = new(inbox), new(inbox)
	memory := make([][]byte, slots)
	for i := range memory {
		memory[i] = make([]byte, 16)
	}
	a, err := NewActor(ActorConfig{Config: Config{Layers: 2, Experts: 8}, Memory: memory, Prefetcher: disk, CPU: cpu})
	if err != nil {
		t.Fatal(err)
	}
	return a, disk, cpu
}

func TestActor(t *testing.T) {
	a, disk, cpu := newActor(t, 4)
	expect := func(b *inbox, want ...messages.Message) {
		t.Helper()
		if got := b.take(); !reflect.DeepEqual(got, want) && len(got)+len(want) > 0 {
			t.Errorf("sent %+v, want %+v", got, want)
		}
	}
	key := func(e int32) messages.Key { return messages.Key{Layer: 1, Expert: e} }
	head := messages.Header{Flow: 7}

	a.Receive(&messages.Predict{Header: head, Layer: 1, Experts: []int32{3, 4}})
	expect(disk, &messages.Read{Header: head, Key: key(3), Slot: 0, Dst: a.cfg.Memory[0], Priority: messages.Predicted},
		&messages.Read{Header: head, Key: key(4), Slot: 1, Dst: a.cfg.Memory[1], Priority: messages.Predicted})

	s := &messages.Step{ID: 1, Layer: 1, Uses: []messages.Use{{Expert: 3, Rows: 1}, {Expert: 5, Rows: 2}}}
	s.Split.Reset()
	a.Receive(&messages.Issue{Header: head, Step: s})
	if err := s.Split.Wait(nil); err != nil {
		t.Fatal(err)
	}
	if s.Uses[0].Where != messages.InFlight || s.Uses[1].Where != messages.OnDisk {
		t.Errorf("uses %+v", s.Uses)
	}
	expect(disk, &messages.Raise{Header: head, Key: key(3)}, &messages.Cancel{Header: head, Key: key(4)},
		&messages.Read{Header: head, Key: key(5), Slot: 2, Dst: a.cfg.Memory[2]})

	data := a.cfg.Memory[0][4:8]
	a.Receive(&messages.Landed{Header: head, Key: key(3), Slot: 0, Data: data, Bytes: 16, Nanos: 5})
	expect(cpu, &messages.Compute{Header: head, Step: s, Use: 0, Data: data})
	bad := errors.New("bad sector")
	a.Receive(&messages.Landed{Header: head, Key: key(5), Slot: 2, Err: bad})
	expect(cpu, &messages.Compute{Header: head, Step: s, Use: 1, Err: bad})
	a.Receive(&messages.Computed{Step: 1, Key: key(3)})
	a.Receive(&messages.Finish{Step: 1, Aborted: true})

	a.Receive(&Warm{History: append(make([]uint64, 15), 1)})
	expect(disk, &messages.Read{Key: key(7), Slot: 2, Dst: a.cfg.Memory[2], Priority: messages.Warm})
	a.Receive(&messages.Tokens{N: 1024})

	f := new(messages.Figures)
	f.Reset()
	a.Receive(f)
	if err := f.Wait(nil); err != nil {
		t.Fatal(err)
	}
	want := messages.TierFigures{
		Slots: 4, SlotBytes: 16, Resident: 1, PairsInFlight: 1, PairsOnDisk: 2, Promotions: 3, DemandReads: 1, PredictedReads: 2, WarmReads: 1,
		PredictedUsed: 1, Needed: 2, NeededPredicted: 1, BytesRead: 16, ReadNanos: 5, FailedReads: 1,
	}
	if f.Tier != want {
		t.Errorf("figures %+v, want %+v", f.Tier, want)
	}
}

// TestActorRestart: after a panic the slot of a read under way is not given away before it lands, and whoever waits is told.
func TestActorRestart(t *testing.T) {
	a, disk, cpu := newActor(t, 1)
	issue := func(id uint64, expert int32) {
		s := &messages.Step{ID: id, Uses: []messages.Use{{Expert: expert, Rows: 1}}}
		s.Split.Reset()
		a.Receive(&messages.Issue{Step: s})
	}
	issue(1, 2)
	disk.take()
	a.Restart()
	if got := cpu.take(); len(got) != 1 || !errors.Is(got[0].(*messages.Compute).Err, errRestarted) {
		t.Errorf("sent %+v", got)
	}
	a.Receive(&messages.Finish{Step: 1, Aborted: true})
	issue(2, 3)
	if got := disk.take(); len(got) > 0 {
		t.Errorf("sent %+v while the only slot is being read into", got)
	}
	a.Receive(&messages.Landed{Key: messages.Key{Expert: 2}, Data: a.cfg.Memory[0]})
	if got := disk.take(); len(got) != 1 || got[0].(*messages.Read).Key.Expert != 3 {
		t.Errorf("sent %+v", got)
	}
}

// faulty is a disk and a CPU that answer at once, as loop, but for one message, at which they panic.
type faulty struct {
	loop
	panicAt int
	failed  map[*messages.Step]bool // steps that were told of an error
}

func (f *faulty) Send(msg messages.Message) {
	if f.panicAt--; f.panicAt == 0 {
		panic("injected")
	}
	if c, ok := msg.(*messages.Compute); ok && c.Err != nil {
		f.failed[c.Step] = true
		return
	}
	f.loop.Send(msg)
}

// TestActorPanics: wherever the actor panics, the step in hand ends, in success or with an error, and later steps are as if nothing had
// happened: no slot stays pinned or reserved.
func TestActorPanics(t *testing.T) {
	for slots := 1; slots <= 3; slots++ {
		for at := 1; at < 40; at++ {
			f := &faulty{panicAt: at, failed: map[*messages.Step]bool{}}
			a, err := NewActor(ActorConfig{Config: Config{Layers: 1, Experts: 8}, Memory: make([][]byte, slots), Prefetcher: f, CPU: f})
			if err != nil {
				t.Fatal(err)
			}
			panics := 0
			receive := func(m messages.Message) { // what the mailbox does
				defer func() {
					if p := recover(); p != nil {
						panics++
						if m, ok := m.(messages.Failer); ok {
							m.Fail(errors.New("panicked"))
						}
						a.Restart()
						if err := a.machine.check(); err != nil {
							t.Fatal(err)
						}
					}
				}()
				a.Receive(m)
			}
			for id := range uint64(6) {
				s := &messages.Step{ID: id + 1, Uses: make([]messages.Use, 5)}
				for i := range s.Uses {
					s.Uses[i] = messages.Use{Expert: int32(i) + int32(id)%3, Rows: 1}
				}
				s.Split.Reset()
				receive(&messages.Issue{Step: s})
				failed := s.Split.Wait(nil) != nil
				open := len(s.Uses)
				for i := range s.Uses {
					if !failed && s.Uses[i].Where == messages.InMemory {
						f.box = append(f.box, &messages.Computed{Step: s.ID, Key: messages.Key{Expert: s.Uses[i].Expert}})
					}
				}
				receive(&messages.Predict{Experts: []int32{7, 6}})
				for i := 0; i < len(f.box); i++ {
					if c, ok := f.box[i].(*messages.Computed); ok && c.Step == s.ID {
						open--
					}
					receive(f.box[i])
				}
				f.box = f.box[:0]
				failed = failed || f.failed[s]
				if open > 0 && !failed {
					t.Fatalf("%d slots, panic at message %d: step %d is stuck", slots, at, s.ID)
				}
				if failed && panics == 0 {
					t.Fatalf("%d slots: step %d failed for no reason", slots, s.ID)
				}
				receive(&messages.Finish{Step: s.ID, Aborted: failed})
				if id > 0 && failed && f.panicAt < -20 {
					t.Errorf("%d slots, panic at message %d: step %d failed long after", slots, at, s.ID)
				}
			}
			if panics != 1 {
				t.Errorf("%d slots: %d panics at message %d", slots, panics, at)
			}
			for i := 0; i < len(f.box); i++ {
				receive(f.box[i])
			}
			for i, slot := range a.machine.slots {
				if slot.pins > 0 || slot.state == reading {
					t.Errorf("%d slots, panic at message %d: slot %d is %+v", slots, at, i, slot)
				}
			}
			if len(a.machine.steps) > 0 {
				t.Errorf("%d slots, panic at message %d: step %d is open", slots, at, a.machine.steps[0].id)
			}
		}
	}
}

// TestActorResident: with all experts in memory the actor needs neither slots nor anyone to talk to.
func TestActorResident(t *testing.T) {
	a, err := NewActor(ActorConfig{Config: Config{Layers: 1, Experts: 2, Data: record}})
	if err != nil {
		t.Fatal(err)
	}
	s := &messages.Step{ID: 1, Uses: []messages.Use{{Expert: 1, Rows: 1}}}
	s.Split.Reset()
	a.Receive(&messages.Issue{Step: s})
	if err := s.Split.Wait(nil); err != nil || s.Uses[0].Where != messages.InMemory || len(s.Uses[0].Data) == 0 {
		t.Errorf("%v, %+v", err, s.Uses)
	}
	a.Receive(&messages.Computed{Step: 1, Key: messages.Key{Expert: 1}})
	a.Receive(&messages.Finish{Step: 1})
	s = &messages.Step{ID: 2, Layer: 1}
	s.Split.Reset()
	a.Receive(&messages.Issue{Step: s})
	if err := s.Split.Wait(nil); err == nil {
		t.Error("a step of a layer that is not there was split")
	}
}

func TestNewActorRefuses(t *testing.T) {
	for _, c := range []ActorConfig{
		{Config: Config{Layers: 1, Experts: 1}, Prefetcher: &inbox{}, CPU: &inbox{}},
		{Config: Config{Layers: 1, Experts: 1}, Memory: make([][]byte, 1)},
	} {
		if _, err := NewActor(c); err == nil {
			t.Errorf("%+v", c)
		}
	}
}

// loop is a disk and a CPU that answer at once, into the mailbox of the actor, which the caller empties.
type loop struct {
	box []messages.Message
}

func (l *loop) Send(msg messages.Message) {
	switch m := msg.(type) {
	case *messages.Read:
		a := messages.Landeds.Get()
		a.Key, a.Slot, a.Data, a.Bytes, a.Priority = m.Key, m.Slot, m.Dst, int64(len(m.Dst)), m.Priority
		messages.Reads.Put(m)
		l.box = append(l.box, a)
	case *messages.Raise:
		messages.Raises.Put(m)
	case *messages.Cancel:
		messages.Cancels.Put(m)
	case *messages.Compute:
		a := messages.Computeds.Get()
		a.Step, a.Key = m.Step.ID, messages.Key{Layer: m.Step.Layer, Expert: m.Step.Uses[m.Use].Expert}
		messages.Computes.Put(m)
		l.box = append(l.box, a)
	}
}

// stepper runs random steps of eight experts of a model through an actor, predictions included.
func stepper(tb testing.TB, layers, experts, slots int) func() {
	l := new(loop)
	memory := make([][]byte, slots)
	for i := range memory {
		memory[i] = make([]byte, 16)
	}
	a, err := NewActor(ActorConfig{Config: Config{Layers: layers, Experts: experts}, Memory: memory, Prefetcher: l, CPU: l})
	if err != nil {
		tb.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	s := &messages.Step{Uses: make([]messages.Use, 8)}
	predicted := make([]int32, 8)
	return func() {
		s.ID++
		s.Layer = int32(s.ID) % int32(layers)
		for i := range s.Uses { // one of each eighth of the layer, mostly from its beginning
			part := experts / len(s.Uses)
			s.Uses[i] = messages.Use{Expert: int32(i*part + min(r.IntN(part), r.IntN(part))), Rows: 1}
			predicted[i] = int32(i*part + r.IntN(part))
		}
		s.Split.Reset()
		issue := messages.Issues.Get()
		issue.Step = s
		a.Receive(issue)
		if err := s.Split.Wait(nil); err != nil {
			tb.Fatal(err)
		}
		for i := range s.Uses {
			if s.Uses[i].Where == messages.InMemory {
				c := messages.Computeds.Get()
				c.Step, c.Key = s.ID, messages.Key{Layer: s.Layer, Expert: s.Uses[i].Expert}
				a.Receive(c)
			}
		}
		p := messages.Predicts.Get()
		p.Layer, p.Experts = (s.Layer+1)%int32(layers), predicted
		a.Receive(p)
		for i := 0; i < len(l.box); i++ {
			a.Receive(l.box[i])
		}
		l.box = l.box[:0]
		finish := messages.Finishes.Get()
		finish.Step = s.ID
		a.Receive(finish)
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	if invariants {
		t.Skip("the self-checks allocate")
	}
	step := stepper(t, 16, 64, 100)
	for range 1000 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n > 0 && !sharedtest.Race {
		t.Errorf("%v allocations a step", n)
	}
}

// BenchmarkIssue splits steps of eight experts of a model of 60 layers of 384. Hits: half the experts are in memory, and the steps use
// these. Misses: the steps use the others, each of which is read, and computed, and overwrites another.
func BenchmarkIssue(b *testing.B) {
	const layers, experts = 60, 384
	for _, c := range []struct {
		name  string
		first int32
	}{{"hits", 0}, {"misses", experts / 2}} {
		b.Run(c.name, func(b *testing.B) {
			m, err := New(Config{Layers: layers, Experts: experts, Slots: layers*experts/2 + 16, Transient: 16})
			if err != nil {
				b.Fatal(err)
			}
			land := &messages.Landed{Data: []byte{1}}
			drain := func(s *messages.Step, effects []Effect) {
				var slots []int32
				for _, e := range effects {
					if e.Kind == Read {
						slots = append(slots, e.Slot)
					}
				}
				for _, land.Slot = range slots {
					m.Landed(land)
				}
				for _, u := range s.Uses {
					m.Computed(s.ID, messages.Key{Layer: s.Layer, Expert: u.Expert})
				}
				m.Finish(s.ID, false)
			}
			id := uint64(0)
			for l := range int32(layers) { // residents, hot ones
				for e := range int32(experts / 2) {
					id++
					s := &messages.Step{ID: id, Layer: l, Uses: []messages.Use{{Expert: e, Rows: 1000}}}
					drain(s, m.Issue(s))
				}
			}
			r := rand.New(rand.NewPCG(1, 1))
			s := &messages.Step{ID: id, Uses: make([]messages.Use, 8)}
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				s.ID++
				s.Layer = r.Int32N(layers)
				for i := range s.Uses {
					s.Uses[i] = messages.Use{Expert: c.first + int32(i)*24 + r.Int32N(24), Rows: 1}
				}
				b.StartTimer()
				effects := m.Issue(s)
				b.StopTimer()
				drain(s, effects)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkStep is a whole step through the actor: Issue, predictions, reads, landings, Computed, Finish.
func BenchmarkStep(b *testing.B) {
	step := stepper(b, 60, 384, 4000)
	for range 5000 {
		step()
	}
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
}
