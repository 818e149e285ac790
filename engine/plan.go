package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/coli-moe/coli/kernels"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/limits"
	"github.com/coli-moe/coli/model"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/weights"
)

// Plan is what a load with the same options would decide, and what a token would then have to read. Of a model that coli cannot run it has
// the sizes alone.
type Plan struct {
	Architecture string
	Unsupported  error // why coli cannot run the model; nil if it can
	Layers       int
	Experts      int   // of a layer with routed experts; 0 for a model without
	TopK         int   // of them, a token
	DenseBytes   int64 // in the files, of everything but routed experts
	ExpertBytes  int64 // of the routed experts

	Threads      int
	ThreadsWhy   string
	Device       string // that layers run on, "" for none
	DeviceLayers int    // of Layers, the first ones
	Head         bool   // on the device too
	Shared       bool   // the device's memory is RAM
	LayersWhy    string // as Model.LayersWhy
	PlaceWhy     string // as Model.PlaceWhy

	Chunk    int              // rows of a prefill step
	Context  int              // tokens whose layer state is set aside
	Accounts []ledger.Account // of RAM and, with layers on one, of the device: what the run will be granted, and nothing of it taken

	Streams   bool  // experts of the CPU's layers are read from disk
	CPUPairs  int   // experts of the CPU's layers, all layers together
	Slots     int   // of these, how many are in RAM at once
	SlotBytes int64 // memory of one; 0 unless Streams
	Request   int64 // bytes of a read; 0 unless Streams
	Readers   int   // reads at a time; 0 unless Streams

	// Hit is the share of the CPU's pairs whose experts are in RAM if the slots hold the experts that earlier runs used most, which routed
	// Earlier pairs in the CPU's layers. With none, it is that of routing where every expert is as likely, which no routing falls below.
	Hit     float64
	Earlier uint64

	// Empty is what a token reads at the beginning of a conversation, Full what it reads at its end, after Context tokens. What lies on a
	// device whose memory is RAM is read from RAM.
	Empty, Full limits.Work

	files []string
}

// MakePlan decides what Load would decide, and refuses what it would refuse, without loading the model: nothing is paged in, measured or
// left on a device. Options that only a running model knows of are ignored.
func MakePlan(ctx context.Context, path string, opt Options) (p *Plan, err error) {
	found := look(opt)
	defer func() { err = errors.Join(err, found.end()) }()
	c, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	p = &Plan{
		Architecture: cfg.ModelType, Layers: cfg.NumHiddenLayers, Experts: cfg.NumExperts, TopK: cfg.NumExpertsPerTok,
		DenseBytes: c.DenseBytes(), ExpertBytes: c.ExpertBytes(), files: c.Files(),
	}
	m, err := prepare(path, c, opt)
	if unsupported := (*model.ErrUnsupported)(nil); errors.As(err, &unsupported) {
		p.Unsupported = err
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.stop()) }()
	if _, err := m.contextSize(opt.Context); err != nil {
		return nil, err
	}
	at, err := m.settleIn(opt, found)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	p.fill(m, opt, at)
	return p, nil
}

// fill notes what has been decided.
func (p *Plan) fill(m *Model, opt Options, at place) {
	_, p.Experts = m.expertLayers()
	p.Threads, p.ThreadsWhy = m.threads, m.ThreadsWhy
	p.Device, p.LayersWhy, p.PlaceWhy = m.deviceName, m.LayersWhy, at.why
	p.DeviceLayers, p.Head = m.LayersOnDevice()
	p.Shared = m.binding.card != nil && m.binding.card.shared
	p.Chunk, p.Context, p.Accounts = m.chunk, m.stateTokens(opt), m.Ledger()
	layers := m.cpuLayers()
	p.CPUPairs = len(layers) * p.Experts
	p.Slots = p.CPUPairs
	if at.records != nil {
		p.Streams, p.Slots, p.SlotBytes, p.Request, p.Readers = true, min(at.slots, p.CPUPairs), at.records.SlotBytes(), at.request, at.readers
	}
	var counts []uint64
	if opt.History != nil && p.Experts > 0 {
		counts = opt.History(m.Config.ModelType, m.net.Layers(), p.Experts)
	}
	p.Hit, p.Earlier = expected(counts, p.Experts, layers, p.Slots)
	p.Empty, p.Full = p.spread(m.Work(0)), p.spread(m.Work(p.Context))
}

// spread moves what is not expected to be in RAM to the disk, and to RAM what is not in a memory of its own.
func (p *Plan) spread(w limits.Work) limits.Work {
	w.Experts[limits.Disk] = (1 - p.Hit) * w.Experts[limits.RAM]
	w.Experts[limits.RAM] *= p.Hit
	if p.Shared {
		for _, x := range []*limits.PerTier{&w.Dense, &w.Experts, &w.KV} {
			x[limits.RAM], x[limits.VRAM] = x[limits.RAM]+x[limits.VRAM], 0
		}
	}
	return w
}

// expected is the share of the pairs in the layers, counted by layer and expert, that the most used experts have of which so many fit; and how
// many pairs there are.
func expected(counts []uint64, experts int, layers []int, slots int) (hit float64, pairs uint64) {
	n := len(layers) * experts
	if n == 0 {
		return 1, 0
	}
	var here []uint64
	for _, il := range layers {
		if (il+1)*experts <= len(counts) {
			here = append(here, counts[il*experts:(il+1)*experts]...)
		}
	}
	slices.SortFunc(here, func(a, b uint64) int { return cmp.Compare(b, a) })
	fits, all := 0.0, 0.0 // counts of many runs may be more than a uint64 holds
	for i, c := range here {
		if pairs += c; i < slots {
			fits += float64(c)
		}
		all += float64(c)
	}
	if all == 0 {
		return min(float64(slots)/float64(n), 1), 0
	}
	return fits / all, pairs
}

// MemoryRate measures for d what so many threads load from memory, in bytes a second; see kernels.ReadRate. It is an error if too little
// memory is free to tell memory from caches.
func MemoryRate(ctx context.Context, threads int, d time.Duration) (float64, error) {
	l, err := ledger.New(ledger.System())
	if err != nil {
		return 0, err
	}
	x, err := l.Grant("measuring the rate of memory", kernels.BeyondCaches())
	if err != nil {
		return 0, err
	}
	defer x.Release()
	rate := kernels.ReadRate(ctx, threads, x.Bytes(), d)
	if rate == 0 {
		return 0, cmp.Or(ctx.Err(), errors.New("the memory to be read cannot be had"))
	}
	return rate, nil
}

// DriveRate measures what the drive delivers when it is read as the experts would be, in bytes a second; see prefetcher.RawRate.
func (p *Plan) DriveRate(ctx context.Context) (float64, error) {
	if !p.Streams {
		return 0, errors.New("experts are not read from disk")
	}
	return prefetcher.RawRate(ctx, p.files, p.Request, p.Readers, rateTime)
}
