// Package kvmirror keeps the device's copy of the KV cache: the actor that owns its memory, and the executor's side of the conversation
// with it.
//
// The host's rows are the cache. The device has a copy of each layer's in each conversation, with room for a power of two of rows, and a
// watermark (ops.KV.Mark): the rows below it are there as on the host. Every host write lowers it. Before a step the rows between the
// watermark and the step's first go up; the step's own are written by the device, come back in host memory, and are copied to the
// cache while the next frame runs.
//
// state.go is the decision, a pure state machine: no goroutine and no device. actor.go is the shell that allocates, writes and copies;
// mirror.go is what the executor calls. What does not live here: the kernels that write and read rows, and the memory that rows come
// back in (package ops/gpu).
package kvmirror

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/messages"
)

const (
	leastRows = 256 // of a copy: growing begins here
	alignment = 256 // bytes, of V's rows behind K's: enough for every device's storage buffers
)

// ErrNoRoom is why a step cannot have its layer's rows on the device.
var ErrNoRoom = errors.New("no room for the KV cache on the device")

// Config bounds a Machine.
type Config struct {
	Context int   // the most rows a conversation will have; 0: not known
	Budget  int64 // bytes of all copies together; 0: what the device gives
}

// Rows is how many rows a copy that must hold need rows has room for: a power of two from 256 on, and no more than the context, unless
// the conversation has more in spite of it.
func (c Config) Rows(need int) int {
	rows := leastRows
	if need > rows {
		rows = 1 << bits.Len(uint(need-1))
	}
	if need <= c.Context {
		rows = min(rows, c.Context)
	}
	return rows
}

// Bytes is the device memory of a copy with room for rows, K's before V's.
func Bytes(kWidth, vWidth, rows int) int64 {
	return valuesAt(kWidth, rows) + 4*int64(rows)*int64(vWidth)
}

// valuesAt is where V's rows begin.
func valuesAt(kWidth, rows int) int64 {
	return (4*int64(rows)*int64(kWidth) + alignment - 1) / alignment * alignment
}

// Kind says what an Effect asks for.
type Kind uint8

// The kinds of effects.
const (
	Free   Kind = iota // give the copy's memory back
	Alloc              // get it memory with room for Rows
	Upload             // write the host's rows From to To
)

// Effect is something the shell has to do for copy ID. Effects are done in the order given.
type Effect struct {
	Kind     Kind
	ID       int32
	Rows     int
	From, To int
}

// Machine is the state of the copies. Its methods return effects that are valid until the next call. It is not safe for concurrent use.
type Machine struct {
	cfg     Config
	copies  []mirror // by ID
	used    int64
	effects []Effect
}

// mirror is one copy; rows 0 is none.
type mirror struct {
	rows  int
	bytes int64
}

// New returns a machine without copies.
func New(cfg Config) *Machine { return &Machine{cfg: cfg} }

// Ready says what must happen for a cache's copy to have room for c.Rows rows and the host's rows in c.K and c.V. A copy that is too
// small is given up and made anew from the host's rows: the old and the new one never need memory at the same time. The error, which
// wraps ErrNoRoom, gives the numbers; there are no effects then, and the copy stays as it is.
func (m *Machine) Ready(c *messages.KVCache) ([]Effect, error) {
	m.effects = m.effects[:0]
	if n := int(c.ID) + 1; n > len(m.copies) {
		m.copies = append(m.copies, make([]mirror, n-len(m.copies))...)
	}
	have, from, to := &m.copies[c.ID], c.Mark, len(c.K)/int(c.KWidth)
	if have.rows < c.Rows {
		rows := m.cfg.Rows(c.Rows)
		bytes := Bytes(int(c.KWidth), int(c.VWidth), rows)
		if left := m.cfg.Budget - m.used + have.bytes; m.cfg.Budget > 0 && bytes > left {
			return nil, fmt.Errorf("%w: layer %d needs %s for %d positions, %s of %s is left; use a smaller --ctx-size or fewer --gpu-layers",
				ErrNoRoom, c.Layer, ledger.FormatSize(bytes), rows, ledger.FormatSize(max(left, 0)), ledger.FormatSize(m.cfg.Budget))
		}
		if have.rows > 0 {
			m.effects = append(m.effects, Effect{Kind: Free, ID: c.ID})
		}
		m.effects = append(m.effects, Effect{Kind: Alloc, ID: c.ID, Rows: rows})
		m.used += bytes - have.bytes
		*have = mirror{rows, bytes}
		from = 0
	}
	if from < to {
		m.effects = append(m.effects, Effect{Kind: Upload, ID: c.ID, From: from, To: to})
	}
	return m.effects, nil
}

// Room is how many rows copy id has room for.
func (m *Machine) Room(id int32) int { return m.copies[id].rows }

// NotAllocated takes back what Ready decided, since the device has no memory for copy id.
func (m *Machine) NotAllocated(id int32) {
	m.used -= m.copies[id].bytes
	m.copies[id] = mirror{}
}

// Release gives copies up. Those that are not there are ignored.
func (m *Machine) Release(ids ...int32) []Effect {
	m.effects = m.effects[:0]
	for _, id := range ids {
		if int(id) < len(m.copies) && m.copies[id].rows > 0 {
			m.effects = append(m.effects, Effect{Kind: Free, ID: id})
			m.NotAllocated(id)
		}
	}
	return m.effects
}

// check says what is inconsistent in the machine: the self-check of the invariants build tag and of the tests.
func (m *Machine) check() error {
	var sum int64
	for id, c := range m.copies {
		sum += c.bytes
		least, most := leastRows, m.cfg.Context
		if most > 0 {
			least = min(least, most)
		}
		if c.rows != 0 && (c.rows < least || c.rows&(c.rows-1) != 0 && (most == 0 || c.rows < most)) || (c.rows == 0) != (c.bytes == 0) {
			return fmt.Errorf("copy %d has room for %d rows in %d bytes", id, c.rows, c.bytes)
		}
	}
	if sum != m.used || m.cfg.Budget > 0 && sum > m.cfg.Budget {
		return fmt.Errorf("copies of %d bytes, %d counted, %d allowed", sum, m.used, m.cfg.Budget)
	}
	return nil
}
