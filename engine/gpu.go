package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/kvmirror"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/messages"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/gpu"
)

// vulkan is the executor on a Vulkan device, with the actors it needs.
type vulkan struct {
	*gpu.Executor
	device *device.Device
	queue  *actors.Ref // submits
	mirror *actors.Ref // owns the copies of layer state
}

// search is a device that is being opened while the checkpoint is read: a driver takes a tenth of a second and more.
type search struct {
	done   chan struct{}
	device *device.Device
	err    error
}

// look begins to open the device that opt chooses. It is not looked for where none is wanted, nor, unless it was asked for, where there is
// no card.
func look(opt Options) *search {
	s := &search{done: make(chan struct{}), err: device.ErrNoDevice}
	if want, asked := opt.wantDevice(); !want || !asked && !cardInSight() {
		close(s.done)
		return s
	}
	o := opt.DeviceOptions
	o.Select = opt.Device
	go func() {
		defer close(s.done)
		s.device, s.err = device.Open(o)
	}()
	return s
}

// take waits for the device, which is the caller's from here on.
func (s *search) take() (d *device.Device, err error) {
	<-s.done
	d, s.device = s.device, nil
	return d, s.err
}

// end closes a device that nobody took.
func (s *search) end() error {
	if d, _ := s.take(); d != nil {
		return d.Close()
	}
	return nil
}

// wantDevice says whether layers may run on a device, and whether somebody asked for it.
func (opt *Options) wantDevice() (want, asked bool) {
	n, asked, err := opt.GPULayers.count(1)
	return err == nil && n > 0 && opt.Device != DeviceNone && opt.fake == nil, asked || opt.Device != ""
}

// open makes an executor on the device that was found; nil if there is none and none was asked for, unless that is because the user may not
// open the card. An integrated device has to be asked
// for: it reads its weights from the CPU's memory, in a copy of its own, and was measured to be slower than the CPU.
func (m *Model) open(opt Options, found *search, asked bool) (*card, error) {
	if opt.fake != nil {
		return opt.fake(m)
	}
	d, err := found.take()
	if err != nil {
		switch {
		case asked:
		case errors.Is(err, device.ErrNoLoader):
			err = nil
		case errors.Is(err, device.ErrNoDevice):
			err = noAccess()
		}
		return nil, err
	}
	info := d.Info()
	if !asked && info.Type != device.Discrete {
		return nil, d.Close()
	}
	if err := m.sizes().Check(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	c := &card{name: info.Name, shared: info.Type != device.Discrete}
	onDevice, onHost := gpu.Fixed(m.sizes(), m.stateTokens(opt))
	c.fixed = onDevice + slack
	c.steps = func(layers int) int64 {
		onDevice, _ := gpu.Held(m.sizes(), m.stateTokens(opt), layers)
		return onDevice
	}
	var ram *ledger.Ledger
	if c.shared {
		c.fixed += onHost
		c.steps = func(layers int) int64 {
			onDevice, onHost := gpu.Held(m.sizes(), m.stateTokens(opt), layers)
			return onDevice + onHost
		}
		if ram, err = ledger.New(ledger.System()); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	c.ledger = ledger.Device(info.Name, info.Memory, info.Free, ram)
	c.free, _ = c.ledger.Free()
	d.Account(c.ledger)
	v := &vulkan{device: d}
	if c.accelerator, err = v, v.start(m, opt); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return c, nil
}

const (
	// headRows is the most rows of a step whose logits are asked for where the head is on a device: those of a whole chunk would take 100 MB
	// of OLMoE's.
	headRows = 128
	// slack is for what is too small to be counted: tables of addresses, counters, the ends of buffers.
	slack = 4 << 20
)

// start makes the executor and spawns the actors.
func (v *vulkan) start(m *Model, opt Options) (err error) {
	spawn := func(name, resource string, r actors.Receiver) (*actors.Ref, error) {
		return m.runtime(opt).Spawn(actors.Spec{
			Name: name, Resource: resource, Policy: actors.GiveUp, New: func() (actors.Receiver, error) { return r, nil },
		})
	}
	if v.queue, err = spawn("device queue", "queue of "+v.device.Info().Name, v.device.Queue()); err != nil {
		return err
	}
	v.device.Attach(v.queue)
	v.Executor, err = gpu.New(v.device, gpu.Options{
		Sizes: m.sizes(), KV: kvmirror.Config{Context: opt.Context},
		Routed: m.count,
		Actor: func(a *kvmirror.Actor) (messages.Address, <-chan struct{}, error) {
			if v.mirror, err = spawn("kv mirror", "KV cache on the device", a); err != nil {
				return nil, nil, err
			}
			return v.mirror, v.mirror.Dead(), nil
		},
	})
	return err
}

// sizes are what the device's memory beside weights depends on.
func (m *Model) sizes() gpu.Sizes {
	cfg := m.Config
	s := gpu.Sizes{
		Rows: m.chunk, Logits: min(m.chunk, headRows), Hidden: cfg.HiddenSize, Q: cfg.NumAttentionHeads * cfg.HeadDim, KV: cfg.NumKeyValueHeads * cfg.HeadDim,
		Heads: cfg.NumAttentionHeads, HeadDim: cfg.HeadDim, Vocab: cfg.VocabSize, Layers: m.net.Layers(),
	}
	experts, n := m.expertLayers()
	if n > 0 {
		s.Experts, s.TopK, s.ExInter = n, cfg.NumExpertsPerTok, cfg.MoEIntermediateSize
	}
	if len(experts) < m.net.Layers() {
		s.Inter = cfg.IntermediateSize
	}
	return s
}

// Load copies weights to the device.
func (v *vulkan) Load(ctx context.Context, name string, ms []*ops.Matrix, vs []*ops.Vector, experts ops.ExpertSet, progress func(int64)) (freer, error) {
	l, err := v.Executor.Load(ctx, name, ms, vs, experts, progress)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Close frees what is on the device, ends its actors, and closes it.
func (v *vulkan) Close() error {
	var err error
	if v.Executor != nil {
		err = v.Executor.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	v.device.Attach(nil)
	for _, actor := range []*actors.Ref{v.queue, v.mirror} {
		if actor != nil {
			err = errors.Join(err, actor.Stop(ctx))
		}
	}
	for _, u := range v.device.Usage() {
		err = errors.Join(err, fmt.Errorf("%d bytes of %s are still on %s", u.Bytes, u.Name, v.device.Info().Name))
	}
	return errors.Join(err, v.device.Close())
}
