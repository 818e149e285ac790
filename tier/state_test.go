package tier

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/coli-moe/coli/messages"
)

// scenario runs the commands of a script against one machine:
//
//	new layers experts slots transient
//	warm                          lines of "layer/expert count"
//	issue id layer uses           uses are experts, or expert*rows
//	landed slot [canceled] [error]
//	computed id expert
//	finish id [abort]
//	predict layer experts
//	tokens n
//	restart [lost]                lost: slots whose Read was never sent
//	state                         the slots that are not empty
//	figures
//
// Each answers with the effects, one a line.
type scenario struct {
	m        *Machine
	steps    map[uint64]*messages.Step
	inFlight []bool
}

func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s scenario
		datadriven.RunTest(t, path, s.run)
	})
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	number := func(key string) (n int) {
		d.ScanArgs(t, key, &n)
		return n
	}
	list := func(key string) (ids []int32) {
		arg, _ := d.Arg(key)
		for _, v := range arg.Vals {
			if v == "" {
				continue // of an empty list
			}
			var id int32
			if _, err := fmt.Sscan(v, &id); err != nil {
				d.Fatalf(t, "%s: %v", v, err)
			}
			ids = append(ids, id)
		}
		return ids
	}
	switch d.Cmd {
	case "new":
		var err error
		s.m, err = New(Config{Layers: number("layers"), Experts: number("experts"), Slots: number("slots"), Transient: number("transient")})
		if err != nil {
			return err.Error()
		}
		s.steps, s.inFlight = map[uint64]*messages.Step{}, make([]bool, number("slots"))
		return fmt.Sprintf("%d stay, %d transient", s.m.stayMax, s.m.cfg.Transient)
	case "warm":
		history := make([]uint64, len(s.m.heat))
		for line := range strings.Lines(d.Input) {
			var layer, expert int32
			var n uint64
			if _, err := fmt.Sscanf(line, "%d/%d %d", &layer, &expert, &n); err != nil {
				d.Fatalf(t, "%s: %v", line, err)
			}
			history[s.m.key(layer, expert)] = n
		}
		return s.show(s.m.Warm(history))
	case "issue":
		step := &messages.Step{ID: uint64(number("id")), Layer: int32(number("layer"))}
		arg, _ := d.Arg("uses")
		for _, v := range arg.Vals {
			u := messages.Use{Rows: 1}
			if _, err := fmt.Sscanf(v, "%d*%d", &u.Expert, &u.Rows); err != nil {
				if _, err := fmt.Sscan(v, &u.Expert); err != nil {
					d.Fatalf(t, "%s: %v", v, err)
				}
			}
			step.Uses = append(step.Uses, u)
		}
		s.steps[step.ID] = step
		out := s.show(s.m.Issue(step))
		for _, u := range step.Uses {
			out += fmt.Sprintf("  %d %s %s\n", u.Expert, [...]string{"in memory", "in flight", "on disk"}[u.Where], u.Data)
		}
		return out
	case "landed":
		slot := number("slot")
		l := &messages.Landed{Slot: int32(slot), Key: s.m.name(s.m.slots[slot].key), Bytes: 4096, Nanos: 10}
		switch {
		case d.HasArg("canceled"):
			l.Err = messages.ErrCanceled
		case d.HasArg("error"):
			l.Err = errors.New("bad sector")
		default:
			l.Data = record(l.Key)
		}
		s.inFlight[slot] = false
		return s.show(s.m.Landed(l))
	case "computed":
		id := uint64(number("id"))
		return s.show(s.m.Computed(id, messages.Key{Layer: s.steps[id].Layer, Expert: int32(number("expert"))}))
	case "finish":
		return s.show(s.m.Finish(uint64(number("id")), d.HasArg("abort")))
	case "predict":
		return s.show(s.m.Predict(int32(number("layer")), list("experts")))
	case "tokens":
		return s.show(s.m.Tokens(int32(number("n"))))
	case "restart":
		for _, slot := range list("lost") {
			s.inFlight[slot] = false
		}
		return s.show(s.m.Recover(s.inFlight))
	case "state":
		var b strings.Builder
		for i, slot := range s.m.slots {
			if slot.state == empty {
				continue
			}
			fmt.Fprintf(&b, "%d: %s heat %d", i, key(s.m.name(slot.key)), s.m.heat[slot.key])
			for _, f := range []struct {
				name string
				is   bool
			}{
				{"stays", slot.stays},
				{"reading", slot.state == reading},
				{"withdrawn", slot.canceled},
				{fmt.Sprintf("pins %d", slot.pins), slot.pins > 0},
			} {
				if f.is {
					fmt.Fprintf(&b, ", %s", f.name)
				}
			}
			b.WriteString("\n")
		}
		return b.String()
	case "figures":
		f := s.m.Figures()
		return fmt.Sprintf(`resident %d, pairs in memory %d, in flight %d, on disk %d
promotions %d, evictions %d
reads on demand %d, predicted %d (used %d), warm %d, canceled %d, failed %d
needed %d, predicted %d
`, f.Resident, f.PairsInMemory, f.PairsInFlight, f.PairsOnDisk, f.Promotions, f.Evictions,
			f.DemandReads, f.PredictedReads, f.PredictedUsed, f.WarmReads, f.Canceled, f.FailedReads, f.Needed, f.NeededPredicted)
	}
	d.Fatalf(t, "unknown command")
	return ""
}

func key(k messages.Key) string { return fmt.Sprintf("%d/%d", k.Layer, k.Expert) }

// record is what an expert's bytes are in tests.
func record(k messages.Key) []byte { return []byte("bytes of " + key(k)) }

func (s *scenario) show(effects []Effect) string {
	defer clear(effects) // done
	if err := s.m.check(); err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range effects {
		switch e.Kind {
		case Read:
			s.inFlight[e.Slot] = true
			fmt.Fprintf(&b, "read %s into %d, %s\n", key(e.Key), e.Slot, [...]string{"on demand", "predicted", "warm"}[e.Priority])
		case Raise:
			fmt.Fprintf(&b, "raise %s\n", key(e.Key))
		case Cancel:
			fmt.Fprintf(&b, "cancel %s\n", key(e.Key))
		case Compute:
			fmt.Fprintf(&b, "compute %s of step %d", key(e.Key), e.Step.ID)
			if e.Err != nil {
				fmt.Fprintf(&b, ": %v\n", e.Err)
			} else {
				fmt.Fprintf(&b, " in %d: %s\n", e.Slot, e.Data)
			}
		case SplitDone:
			fmt.Fprintf(&b, "split of step %d", e.Step.ID)
			if e.Err != nil {
				fmt.Fprintf(&b, ": %v", e.Err)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []Config{
		{Layers: 0, Experts: 8, Slots: 1},
		{Layers: 1, Experts: 0, Slots: 1},
		{Layers: 1 << 20, Experts: 1 << 20, Slots: 1},
		{Layers: 1, Experts: 8},
		{Layers: 1, Experts: 8, Slots: 1, Transient: -1},
	} {
		if m, err := New(c); err == nil {
			t.Errorf("%+v: %+v", c, m)
		}
	}
}

// TestResident: with everything in memory each use gets its bytes at once, and nothing is read, pinned or waited for.
func TestResident(t *testing.T) {
	m, err := New(Config{Layers: 2, Experts: 4, Data: record})
	if err != nil {
		t.Fatal(err)
	}
	s := &messages.Step{ID: 1, Layer: 1, Uses: []messages.Use{{Expert: 0, Rows: 2}, {Expert: 3, Rows: 1}}}
	if e := m.Issue(s); len(e) != 1 || e[0].Kind != SplitDone || e[0].Err != nil {
		t.Errorf("effects %+v", e)
	}
	for _, u := range s.Uses {
		if want := record(messages.Key{Layer: 1, Expert: u.Expert}); u.Where != messages.InMemory || string(u.Data) != string(want) {
			t.Errorf("%+v, want %q", u, want)
		}
	}
	m.Warm([]uint64{4, 2, 0, 0, 1, 0, 0, 0})
	for _, effects := range [][]Effect{
		m.Computed(1, messages.Key{Layer: 1}), m.Finish(1, false), m.Predict(0, []int32{1}), m.Tokens(5000), m.Recover(nil),
		m.Landed(&messages.Landed{}),
	} {
		if len(effects) > 0 {
			t.Errorf("effects %+v", effects)
		}
	}
	if f, want := m.Figures(), (messages.TierFigures{Slots: 8, Resident: 8, PairsInMemory: 3}); f != want {
		t.Errorf("figures %+v, want %+v", f, want)
	}
	// 32, 16, 0, 0 from the history; 32 and 1 in the other layer, where 2 and 1 pairs were routed: the higher counts. Then four halvings.
	if want := []uint32{2, 1, 0, 0, 2, 0, 0, 0}; !slices.Equal(m.heat, want) {
		t.Errorf("heats %d, want %d", m.heat, want)
	}
}

// TestRecoverForgetsUnsplitStep: a panic while a step is split must not leave pins behind.
func TestRecoverForgetsUnsplitStep(t *testing.T) {
	m, err := New(Config{Layers: 1, Experts: 4, Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	uses := func(ids ...int32) (list []messages.Use) {
		for _, id := range ids {
			list = append(list, messages.Use{Expert: id, Rows: 1})
		}
		return list
	}
	m.Issue(&messages.Step{ID: 1, Uses: uses(0)})
	m.Landed(&messages.Landed{Slot: 0, Data: record(messages.Key{})})
	m.Computed(1, messages.Key{})
	m.Finish(1, false)
	m.Issue(&messages.Step{ID: 2, Uses: uses(0, 1)})
	m.steps[0].split = false // as if Issue had not returned
	if e := m.Recover([]bool{false, false}); len(e) > 0 {
		t.Errorf("effects %+v", e)
	}
	if err := m.check(); err != nil || len(m.steps) > 0 || m.slots[0].pins > 0 || len(m.free) != 1 {
		t.Errorf("%v; steps %v, slots %+v", err, m.steps, m.slots)
	}
}
