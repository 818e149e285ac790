package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/coli-moe/coli/actors"
	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/ops"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/probe"
	"github.com/coli-moe/coli/weights"
)

// Prefetch says whether experts are read before a step asks for them.
type Prefetch string

// The settings.
const (
	PrefetchAuto Prefetch = "auto" // the balancer's to decide
	PrefetchOn   Prefetch = "on"
	PrefetchOff  Prefetch = "off"
)

// Set takes the value of a flag.
func (p *Prefetch) Set(s string) error {
	switch v := Prefetch(s); v {
	case PrefetchAuto, PrefetchOn, PrefetchOff:
		*p = v
		return nil
	}
	return errors.New("want auto, on or off")
}

func (p *Prefetch) String() string { return string(*p) }

// Type is what a flag's help calls the value.
func (p *Prefetch) Type() string { return "string" }

// kvReserve is how many tokens of layer state are set aside where nobody says how long conversations become.
const kvReserve = 4096

// place is where a model's experts live.
type place struct {
	records *weights.Records // nil: all in memory
	slots   int
	request int64  // bytes of a read
	readers int    // reads at a time
	why     string // one line
}

// decide settles where the experts of the CPU's layers live, before anything is loaded: in memory if they fit what the ledger, or --ram,
// allows; otherwise in as many slots as fit, filled from disk. What cannot run at all is refused with the numbers.
func (m *Model) decide(opt Options) (p place, err error) {
	r := &m.room
	all, experts := m.expertLayers()
	layers := m.cpuLayers()
	onCPU := m.cpuTensors()
	if r.dense, err = r.grant(EntryDense, m.Checkpoint.PageBytes(func(t *weights.Tensor) bool { return onCPU(t) && !t.OfExpert() })); err != nil {
		return p, err
	}
	if r.state, err = r.grant(EntryState, m.hostState()*int64(m.stateTokens(opt))); err != nil {
		return p, fmt.Errorf("%w or give a smaller --ctx-size than %d", err, m.stateTokens(opt))
	}
	switch {
	case len(all) == 0:
		return place{why: "no routed experts"}, nil
	case len(layers) == 0:
		return place{why: "all experts on the device"}, nil
	}
	total := m.Checkpoint.PageBytes(func(t *weights.Tensor) bool { return onCPU(t) && t.OfExpert() })
	budget, known := r.ram.Free()
	source := "free memory"
	if opt.RAM > 0 {
		x, err := r.ram.Grant("experts (--ram)", min(opt.RAM, total)) // beyond the experts nothing is needed
		if err != nil {
			return p, fmt.Errorf("%w or give a smaller --ram", err)
		}
		x.Release() // what is taken of it is known below
		budget, known, source = opt.RAM, true, "--ram"
	}
	if !known || total <= budget {
		if r.experts, err = r.grant(EntryExperts, total); err != nil {
			return p, err
		}
		what := "all experts"
		if len(layers) < len(all) {
			what = "all experts of the CPU's layers"
		}
		return place{why: fmt.Sprintf("%s in memory: %s of %s", what, ledger.FormatSize(total), sizeOr(budget, known, source))}, nil
	}
	// All layers' experts can be read: those on a device too, should it fail.
	if p.records, err = m.Checkpoint.Records(all, experts); err != nil {
		return p, err
	}
	slot := p.records.SlotBytes()
	if p.slots = int(budget / slot); p.slots < len(layers) {
		return p, fmt.Errorf("%w: experts get %s (%s), and one for each of %d layers needs %s (%s each); give a larger --ram",
			ledger.ErrNoRoom, ledger.FormatSize(budget), source, len(layers), ledger.FormatSize(int64(len(layers))*slot), ledger.FormatSize(slot))
	}
	if r.experts, err = r.grant(EntryExperts, int64(p.slots)*slot); err != nil {
		return p, err
	}
	first, err := p.records.Record(layers[0], 0)
	if err != nil {
		return p, err
	}
	p.request = first.ReadBytes() / int64(len(first.Extents))
	readers := "asked for"
	if p.readers = opt.Readers; p.readers == 0 {
		p.readers, readers = prefetcher.ReadersFor(p.request), "to begin with, as many as keep a drive busy"
	}
	if opt.Deterministic {
		p.readers, readers = 1, "--deterministic"
	}
	p.why = fmt.Sprintf("experts stream from disk: %d of %d fit %s (%s), %s each; reads at a time: %d (%s)",
		p.slots, len(layers)*experts, ledger.FormatSize(budget), source, ledger.FormatSize(slot), p.readers, readers)
	return p, nil
}

// hostState is what the layer state of a token takes in RAM, where all of it lies.
func (m *Model) hostState() (bytes int64) {
	for il := range m.net.Layers() {
		s := m.net.State(il)
		bytes += int64(s.KWidth+s.VWidth) * 4
	}
	return bytes
}

func sizeOr(bytes int64, known bool, source string) string {
	if !known {
		return "an unknown amount"
	}
	return ledger.FormatSize(bytes) + " " + source
}

// ExpertDims are the model's layers and the experts a layer has; no experts for a model without.
func (m *Model) ExpertDims() (layers, experts int) {
	_, experts = m.expertLayers()
	return m.net.Layers(), experts
}

// expertLayers are the layers with routed experts, and how many a layer has.
func (m *Model) expertLayers() (layers []int, experts int) {
	for il := range m.net.Layers() {
		if set := m.net.Experts(il); set != nil {
			layers, experts = append(layers, il), max(experts, set.Len())
		}
	}
	return layers, experts
}

// start pages in what the CPU needs of the weights, after done bytes for the device, and starts the expert pipeline.
func (m *Model) start(ctx context.Context, opt Options, p place, done int64) error {
	if err := m.prepare(ctx, opt, p, done); err != nil {
		return err
	}
	_, experts := m.expertLayers()
	if experts == 0 {
		return nil
	}
	if layers := m.cpuLayers(); len(layers) > 0 {
		m.firstExperts = layers[0]
	}
	var history []uint64
	if opt.History != nil {
		history = slices.Clone(opt.History(m.Config.ModelType, m.net.Layers(), experts))
		clear(history[:min(m.binding.n*experts, len(history))]) // the device has these
	}
	var err error
	var balance balancer.Config
	if p.records != nil {
		balance = m.balance(opt, p)
	}
	m.system, err = actors.NewSystem(actors.SystemConfig{
		Layers: m.net.Layers(), Experts: experts, Records: p.records, Slots: p.slots, Balance: balance, Probe: m.probe, Direct: opt.Direct,
		Threads: m.exec.Threads(), History: history, Trace: opt.Trace, Runtime: m.runtime(opt), Note: m.note, Open: opt.open,
	})
	if err != nil {
		return err
	}
	if p.records != nil {
		m.room.experts.Hold(m.system.SlotBytes())
	}
	m.exec.Use(m.system, m.failed)
	return nil
}

// prepare pages weights in. If experts are read from disk it measures the drive before, and has the probe opened meanwhile: the kernel takes
// some 100 ms to look at the programs, and a processor, which the drive's rate would be too low for if it were measured then.
func (m *Model) prepare(ctx context.Context, opt Options, p place, done int64) error {
	if p.records != nil {
		m.request = p.request
		if err := m.measure(ctx, p); err != nil {
			return err
		}
		defer m.openProbe(opt.Probe)()
	}
	return m.populate(ctx, p, func(n, total int64) { opt.Progress(done+n, done+total) })
}

// openProbe begins to open a probe, unless there is one to share. The function that it returns waits for that. Nothing depends on it.
func (m *Model) openProbe(shared *probe.Probe) (wait func()) {
	if m.probe = shared; shared != nil {
		return func() {}
	}
	var err error
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		m.probe, err = probe.Open(probe.Options{})
	}()
	return func() {
		<-opened
		if m.ownProbe = err == nil; err != nil {
			m.note(fmt.Sprintf("the drive is not watched: %v", err))
		}
	}
}

// populate pages in the CPU's dense weights, and its experts unless they stream.
func (m *Model) populate(ctx context.Context, p place, progress func(done, total int64)) error {
	onCPU, r := m.cpuTensors(), &m.room
	leases := []*ledger.Lease{r.dense}
	total := r.dense.Bytes()
	if p.records == nil && r.experts != nil {
		leases = append(leases, r.experts)
		total += r.experts.Bytes()
	}
	before := int64(0)
	for _, x := range leases {
		taken := int64(0)
		err := m.Checkpoint.PopulateOnly(ctx, func(t *weights.Tensor) bool { return onCPU(t) && t.OfExpert() == (x == r.experts) }, func(n, _ int64) {
			taken = n
			progress(before+n, total)
		})
		if err != nil {
			return err
		}
		x.Hold(taken)
		before += taken
	}
	return nil
}

// measure reads a little at random offsets, to have the drive's own rate to compare with.
func (m *Model) measure(ctx context.Context, p place) error {
	rate, err := prefetcher.RawRate(ctx, m.Checkpoint.Files(), p.request, p.readers, rateTime)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, syscall.EINVAL) { // direct reads are refused, which the prefetcher says
			m.note(fmt.Sprintf("the drive's rate is unknown: %v", err))
		}
		return nil
	}
	m.driveRate = rate
	return nil
}

// failed is told of a step that the pipeline could not compute, which is going to be computed without it. The same trouble is said once.
func (m *Model) failed(err error) {
	// A step that nobody waits for any more is not computed at all; nor is one from a mapped file that has lost the bytes: what it has
	// in their place may be zeros.
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, weights.ErrTruncated) {
		panic(&ops.Failure{Err: err})
	}
	m.failures++
	switch {
	case errors.Is(err, actors.ErrGone): // the system has said so
		m.exec.Use(nil, nil)
	case errors.Is(err, actors.ErrRestarted): // likewise
	default:
		trouble := err.Error()
		if e := (*weights.Error)(nil); errors.As(err, &e) && e.Err != nil {
			trouble = e.File + ": " + e.Err.Error() // wherever in the file
		}
		if len(m.said) < maxFailuresSaid && !m.said[trouble] {
			if m.said == nil {
				m.said = map[string]bool{}
			}
			m.said[trouble] = true
			m.note(fmt.Sprintf("a step was computed from the mapped file: %v", err))
		}
	}
}

const (
	maxFailuresSaid = 3
	rateTime        = 200 * time.Millisecond // enough for some hundred megabytes of the drives at hand
)
