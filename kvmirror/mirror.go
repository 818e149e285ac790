package kvmirror

import (
	"errors"
	"fmt"

	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/ops"
)

// Slots is how many areas of host memory rows may come back in: the device writes one while the other is copied.
const Slots = 2

// Need is what a step needs of one layer's cache in one conversation.
type Need struct {
	KV         *ops.KV
	Layer      int
	First, End int    // the step writes the rows from First to End; those below are read
	K, V       uint64 // set by Ready: the addresses of row 0
}

// Rows are consecutive rows that the device has written to its copy and to host memory.
type Rows struct {
	KV   *ops.KV
	From int       // the first one's position
	K, V []float32 // whole rows
}

// Mirror is the executor's side. One goroutine at a time calls its methods, none of which allocates once the buffers have grown to the
// steps' sizes. After an error that wraps messages.ErrStopped every call gives it again.
type Mirror struct {
	to   messages.Address
	dead <-chan struct{}
	err  error // the actor is gone

	ready   messages.KVReady
	asked   []*place // whose caches these are
	wrote   [Slots]messages.KVWrote
	pending [Slots]bool
	kept    []Rows // handed over, and not passed on
	slot    int    // of kept
	release messages.KVRelease
	ids     []int32 // free ones
	next    int32   // the first that was never used
}

// place is where a cache's copy is, kept in its ops.KV: only steps that need more than is there go to the actor.
type place struct {
	id   int32
	rows int // there is room for; 0: no copy
	k, v uint64
}

// NewMirror returns the executor's side of the actor at an address; dead is closed when the actor is gone.
func NewMirror(to messages.Address, dead <-chan struct{}) *Mirror { return &Mirror{to: to, dead: dead} }

// Ready sees to it that the device has, of every cache, the rows below First and room for those below End, and sets K and V. Each cache
// may be named once. The caches' Len grows to End, their Mark becomes First until Wrote.
//
// No frame that writes one of the caches may be running, nor be over without a call of Wrote. Addresses are valid until the next Ready
// or Release of the same cache; after an error, those of the caches named are not. It is one that wraps ErrNoRoom if the device has no
// room, or what the device said.
func (m *Mirror) Ready(needs []Need) error {
	m.ready.Caches, m.asked = m.ready.Caches[:0], m.asked[:0]
	for i := range needs {
		n := &needs[i]
		if n.First < 0 || n.End < n.First || n.First > n.KV.Len() {
			return fmt.Errorf("KV rows %d to %d of layer %d do not follow the %d there are", n.First, n.End, n.Layer, n.KV.Len())
		}
		if err := m.grow(n.KV, n.End); err != nil {
			return err
		}
		at, s := m.at(n.KV), n.KV.Spec
		if at.rows >= n.End && n.KV.Mark >= n.First {
			continue
		}
		m.asked = append(m.asked, at)
		m.ready.Caches = append(m.ready.Caches, messages.KVCache{
			ID: at.id, Layer: int32(n.Layer), KWidth: int32(s.KWidth), VWidth: int32(s.VWidth),
			Rows: n.End, K: n.KV.K[:n.First*s.KWidth], V: n.KV.V[:n.First*s.VWidth], Mark: min(n.KV.Mark, n.First),
		})
	}
	if err := m.ask(); err != nil {
		for i := range needs { // how far it got is not known
			needs[i].KV.Mark, m.at(needs[i].KV).rows = 0, 0
		}
		return err
	}
	for i := range needs {
		n := &needs[i]
		at := m.at(n.KV)
		n.K, n.V, n.KV.Mark = at.k, at.v, n.First
	}
	return nil
}

// ask sends the caches that lack something to the actor. They are copied from the host, which must have its rows.
func (m *Mirror) ask() error {
	if len(m.asked) == 0 {
		return m.err
	}
	m.Pass()
	if err := m.send(&m.ready, &m.ready.Join); err != nil {
		return err
	}
	for i, at := range m.asked {
		c := &m.ready.Caches[i]
		at.rows, at.k, at.v = c.Room, c.KAddr, c.VAddr
		*c = messages.KVCache{} // keeps no rows alive
	}
	return nil
}

// grow makes the cache hold n rows. Rows on their way to it must be there before it moves.
func (m *Mirror) grow(kv *ops.KV, n int) error {
	if n*kv.Spec.KWidth > cap(kv.K) || n*kv.Spec.VWidth > cap(kv.V) {
		if err := m.Settle(); err != nil {
			return err
		}
	}
	kv.Grow(n)
	return nil
}

// at returns where the cache's copy is, a new one without room if there is none.
func (m *Mirror) at(kv *ops.KV) *place {
	at, ok := kv.Mirror.(*place)
	if !ok {
		at = &place{}
		if n := len(m.ids); n > 0 {
			at.id, m.ids = m.ids[n-1], m.ids[:n-1]
		} else {
			at.id, m.next = m.next, m.next+1
		}
		kv.Mirror, kv.Mark = at, 0
	}
	return at
}

// Wrote hands over rows of the last frame, in slot's memory: they are copied to the caches from the next Pass on, or when another call
// waits for them. Their Mark rises now. Slot must be free (see Reuse). Ready has been called for the rows, which stay the caller's, and
// the same, until they are passed on.
func (m *Mirror) Wrote(slot int, rows []Rows) {
	m.Pass()
	m.kept, m.slot = rows, slot
	for _, r := range rows {
		if r.KV.Mark >= r.From {
			r.KV.Mark = max(r.KV.Mark, r.From+len(r.K)/r.KV.Spec.KWidth)
		}
	}
}

// Pass has the rows that were handed over copied. Waking the actor takes time, which a device that is at the next frame need not wait for.
func (m *Mirror) Pass() {
	if len(m.kept) == 0 {
		return
	}
	w := &m.wrote[m.slot]
	w.Copies = w.Copies[:0]
	for _, r := range m.kept {
		k, v := r.From*r.KV.Spec.KWidth, r.From*r.KV.Spec.VWidth // behind the end of a cache that was cut meanwhile, too
		w.Copies = append(w.Copies,
			messages.KVCopy{Dst: r.KV.K[k : k+len(r.K)], Src: r.K}, messages.KVCopy{Dst: r.KV.V[v : v+len(r.V)], Src: r.V})
	}
	m.kept = nil
	w.Reset()
	m.pending[m.slot] = true
	m.to.Send(w)
}

// Reuse waits until slot's memory may be written again.
func (m *Mirror) Reuse(slot int) error {
	if len(m.kept) > 0 && m.slot == slot {
		m.Pass()
	}
	if m.err == nil && m.pending[slot] {
		m.pending[slot] = false
		w := &m.wrote[slot]
		m.settled(w.Wait(m.dead))
	}
	return m.err
}

// Settle waits until the host has every row that was handed over.
func (m *Mirror) Settle() error {
	for slot := range Slots {
		if err := m.Reuse(slot); err != nil {
			return err
		}
	}
	return nil
}

// Release frees the caches' copies, if they have any. No frame that uses them may be running.
func (m *Mirror) Release(kvs ...*ops.KV) error {
	m.release.IDs = m.release.IDs[:0]
	for _, kv := range kvs {
		if at, ok := kv.Mirror.(*place); ok {
			m.release.IDs = append(m.release.IDs, at.id)
			kv.Mirror, kv.Mark = nil, 0
		}
	}
	if len(m.release.IDs) == 0 {
		return nil
	}
	if err := m.Settle(); err != nil {
		return err
	}
	if err := m.send(&m.release, &m.release.Join); err != nil {
		return err
	}
	m.ids = append(m.ids, m.release.IDs...)
	return nil
}

// send sends a message and waits for its answer.
func (m *Mirror) send(msg messages.Message, join *messages.Join) error {
	if m.err != nil {
		return m.err
	}
	join.Reset()
	m.to.Send(msg)
	err := join.Wait(m.dead)
	if errors.Is(err, messages.ErrStopped) {
		m.settled(err)
	}
	return err
}

// settled keeps the error of a wait after which nothing can be asked for any more.
func (m *Mirror) settled(err error) {
	if err != nil {
		m.err = fmt.Errorf("the device's KV cache: %w", err)
	}
}
