package tier

import "fmt"

// check says what is inconsistent in the machine: the self-check of the invariants build tag and of the tests.
func (m *Machine) check() error {
	if m.slots == nil {
		return nil
	}
	pins := make([]int32, len(m.slots))
	for _, st := range m.steps {
		open := 0
		for _, u := range st.uses {
			key := m.key(st.layer, u.expert)
			switch u.state {
			case useHanded:
				open++
				pins[u.slot]++
				if s := &m.slots[u.slot]; s.state != ready || s.key != key {
					return fmt.Errorf("step %d reads expert %v from slot %d, which has %v", st.id, m.name(key), u.slot, m.name(s.key))
				}
			case useWaiting:
				open++
				if at := m.slotOf[key]; st.split && at != none && m.slots[at].state == ready {
					return fmt.Errorf("step %d waits for expert %v, which is in slot %d", st.id, m.name(key), at)
				}
			}
		}
		if open != st.open || open == 0 && st.finished {
			return fmt.Errorf("step %d has %d open uses and counts %d", st.id, open, st.open)
		}
	}
	occupied, stayers, transients, canceling, resident := 0, 0, 0, 0, int64(0)
	for at := range m.slots {
		s := &m.slots[at]
		if s.pins != pins[at] {
			return fmt.Errorf("slot %d has %d pins, %d uses", at, s.pins, pins[at])
		}
		if s.state == empty {
			continue
		}
		occupied++
		if m.slotOf[s.key] != int32(at) {
			return fmt.Errorf("slot %d has expert %v, whose slot is %d", at, m.name(s.key), m.slotOf[s.key])
		}
		if s.state == ready {
			resident++
		}
		if s.canceled {
			canceling++
		}
		if s.stays {
			stayers++
			if e := m.stay.entries[s.pos]; e.slot != int32(at) || m.cold(int32(at)).less(e) {
				return fmt.Errorf("slot %d is at %d of the heap, which has %+v", at, s.pos, e)
			}
		} else {
			transients++
		}
		want := s.list
		switch {
		case s.state == reading && s.list != flying, s.pins > 0, s.stays:
			want = inNone
		case s.state == ready && s.list != expected:
			want = spare
		}
		if s.list != want {
			return fmt.Errorf("slot %d is in list %d, not in %d: %+v", at, s.list, want, *s)
		}
	}
	if stayers != len(m.stay.entries) || stayers > m.stayMax || transients != m.transients || transients > m.cfg.Transient ||
		len(m.free) != len(m.slots)-occupied || canceling != m.canceling || resident != m.figures.Resident {
		return fmt.Errorf("%d stayers of %d, %d transients of %d, %d free, %d occupied, %d withdrawn, %d resident",
			stayers, m.stayMax, transients, m.cfg.Transient, len(m.free), occupied, canceling, resident)
	}
	if n := m.lists[expected].n + m.lists[flying].n; n > m.cfg.Transient {
		return fmt.Errorf("%d slots for predictions", n)
	}
	for i := 1; i < len(m.stay.entries); i++ {
		if m.stay.entries[i].less(m.stay.entries[(i-1)/2]) {
			return fmt.Errorf("heap out of order at %d", i)
		}
	}
	for id := range m.lists {
		n := 0
		for at := m.lists[id].head; at != none; at = m.slots[at].next {
			if n++; m.slots[at].list != listID(id) || n > len(m.slots) {
				return fmt.Errorf("list %d is broken at slot %d", id, at)
			}
		}
		if n != m.lists[id].n {
			return fmt.Errorf("list %d has %d slots and counts %d", id, n, m.lists[id].n)
		}
	}
	if m.waiting.len() > 0 && m.slotOf[m.waiting.first()] == none && m.wanted(m.waiting.first()) &&
		(len(m.free) > 0 || m.lists[spare].n > 0 || m.lists[expected].n > 0) {
		return fmt.Errorf("expert %v waits although there is a slot", m.name(m.waiting.first()))
	}
	return nil
}
