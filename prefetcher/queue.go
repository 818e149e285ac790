package prefetcher

import "github.com/coli-moe/coli/messages"

// queue decides which read begins next. It is pure: no clock, no goroutine, no I/O; methods change it and append effects, which the
// caller takes with next and carries out.
//
//   - Demand before predicted before warm, first come first served within each.
//   - No read begins while readers are in flight, and at most one of a key: another Read of the key waits for the first to end and is then
//     read into its own slot. It lends those before it its priority.
//   - Every Read added is answered: by begin, after which the caller says done, or by refuse.
type queue struct {
	readers  int
	inFlight int
	lists    [messages.Warm + 1]list
	active   map[messages.Key]*request // the request of a key that is queued or in flight; others of the key hang on its waiting
	free     *request                  // unused requests, linked by next
	effects  []effect
	taken    int   // effects before it have been carried out
	stopped  error // why nothing begins any more
}

// request is a Read on its way.
type request struct {
	messages.Read
	begun      bool
	prev, next *request // neighbours in its list
	waiting    *request // next Read of the same key
}

// effect tells the caller to read, or to answer with err where there is one.
type effect struct {
	read messages.Read
	err  error
}

func newQueue(readers int) *queue {
	return &queue{readers: readers, active: map[messages.Key]*request{}}
}

// allow sets how many reads may be in flight. More than that go on, and as many must end before the next one begins.
func (q *queue) allow(readers int) {
	q.readers = readers
	q.begin()
}

// add queues a read.
func (q *queue) add(m *messages.Read) {
	if q.stopped != nil {
		q.refuse(m, q.stopped)
		return
	}
	r := q.free
	if r == nil {
		r = new(request)
	} else {
		q.free = r.next
	}
	*r = request{Read: *m}
	r.Priority = min(r.Priority, messages.Warm)
	if first := q.active[r.Key]; first != nil {
		last := first
		for ; last.waiting != nil; last = last.waiting {
			q.lift(last, r.Priority)
		}
		q.lift(last, r.Priority)
		last.waiting = r
		return
	}
	q.active[r.Key] = r
	q.lists[r.Priority].push(r)
	q.begin()
}

// raise makes a queued read, and those of the same key that wait for it, reads on demand.
func (q *queue) raise(key messages.Key) {
	for r := q.active[key]; r != nil; r = r.waiting {
		q.lift(r, messages.Demand)
	}
}

// lift gives a read that has not begun at least priority p. Requests that wait for another of their key are in no list.
func (q *queue) lift(r *request, p messages.Priority) {
	if r.begun || r.Priority <= p {
		return
	}
	if q.active[r.Key] == r {
		q.lists[r.Priority].remove(r)
		q.lists[p].push(r)
	}
	r.Priority = p
}

// cancel refuses the reads of a key that have not begun.
func (q *queue) cancel(key messages.Key) {
	if first := q.active[key]; first != nil {
		q.drop(first, messages.ErrCanceled)
	}
}

// drop refuses the requests of a key that have not begun.
func (q *queue) drop(first *request, err error) {
	r := first
	if first.begun {
		r, first.waiting = first.waiting, nil
	} else {
		q.lists[first.Priority].remove(first)
		delete(q.active, first.Key)
	}
	for r != nil {
		q.refuse(&r.Read, err)
		r = q.release(r)
	}
}

// done ends a read that has begun.
func (q *queue) done(key messages.Key) {
	r := q.active[key]
	if r == nil || !r.begun {
		return
	}
	q.inFlight--
	if r = q.release(r); r != nil {
		q.active[key] = r
		q.lists[r.Priority].push(r)
	} else {
		delete(q.active, key)
	}
	q.begin()
}

// stop refuses everything that has not begun, and everything that comes later.
func (q *queue) stop(err error) {
	q.stopped = err
	for p := range q.lists {
		for q.lists[p].head != nil {
			q.drop(q.lists[p].head, err)
		}
	}
	for _, r := range q.active { // what waits for a read in flight
		q.drop(r, err)
	}
}

// begin starts reads while readers are free.
func (q *queue) begin() {
	for p := range q.lists {
		for q.inFlight < q.readers && q.lists[p].head != nil {
			r := q.lists[p].head
			q.lists[p].remove(r)
			r.begun = true
			q.inFlight++
			q.effects = append(q.effects, effect{read: r.Read})
		}
	}
}

func (q *queue) refuse(m *messages.Read, err error) {
	q.effects = append(q.effects, effect{*m, err})
}

// next returns an effect to carry out, in order.
func (q *queue) next() (e effect, ok bool) {
	if q.taken == len(q.effects) {
		q.effects, q.taken = q.effects[:0], 0
		return effect{}, false
	}
	e = q.effects[q.taken]
	q.effects[q.taken] = effect{} // holds on to no slot
	q.taken++
	return e, true
}

// release frees a request and returns the one that waited for it.
func (q *queue) release(r *request) (waiting *request) {
	waiting = r.waiting
	*r = request{next: q.free}
	q.free = r
	return waiting
}

// list is a doubly linked list of requests.
type list struct{ head, tail *request }

func (l *list) push(r *request) {
	r.prev, r.next = l.tail, nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

func (l *list) remove(r *request) {
	if r.prev == nil {
		l.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
}
