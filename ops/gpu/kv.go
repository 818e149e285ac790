package gpu

import (
	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/kvmirror"
	"github.com/coli-moe/coli/messages"
)

// mirror is the executor's side of the caches' copies, with the actor that owns them where nobody else runs it.
type mirror struct {
	*kvmirror.Mirror
	own *kvmirror.Actor
}

// direct is the address of an actor that runs on its sender's goroutine.
type direct struct{ *kvmirror.Actor }

func (d direct) Send(m messages.Message) { d.Receive(m) }

func newMirror(dev *device.Device, o Options) (*mirror, error) {
	a := kvmirror.NewActor(cacheMemory{dev}, o.KV)
	if o.Actor == nil {
		return &mirror{kvmirror.NewMirror(direct{a}, nil), a}, nil
	}
	to, dead, err := o.Actor(a)
	if err != nil {
		return nil, err
	}
	return &mirror{Mirror: kvmirror.NewMirror(to, dead)}, nil
}

// close frees the copies. An actor that somebody else runs is theirs to stop, which frees them too.
func (m *mirror) close() error {
	if m.own != nil {
		return m.own.Close()
	}
	return m.Settle()
}

// cacheMemory is the device's memory for copies.
type cacheMemory struct{ dev *device.Device }

func (c cacheMemory) Alloc(name string, bytes int64) (kvmirror.Buffer, error) {
	b, err := c.dev.Alloc(device.DeviceOnly, bytes, name)
	if err != nil {
		return nil, err
	}
	return cacheBuffer{b, c.dev}, nil
}

type cacheBuffer struct {
	*device.Buffer
	dev *device.Device
}

func (b cacheBuffer) Address() uint64 { return b.Addr }

func (b cacheBuffer) Write(offset int64, rows []float32) error {
	return b.dev.Write(b.Buffer, offset, octets(rows))
}
