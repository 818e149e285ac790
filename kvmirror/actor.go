package kvmirror

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/coli-moe/coli/messages"
)

// Memory is the device's memory, as far as the actor needs it. Its methods, and those of its buffers, are called by one goroutine at a
// time, beside frames that do not use the rows concerned.
type Memory interface {
	// Alloc returns memory whose address is a multiple of 256. The name is for reports.
	Alloc(name string, bytes int64) (Buffer, error)
}

// Buffer is a piece of device memory.
type Buffer interface {
	Address() uint64
	// Write copies rows to a byte offset; frames submitted after it returned see them.
	Write(offset int64, rows []float32) error
	Free()
}

// Actor owns the copies' memory. Its methods are called by one goroutine at a time.
type Actor struct {
	machine *Machine
	memory  Memory
	buffers []Buffer // by ID
}

// NewActor returns an actor without copies.
func NewActor(memory Memory, cfg Config) *Actor { return &Actor{machine: New(cfg), memory: memory} }

// Receive handles one message and answers it. Messages that are not the mirror's are ignored.
func (a *Actor) Receive(msg messages.Message) {
	switch m := msg.(type) {
	case *messages.KVReady:
		for i := range m.Caches {
			if err := a.ready(&m.Caches[i]); err != nil {
				m.Fail(err)
				return
			}
		}
		m.Done()
	case *messages.KVWrote:
		copyRows(m.Copies)
		m.Done()
	case *messages.KVRelease:
		a.free(a.machine.Release(m.IDs...))
		m.Done()
	}
	if invariants {
		if err := a.machine.check(); err != nil {
			panic(err)
		}
	}
}

// A prompt's rows are a hundred megabytes, which one core copies slower than the device computes the next ones.
const (
	copiers  = 4
	copyMany = 1 << 20 // float32 values from which more than one copies
)

// copyRows copies rows to the caches.
func copyRows(all []messages.KVCopy) {
	values := 0
	for _, c := range all {
		values += len(c.Src)
	}
	n := min(copiers, runtime.GOMAXPROCS(0), len(all))
	if values < copyMany || n < 2 {
		for _, c := range all {
			copy(c.Dst, c.Src)
		}
		return
	}
	var next atomic.Int32
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(all); i = int(next.Add(1)) - 1 {
				copy(all[i].Dst, all[i].Src)
			}
		})
	}
	wg.Wait()
}

// ready makes a cache's copy ready and fills in where it is.
func (a *Actor) ready(c *messages.KVCache) error {
	effects, err := a.machine.Ready(c)
	if err != nil {
		return err
	}
	if n := int(c.ID) + 1; n > len(a.buffers) {
		a.buffers = append(a.buffers, make([]Buffer, n-len(a.buffers))...)
	}
	values := valuesAt(int(c.KWidth), a.machine.Room(c.ID))
	for _, e := range effects {
		switch e.Kind {
		case Free:
			a.free([]Effect{e})
		case Alloc:
			b, err := a.memory.Alloc("KV cache", Bytes(int(c.KWidth), int(c.VWidth), e.Rows))
			if err != nil {
				a.machine.NotAllocated(c.ID)
				return fmt.Errorf("%w, %d positions of layer %d: %w", ErrNoRoom, e.Rows, c.Layer, err)
			}
			a.buffers[c.ID] = b
		case Upload:
			b := a.buffers[c.ID]
			k, v := int(c.KWidth), int(c.VWidth)
			err := errors.Join(b.Write(4*int64(e.From*k), c.K[e.From*k:e.To*k]), b.Write(values+4*int64(e.From*v), c.V[e.From*v:e.To*v]))
			if err != nil {
				return fmt.Errorf("KV rows %d to %d of layer %d: %w", e.From, e.To, c.Layer, err)
			}
		}
	}
	c.Room, c.KAddr = a.machine.Room(c.ID), a.buffers[c.ID].Address()
	c.VAddr = c.KAddr + uint64(values)
	return nil
}

func (a *Actor) free(effects []Effect) {
	for _, e := range effects {
		a.buffers[e.ID].Free()
		a.buffers[e.ID] = nil
	}
}

// Close frees what is left.
func (a *Actor) Close() error {
	for i, b := range a.buffers {
		if b != nil {
			b.Free()
			a.buffers[i] = nil
		}
	}
	return nil
}
