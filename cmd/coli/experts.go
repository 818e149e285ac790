package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/atomicfile"
	"github.com/coli-moe/coli/internal/embedded"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/prefetcher"
	"github.com/coli-moe/coli/router"
)

// expertOptions are the flags that say where a model's routed experts live and how they get there.
type expertOptions struct {
	ram           sizeFlag
	readers       int
	direct        modeFlag
	prefetch      engine.Prefetch
	depth         int
	horizon       int
	deterministic bool
	trace         string
}

func (o *expertOptions) flags(f *pflag.FlagSet) {
	o.prefetch = engine.PrefetchAuto
	f.Var(&o.ram, "ram", "most memory for experts, as `SIZE`: 8GiB, 75%; those that do not fit are read from disk (default: what is free)")
	f.IntVar(&o.readers, "readers", 0, "experts read from disk at the same time, 0 for what proves fastest while running")
	f.Var(&o.prefetch, "prefetch", "read experts before they are asked for: `auto|on|off`; auto tries it and keeps it while it pays")
	f.IntVar(&o.depth, "prefetch-depth", 0, "experts of a layer to read before they are asked for, unless --prefetch is off; 0 for what proves fastest")
	f.IntVar(&o.horizon, "prefetch-horizon", 0, "layers ahead whose experts are read before they are asked for, 0 for what proves fastest")
	f.Var(&o.direct, "direct", "read experts past the page cache: `auto|on|off`")
	f.BoolVar(&o.deterministic, "deterministic", false, "what is read and where it stays follows the routing alone, not earlier runs nor time")
	f.StringVar(&o.trace, "trace", "", "write a timeline of the actors to `FILE`, for ui.perfetto.dev")
}

func (o *expertOptions) check() error {
	if o.readers < 0 || o.readers > prefetcher.MaxReaders {
		return fmt.Errorf("--readers %d: want a number from 1 to %d, or 0 to have it decided", o.readers, prefetcher.MaxReaders)
	}
	if o.deterministic && o.readers > 1 {
		return fmt.Errorf("--readers %d and --deterministic exclude each other: which of several reads ends first is up to the drive", o.readers)
	}
	for _, x := range []struct {
		flag string
		n    int
	}{{"prefetch-depth", o.depth}, {"prefetch-horizon", o.horizon}} {
		if x.n < 0 {
			return fmt.Errorf("--%s %d: want a number from 1, or 0 to have it decided", x.flag, x.n)
		}
		if x.n > 0 && o.prefetch == engine.PrefetchOff {
			return fmt.Errorf("--%s %d and --prefetch off exclude each other", x.flag, x.n)
		}
	}
	return nil
}

// apply sets the options of a load; note takes lines for the user.
func (o *expertOptions) apply(opt *engine.Options, note func(string)) {
	opt.RAM, opt.Readers, opt.Direct, opt.Prefetch = o.ram.bytes, o.readers, o.direct.mode, o.prefetch
	opt.Depth, opt.Horizon = o.depth, o.horizon
	opt.Deterministic, opt.Trace, opt.Note = o.deterministic, o.trace != "", note
}

// writeTrace writes the timeline that was asked for.
func (o *expertOptions) writeTrace(m *engine.Model) error {
	if o.trace == "" {
		return nil
	}
	if at, err := os.Stat(o.trace); err == nil {
		for _, file := range m.Checkpoint.Files() {
			if info, err := os.Stat(file); err == nil && os.SameFile(at, info) {
				return fmt.Errorf("--trace %s: this is the model; name another file", o.trace)
			}
		}
	}
	if err := atomicfile.Write(o.trace, 0o666, m.WriteTrace); err != nil {
		return fmt.Errorf("--trace: %w", err)
	}
	return nil
}

// sizeFlag is a number of bytes.
type sizeFlag struct {
	text  string
	bytes int64
}

func (s *sizeFlag) Set(text string) error {
	l, err := ledger.New(ledger.System())
	if err != nil {
		return err
	}
	free, _ := l.Free()
	n, err := ledger.ParseSize(text, free)
	if err == nil && n == 0 {
		err = errors.New("no memory at all leaves no expert to compute")
	}
	s.text, s.bytes = text, n
	return err
}

func (s *sizeFlag) String() string { return s.text }

// Type is what the help calls the value.
func (s *sizeFlag) Type() string { return "size" }

// modeFlag is a prefetcher.Mode.
type modeFlag struct{ mode prefetcher.Mode }

func (m *modeFlag) Set(text string) (err error) {
	m.mode, err = prefetcher.ParseMode(text)
	return err
}

func (m *modeFlag) String() string { return m.mode.String() }

// Type is what the help calls the value.
func (m *modeFlag) Type() string { return "mode" }

// history is the usage history of a model, which decides what is read at the start.
type history struct {
	ignored bool // it is written, but decides nothing
	paths   []string
	*router.History
}

// load is engine.Options.History: it reads the counts of earlier runs. Without them a run begins with no expert in memory.
func (h *history) load(path string, note func(string)) func(modelType string, layers, experts int) []uint64 {
	return func(modelType string, layers, experts int) []uint64 {
		cache, err := embedded.CacheDir()
		if err != nil {
			cache = ""
		}
		h.paths = router.HistoryPaths(path, cache)
		h.History, err = router.LoadHistory(h.paths, router.Identity{Layers: layers, Experts: experts, Engine: modelType})
		if err != nil {
			note("the usage history is not used: " + oneLine(err))
		}
		if h.ignored {
			return nil
		}
		return h.Counts()
	}
}

// save adds what was routed since the model was loaded. Nothing depends on it, so a failure is only said.
func (h *history) save(m *engine.Model, note func(string)) {
	routed := m.Routed()
	if h.History == nil || routed == nil {
		return
	}
	_, experts := m.ExpertDims()
	for i, n := range routed {
		if n > 0 {
			h.Add(i/experts, i%experts, n)
		}
	}
	if _, err := h.Save(h.paths); err != nil {
		note(oneLine(err))
	}
}

// oneLine is the text of an error that joins others.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// expertsLine says where the experts of an answer were found, what that cost, and how well they were foreseen.
func expertsLine(s engine.ExpertStats) string {
	var b strings.Builder
	pairs := s.PairsInMemory + s.PairsInFlight + s.PairsOnDisk
	fmt.Fprintf(&b, "experts: %d pairs, %s in memory, %s being read, %s on disk", pairs,
		percent(s.PairsInMemory, pairs), percent(s.PairsInFlight, pairs), percent(s.PairsOnDisk, pairs))
	fmt.Fprintf(&b, "; read %s", ledger.FormatSize(s.Read))
	if s.Reading > 0 {
		fmt.Fprintf(&b, " at %.2f GB/s", float64(s.Read)/s.Reading.Seconds()/1e9)
	}
	if s.DriveRate > 0 {
		fmt.Fprintf(&b, " (the drive's own rate is %.2f)", s.DriveRate/1e9)
	}
	fmt.Fprintf(&b, "; waited %.2f s for the disk; %d promotions, %d evictions", s.Waited.Seconds(), s.Promotions, s.Evictions)
	if p, ok := s.Precision(); ok {
		fmt.Fprintf(&b, "; %.0f%% of predicted reads were used", 100*p)
	}
	if r, ok := s.Recall(); ok && s.PredictedReads > 0 {
		fmt.Fprintf(&b, ", %.0f%% of the experts that were missing had been predicted", 100*r)
	}
	if s.Prefetch != "" {
		b.WriteString("; prefetch: " + s.Prefetch)
	}
	return b.String()
}

func percent(part, whole int64) string {
	if whole == 0 {
		return "0%"
	}
	return fmt.Sprintf("%.0f%%", 100*float64(part)/float64(whole))
}

// reportExperts is the part of --json about experts that stream from disk.
type reportExperts struct {
	Slots             int64    `json:"slots"`
	SlotBytes         int64    `json:"slot_bytes"`
	PairsInMemory     int64    `json:"pairs_in_memory"`
	PairsInFlight     int64    `json:"pairs_in_flight"`
	PairsOnDisk       int64    `json:"pairs_on_disk"`
	BytesRead         int64    `json:"bytes_read"`
	ReadRate          float64  `json:"read_rate"`          // bytes a second while reading
	DriveRate         *float64 `json:"drive_rate"`         // null where it could not be measured
	WaitedTime        float64  `json:"waited_time"`        // seconds the engine waited for the disk
	PrefetchPrecision *float64 `json:"prefetch_precision"` // null where nothing was predicted
	PrefetchRecall    *float64 `json:"prefetch_recall"`    // null where nothing was missing
	DemandReads       int64    `json:"demand_reads"`
	PredictedReads    int64    `json:"predicted_reads"`
	WarmReads         int64    `json:"warm_reads"`
	Promotions        int64    `json:"promotions"`
	Evictions         int64    `json:"evictions"`
	Prefetch          string   `json:"prefetch"`
}

func newReportExperts(s engine.ExpertStats) *reportExperts {
	r := &reportExperts{
		Slots: s.Slots, SlotBytes: s.SlotBytes,
		PairsInMemory: s.PairsInMemory, PairsInFlight: s.PairsInFlight, PairsOnDisk: s.PairsOnDisk,
		BytesRead: s.Read, WaitedTime: s.Waited.Seconds(),
		DemandReads: s.DemandReads, PredictedReads: s.PredictedReads, WarmReads: s.WarmReads,
		Promotions: s.Promotions, Evictions: s.Evictions, Prefetch: s.Prefetch,
	}
	if s.Reading > 0 {
		r.ReadRate = float64(s.Read) / s.Reading.Seconds()
	}
	if s.DriveRate > 0 {
		r.DriveRate = &s.DriveRate
	}
	if p, ok := s.Precision(); ok {
		r.PrefetchPrecision = &p
	}
	if p, ok := s.Recall(); ok {
		r.PrefetchRecall = &p
	}
	return r
}
