package tier

// chain is a list of slots linked through themselves, oldest first.
type chain struct {
	head, tail int32
	n          int
}

// list appends a slot, which is in no list, to one.
func (m *Machine) list(id listID, at int32) {
	c, s := &m.lists[id], &m.slots[at]
	s.list, s.prev, s.next = id, c.tail, none
	if c.tail == none {
		c.head = at
	} else {
		m.slots[c.tail].next = at
	}
	c.tail = at
	c.n++
}

// listFront puts a slot, which is in no list, before all others of one.
func (m *Machine) listFront(id listID, at int32) {
	c, s := &m.lists[id], &m.slots[at]
	s.list, s.prev, s.next = id, none, c.head
	if c.head == none {
		c.tail = at
	} else {
		m.slots[c.head].prev = at
	}
	c.head = at
	c.n++
}

// unlist takes a slot out of the list it is in, if any.
func (m *Machine) unlist(at int32) {
	s := &m.slots[at]
	if s.list == inNone {
		return
	}
	c := &m.lists[s.list]
	if s.prev == none {
		c.head = s.next
	} else {
		m.slots[s.prev].next = s.next
	}
	if s.next == none {
		c.tail = s.prev
	} else {
		m.slots[s.next].prev = s.prev
	}
	s.list, s.prev, s.next = inNone, none, none
	c.n--
}

// queue is first in, first out.
type queue struct {
	buf  []int32
	head int
}

func (q *queue) len() int     { return len(q.buf) - q.head }
func (q *queue) first() int32 { return q.buf[q.head] }

func (q *queue) push(v int32) {
	if q.head > 0 && len(q.buf) == cap(q.buf) {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = append(q.buf, v)
}

func (q *queue) pop() {
	q.head++
	if q.head == len(q.buf) {
		q.buf, q.head = q.buf[:0], 0
	}
}

// coldHeap finds the coldest stayer: the one of least heat, of these the one not used for longest. It is lazy: what an entry says is a
// lower bound, since heat and recency only grow between two agings, and only the root is brought up to date, when it is asked for. So
// a hit costs nothing here, and the coldest of n costs O(log n) for each hit since, at most once.
type coldHeap struct{ entries []cold }

type cold struct {
	used uint64
	heat uint32
	slot int32
}

func (a cold) less(b cold) bool { return a.heat < b.heat || a.heat == b.heat && a.used < b.used }

func (m *Machine) cold(at int32) cold {
	s := &m.slots[at]
	return cold{used: s.used, heat: m.heat[s.key], slot: at}
}

// coldest returns the coldest stayer's slot; there is one.
func (h *coldHeap) coldest(m *Machine) int32 {
	for {
		now := m.cold(h.entries[0].slot)
		if now == h.entries[0] {
			return now.slot
		}
		h.entries[0] = now
		h.down(m, 0)
	}
}

func (h *coldHeap) push(m *Machine, at int32) {
	h.entries = append(h.entries, m.cold(at))
	h.up(m, len(h.entries)-1)
}

func (h *coldHeap) remove(m *Machine, pos int32) {
	last := len(h.entries) - 1
	moved := h.entries[last]
	h.entries = h.entries[:last]
	if int(pos) == last {
		return
	}
	h.entries[pos] = moved
	h.down(m, int(pos))
	h.up(m, int(m.slots[moved.slot].pos))
}

// rebuild brings every entry up to date.
func (h *coldHeap) rebuild(m *Machine) {
	for i := range h.entries {
		h.entries[i] = m.cold(h.entries[i].slot)
	}
	for i := len(h.entries)/2 - 1; i >= 0; i-- {
		h.down(m, i)
	}
	for i := range h.entries {
		m.slots[h.entries[i].slot].pos = int32(i)
	}
}

func (h *coldHeap) down(m *Machine, i int) {
	e := h.entries[i]
	for {
		child := 2*i + 1
		if child >= len(h.entries) {
			break
		}
		if right := child + 1; right < len(h.entries) && h.entries[right].less(h.entries[child]) {
			child = right
		}
		if !h.entries[child].less(e) {
			break
		}
		h.place(m, i, h.entries[child])
		i = child
	}
	h.place(m, i, e)
}

func (h *coldHeap) up(m *Machine, i int) {
	e := h.entries[i]
	for i > 0 && e.less(h.entries[(i-1)/2]) {
		h.place(m, i, h.entries[(i-1)/2])
		i = (i - 1) / 2
	}
	h.place(m, i, e)
}

func (h *coldHeap) place(m *Machine, i int, e cold) {
	h.entries[i] = e
	m.slots[e.slot].pos = int32(i)
}
