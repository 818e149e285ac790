package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coli-moe/coli/device"
	"github.com/coli-moe/coli/kvmirror"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/model"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/ops/gpu"
	"github.com/coli-moe/coli/weights"
	"github.com/coli-moe/coli/weights/format"
)

// DeviceNone is the Options.Device of a run without a device.
const DeviceNone = "none"

// accelerator is an executor on a device: what this package needs of *gpu.Executor. What its ops, Flush and Finish fail of is the device's
// failure: the layers go back to the CPU.
type accelerator interface {
	ops.Executor

	// Supports says whether weights of a format can be multiplied there.
	Supports(f format.Format) bool
	// Bytes is the memory that a matrix takes there. Its Data is not looked at.
	Bytes(m *ops.Matrix) int64
	// Load copies weights to the device, all or nothing; progress is told the bytes done since it was last called.
	Load(ctx context.Context, name string, ms []*ops.Matrix, vs []*ops.Vector, experts ops.ExpertSet, progress func(int64)) (freer, error)
	// Flush ends what was recorded. Rows of layer state may still be on their way to the host then, a copy that the next step need not wait
	// for: nobody reads them there while the device works, and before it says that it failed they have arrived.
	Flush() error
	// Finish does what Flush does, and waits for the rows.
	Finish() error
	// Release frees the device's copies of layer states.
	Release(kvs ...*ops.KV) error
	// ArgMax returns each row's largest value's index, the lowest of several; -1 for a row with a value that is not finite.
	ArgMax(t *ops.Tensor) []int32
	// Account counts what the steps that are over have routed. It may otherwise be left until the next step is under way.
	Account()
	// Stats returns the counters.
	Stats() gpu.Stats
	// Counted returns what Stats does, without waiting for what the last step chose: Pairs and Reads are one step behind, Fused is nil.
	Counted() gpu.Stats
	// Times returns what the dispatches took, by op, the longest first; nil unless the device was opened to take them.
	Times() []device.Timing
	// Close frees everything. It comes back also where the device does not answer any more.
	Close() error
}

type freer interface{ Free() }

// card is an open device with what is known of it before anything is on it.
type card struct {
	accelerator
	name   string
	free   int64                  // bytes of its memory that may be used, a reserve not among them
	fixed  int64                  // bytes that a run takes beside layers
	steps  func(layers int) int64 // of these, what steps keep with so many layers on it; nil: all
	shared bool                   // its memory is the CPU's
	ledger *ledger.Ledger
}

// binding says where layers run: the first n on the card, the others on the CPU. The zero value is the CPU alone.
type binding struct {
	card   *card
	n      int
	head   bool // on the card too; n is then the number of layers
	loaded []freer
	demand demand
}

// at returns the executor of layer il; il = Layers() is the head.
func (m *Model) at(il int) ops.Executor {
	if b := &m.binding; il < b.n || b.head {
		return b.card
	}
	return m.exec
}

// LayersOnDevice is how many layers run on a device, and whether the head does.
func (m *Model) LayersOnDevice() (n int, head bool) { return m.binding.n, m.binding.head }

// DeviceName is the device that layers were bound to when the model was loaded, "" for none. It may have failed since.
func (m *Model) DeviceName() string { return m.deviceName }

// DeviceTimes returns what the device's time went into, the longest first, if DeviceOptions.Profile is set.
func (m *Model) DeviceTimes() []device.Timing {
	if c := m.binding.card; c != nil {
		return c.Times()
	}
	return m.retiredTimes
}

// cpuLayers are the layers with routed experts that the CPU runs.
func (m *Model) cpuLayers() []int {
	layers, _ := m.expertLayers()
	return slices.DeleteFunc(layers, func(il int) bool { return il < m.binding.n })
}

// plan decides which layers the device that was found will run, before anything is on it. That it cannot be used is said, and no error:
// the CPU runs all layers then.
func (m *Model) plan(opt Options, found *search) error {
	layers := m.net.Layers()
	want, asked, err := opt.GPULayers.count(layers)
	if err != nil || want == 0 || opt.Device == DeviceNone {
		return err
	}
	asked = asked || opt.Device != ""
	c, err := m.open(opt, found, asked)
	if errors.Is(err, device.ErrNoMatch) {
		return fmt.Errorf("--device %s: %w", opt.Device, err)
	}
	if err != nil {
		m.LayersWhy = fmt.Sprintf("all layers on the CPU: %v", err)
		return nil
	}
	if c == nil {
		return nil
	}
	d := m.demand(c, opt)
	n, head := planLayers(c.free, c.fixed, d.layers, d.head, want)
	head = head && n == layers && d.headLacks == nil
	limit := d.limit(c, n, want, layers, head)
	if n == 0 {
		m.LayersWhy = fmt.Sprintf("all layers on the CPU, none on %s: %s", c.name, limit)
		return c.end()
	}
	m.binding, m.deviceName = binding{card: c, n: n, head: head, demand: d}, c.name
	if limit != "" {
		limit = "; " + limit
	}
	m.LayersWhy = fmt.Sprintf("%s (%s of %s free%s)", m.where(), ledger.FormatSize(m.binding.bytes()), ledger.FormatSize(c.free), limit)
	return nil
}

// demand is what a model's layers, up to the first that has no form on the device, and its head need there, in bytes.
type demand struct {
	weights   []int64
	layers    []int64 // weights and layer state
	head      int64
	chunk     int   // rows of a step
	lacks     error // why there are not all layers
	headLacks error // why there is no head
}

func (m *Model) demand(c *card, opt Options) (d demand) {
	d.chunk = m.chunk
	for il := range m.net.Layers() {
		w, err := m.weigh(c, il)
		if err != nil {
			d.lacks = err
			break
		}
		d.weights, d.layers = append(d.weights, w), append(d.layers, w+m.stateBytes(il, opt))
	}
	d.head, d.headLacks = m.weigh(c, m.net.Layers())
	return d
}

// limit says why only n of the layers, or no head, go to the device where want were wanted; "" where everything goes.
func (d *demand) limit(c *card, n, want, layers int, head bool) string {
	switch {
	case n == len(d.layers) && n < want:
		return d.lacks.Error()
	case n < want && c.free <= c.fixed:
		return fmt.Sprintf("steps of %d rows need %s beside layers, of %s free; a smaller --chunk needs less", d.chunk, ledger.FormatSize(c.fixed),
			ledger.FormatSize(max(c.free, 0)))
	case n < want:
		left := c.free - c.fixed
		for _, bytes := range d.layers[:n] {
			left -= bytes
		}
		return fmt.Sprintf("layer %d needs %s of the %s left", n, ledger.FormatSize(d.layers[n]), ledger.FormatSize(max(left, 0)))
	case n < layers:
		return "as asked"
	case d.headLacks != nil:
		return d.headLacks.Error()
	case !head:
		return "the head needs " + ledger.FormatSize(d.head)
	}
	return ""
}

// where says what runs on the device.
func (m *Model) where() string {
	b := &m.binding
	rest := ", the rest and the head on the CPU"
	switch {
	case b.head:
		rest = " and the head"
	case b.n == m.net.Layers():
		rest = ", the head on the CPU"
	}
	return fmt.Sprintf("layers on %s: %d of %d%s", b.card.name, b.n, m.net.Layers(), rest)
}

// stateBytes is what a device needs for the state of layer il.
func (m *Model) stateBytes(il int, opt Options) int64 {
	s := m.net.State(il)
	return kvmirror.Bytes(s.KWidth, s.VWidth, kvmirror.Config{Context: opt.Context}.Rows(m.stateTokens(opt)))
}

// stateTokens is how many tokens' layer state there is room for: those of the context asked for, if that is known.
func (m *Model) stateTokens(opt Options) int {
	tokens := cmp.Or(opt.Context, kvReserve)
	return min(tokens, cmp.Or(m.Config.MaxPositionEmbeddings, tokens))
}

// weigh returns the bytes of layer il's weights, or the head's, as they lie on a device. The error names a tensor that has no form there.
func (m *Model) weigh(c *card, il int) (bytes int64, err error) {
	add := func(w *ops.Matrix) error {
		if !c.Supports(w.Format) {
			return fmt.Errorf("%s is %s, which has no form on the device", w.Name, w.Format)
		}
		bytes += c.Bytes(w)
		return nil
	}
	matrices, vectors := m.net.Weights(il)
	for _, w := range matrices {
		if err := add(w); err != nil {
			return 0, err
		}
	}
	for _, v := range vectors {
		const align = 256
		bytes += (4*int64(len(v.Data)) + align - 1) / align * align
	}
	// The catalogue knows shapes and formats; the set would assemble matrices that have scales of their own.
	for _, t := range m.expertTensors(il) {
		if err := add(&ops.Matrix{Name: t.Name, Format: t.Format, Rows: t.Rows(), Cols: t.Cols()}); err != nil {
			return 0, err
		}
	}
	return bytes, nil
}

// upload brings the planned layers to the device and returns their bytes. One that does not get there stays on the CPU with all that
// follow: no error.
func (m *Model) upload(ctx context.Context, progress func(done, total int64)) (done int64, err error) {
	b := &m.binding
	if b.card == nil {
		return 0, nil
	}
	total, rest := b.weights(), m.cpuTensors()
	for _, t := range m.Checkpoint.Tensors() {
		if rest(t) {
			total += t.Size
		}
	}
	for il := range m.net.Layers() + 1 {
		if il >= b.n && !b.head {
			break
		}
		name := fmt.Sprintf("layer %d", il)
		var experts ops.ExpertSet
		if il == m.net.Layers() {
			name = "the head"
		} else {
			experts = m.net.Experts(il)
		}
		// Pages that are read ahead, in order, come faster than those that the copying touches.
		if err := m.Checkpoint.PopulateOnly(ctx, m.tensorsOf(il), nil); err != nil {
			return done, err
		}
		matrices, vectors := m.net.Weights(il)
		l, err := b.card.Load(ctx, name, matrices, vectors, experts, func(n int64) {
			done += n
			progress(done, max(done, total))
		})
		if err == nil {
			b.loaded = append(b.loaded, l)
			continue
		}
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
		b.n, b.head = il, false // il is the number of layers for the head
		where := m.where()
		if b.n == 0 || errors.Is(err, device.ErrLost) {
			where = "all layers on the CPU"
			m.giveUp()
		}
		if e := (*gpu.DeviceError)(nil); errors.As(err, &e) {
			err = e.Err // the rest is said here
		}
		m.LayersWhy = fmt.Sprintf("%s; %s did not reach the device: %v", where, name, err)
		break
	}
	return done, nil
}

// tensorsOf says which tensors belong to layer il, or to the head.
func (m *Model) tensorsOf(il int) func(*weights.Tensor) bool {
	names := map[string]bool{}
	m.name(names, il)
	return func(t *weights.Tensor) bool { return names[t.Name] }
}

// cpuTensors says which tensors the CPU multiplies with. An embedding that is the head too, and on the device, is not among them: the CPU
// touches few of its rows.
func (m *Model) cpuTensors() func(*weights.Tensor) bool {
	names := map[string]bool{}
	for il := range m.binding.n {
		m.name(names, il)
	}
	if m.binding.head {
		m.name(names, m.net.Layers())
	}
	return func(t *weights.Tensor) bool { return !names[t.Name] }
}

// name adds the names of layer il's tensors, or the head's.
func (m *Model) name(names map[string]bool, il int) {
	matrices, vectors := m.net.Weights(il)
	for _, w := range matrices {
		names[w.Name] = true
	}
	for _, v := range vectors {
		names[v.Name] = true
	}
	for _, t := range m.expertTensors(il) {
		for ; t != nil; t = t.Scale {
			whole, _, _ := strings.Cut(t.Name, "[") // files that stack experts list the whole
			names[t.Name], names[whole] = true, true
		}
	}
}

// expertTensors are the matrices of layer il's routed experts.
func (m *Model) expertTensors(il int) (all []*weights.Tensor) {
	if il == m.net.Layers() || m.net.Experts(il) == nil {
		return nil
	}
	for e := range m.net.Experts(il).Len() {
		gate, up, down, err := m.Checkpoint.Expert(il, e)
		if err != nil {
			continue // not of a model that has been bound
		}
		all = append(all, gate, up, down)
	}
	return all
}

// detach frees the device and binds all layers to the CPU.
func (m *Model) detach() error {
	c := m.binding.card
	if c == nil {
		return nil
	}
	m.retired, m.retiredTimes = c.Stats(), c.Times()
	for _, l := range m.binding.loaded {
		l.Free()
	}
	m.binding = binding{}
	return c.end()
}

// end closes the device. That it is lost is no error then: there is nothing left for it to do.
func (c *card) end() error {
	if err := c.Close(); !errors.Is(err, device.ErrLost) {
		return err
	}
	return nil
}

// settle waits until the host has all rows of layer state that the device wrote. What a cancelled step has left behind is not computed.
func (m *Model) settle() error {
	c := m.binding.card
	if c == nil {
		return nil
	}
	c.Reset()
	return c.Finish()
}

// giveUp detaches a device that has failed.
func (m *Model) giveUp() {
	name := m.binding.card.name
	if err := m.detach(); err != nil {
		m.note(fmt.Sprintf("closing %s: %v", name, err))
	}
}

// abandon is called when the device has failed of err: the CPU runs all layers from here on. What belongs to conversations is on the host;
// the experts of the layers that were on the device are computed from the mapped file, or, where the others stream, read like these.
func (m *Model) abandon(err error) {
	m.LayersWhy = fmt.Sprintf("all layers on the CPU: the device failed (%v)", err)
	m.note(fmt.Sprintf("the device failed (%v): from here on everything runs on the CPU", err))
	m.giveUp()
	if layers := m.cpuLayers(); len(layers) > 0 {
		m.firstExperts = layers[0]
	}
}

// handOver returns x in the memory of the executor that runs the next layer.
func handOver(to, from ops.Executor, x model.Stream) model.Stream {
	if to == from {
		return x
	}
	out := make(model.Stream, len(x))
	for i, t := range x {
		out[i] = to.Upload(t.Name, t.Layer, t.Rows, t.Cols, from.Download(t))
	}
	return out
}
