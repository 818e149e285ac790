package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/ledger"
	"github.com/coli-moe/coli/limits"
)

// planOptions are the flags of `coli plan`.
type planOptions struct {
	load  engine.Options
	place placement
	model string
	rates ratesFlags
	json  bool
}

// ratesFlags are rates that need not be measured, in GB/s.
type ratesFlags struct {
	ram, drive, vram float32
	quick            bool
}

const planLong = `Say, without loading the model, what coli run would put where with the same flags: layers on a device, dense weights, layer state and
experts in memory, the other experts on disk. From what a token reads there follow upper bounds of the tokens a second: one read after
another (serial), and all kinds of memory at the same time (overlapped). MODEL defaults to $COLI_MODEL, then to the built-in one.

What coli run would refuse is refused here, in the same words. Flags of coli run that say how something is done, not where it lies, change
nothing. How often experts are found in memory is taken from the usage history of earlier runs; without one, every expert counts as likely.`

// newPlanCmd returns `coli plan`, a few lines over engine.MakePlan and package limits.
func newPlanCmd() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:     "plan [MODEL]",
		Short:   "Say what would lie where, and how fast a model can be at best",
		Long:    planLong,
		Example: "  coli plan model.gguf\n  coli plan --ram 8GiB --ctx-size 8192 --json model.gguf",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("which model? Give one, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.model = args[0]
			}
			return o.run(cmd)
		},
	}
	group(cmd, "Model", func(f *pflag.FlagSet) {
		f.StringVarP(&o.model, "model", "m", "", "the same as MODEL, by `PATH`")
		f.IntVarP(&o.load.Context, "ctx-size", "c", 0, "most tokens of prompt and answer, 0 for the model's own limit")
		f.IntVarP(&o.load.Threads, "threads", "t", 0, "CPU threads, 0 for the physical cores this process may use")
		f.IntVar(&o.load.Chunk, "chunk", engine.DefaultChunk, "tokens of the prompt computed in one step")
	})
	o.place.flags(cmd)
	for _, name := range []string{"prefetch", "trace", "gpu-profile"} {
		cmd.Flags().Lookup(name).Hidden = true
	}
	group(cmd, "Rates", func(f *pflag.FlagSet) {
		f.Float32Var(&o.rates.ram, "ram-rate", 0, "read rate of memory in GB/s, instead of measuring it")
		f.Float32Var(&o.rates.drive, "drive-rate", 0, "read rate of the drive in GB/s, instead of measuring it")
		f.Float32Var(&o.rates.vram, "vram-rate", 0, "read rate of the device's memory in GB/s, which is not measured")
		f.BoolVar(&o.rates.quick, "quick", false, "measure no rates")
	})
	group(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&o.json, "json", false, "print one JSON object")
	})
	return cmd
}

func (o *planOptions) run(cmd *cobra.Command) error {
	switch {
	case o.load.Threads < 0:
		return usageError{fmt.Errorf("--threads %d: want a positive number, or 0 for the physical cores", o.load.Threads)}
	case o.load.Chunk < 1:
		return usageError{fmt.Errorf("--chunk %d: want a positive number", o.load.Chunk)}
	}
	for name, rate := range map[string]float32{"ram": o.rates.ram, "drive": o.rates.drive, "vram": o.rates.vram} {
		if rate < 0 || math.IsInf(float64(rate), 0) || math.IsNaN(float64(rate)) {
			return usageError{fmt.Errorf("--%s-rate %g: want a number of GB/s", name, rate)}
		}
	}
	if err := o.place.check(); err != nil {
		return usageError{err}
	}
	path, err := modelPath(cmd, o.model)
	if err != nil {
		return err
	}
	ctx, stop := endable(cmd.Context())
	defer stop()
	say := func(line string) { note(cmd.ErrOrStderr(), "%s", line) }
	o.place.apply(&o.load, say)
	used := history{ignored: o.place.experts.deterministic}
	o.load.History = used.load(path, say)
	p, err := engine.MakePlan(ctx, path, o.load)
	if err != nil {
		return loadError(err)
	}
	var r rates
	if p.Unsupported == nil {
		if r, err = o.rates.measure(ctx, p, say); err != nil {
			return err
		}
	}
	if o.json {
		return writeJSON(cmd.OutOrStdout(), newReportPlan(p, &r))
	}
	return printPlan(cmd.OutOrStdout(), p, &r)
}

// rates are how fast the tiers can be read, in bytes a second, and where each figure comes from.
type rates struct {
	limits.PerTier
	from [limits.Tiers]string
}

// measure finds out the rates that the plan needs and no flag gives. One that stays unknown is said.
func (f *ratesFlags) measure(ctx context.Context, p *engine.Plan, say func(string)) (r rates, err error) {
	const given = "as given"
	set := func(t limits.Tier, rate float64, from string) { r.PerTier[t], r.from[t] = rate, from }
	needs := p.Full.Read()
	for t, flag := range map[limits.Tier]float32{limits.VRAM: f.vram, limits.RAM: f.ram, limits.Disk: f.drive} {
		if flag > 0 {
			set(t, 1e9*float64(flag), given)
		}
	}
	if !f.quick && r.PerTier[limits.RAM] == 0 && needs[limits.RAM] > 0 {
		rate, err := engine.MemoryRate(ctx, p.Threads, 250*time.Millisecond)
		switch {
		case ctx.Err() != nil:
			return r, ctx.Err()
		case err != nil:
			say(fmt.Sprintf("the memory's rate is unknown: %v; or give --ram-rate", err))
		default:
			set(limits.RAM, rate, fmt.Sprintf("measured, %s", plural(p.Threads, "thread")))
		}
	}
	if !f.quick && p.Streams && r.PerTier[limits.Disk] == 0 {
		rate, err := p.DriveRate(ctx)
		switch {
		case ctx.Err() != nil:
			return r, ctx.Err()
		case err != nil:
			say(fmt.Sprintf("the drive's rate is unknown: %v; give --drive-rate", err))
		default:
			set(limits.Disk, rate, fmt.Sprintf("measured, %s of %s at a time", plural(p.Readers, "read"), ledger.FormatSize(p.Request)))
		}
	}
	return r, nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func printPlan(w io.Writer, p *engine.Plan, r *rates) error {
	var b strings.Builder
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(key, format string, args ...any) { fmt.Fprintf(tab, key+"\t"+format+"\n", args...) }
	shape := plural(p.Layers, "layer")
	if p.Experts > 0 {
		shape += fmt.Sprintf(", %d experts in each, top %d", p.Experts, p.TopK)
	}
	row("model", "%s, %s", p.Architecture, shape)
	row("weights", "%s dense, %s in experts", ledger.FormatSize(p.DenseBytes), ledger.FormatSize(p.ExpertBytes))
	if p.Unsupported != nil {
		row("cannot run", "%v", p.Unsupported)
		tab.Flush() //nolint:errcheck // into memory
		return writeTable(w, b.String())
	}
	row("threads", "%d (%s)", p.Threads, p.ThreadsWhy)
	row("layers", "%s", cmp.Or(p.LayersWhy, "all layers on the CPU"))
	row("experts", "%s", p.PlaceWhy)
	if err := tab.Flush(); err != nil {
		return err
	}
	for _, a := range p.Accounts {
		budget := ""
		if a.Known {
			budget = fmt.Sprintf(", of %s that may be used", ledger.FormatSize(a.Budget))
		}
		fmt.Fprintf(&b, "\nmemory: %s%s\n", a.Of, budget)
		for _, e := range a.Entries {
			what := ""
			switch {
			case e.Name == engine.EntryExperts && p.CPUPairs > 0:
				what = fmt.Sprintf("%d of %d, %s", p.Slots, p.CPUPairs, percent(int64(p.Slots), int64(p.CPUPairs)))
			case e.Name == engine.EntryState:
				what = fmt.Sprintf("of %d tokens", p.Context)
			case e.Name == engine.EntrySteps:
				what = fmt.Sprintf("of %d tokens", p.Chunk)
			}
			fmt.Fprintf(tab, "  %s\t%s\t%s\n", e.Name, ledger.FormatSize(e.Bytes), what)
		}
		if err := tab.Flush(); err != nil {
			return err
		}
	}
	printReads(&b, tab, p, r)
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%s\n", hitLine(p))
	return writeTable(w, b.String())
}

// writeTable writes lines without the spaces that a table ends its empty cells with.
func writeTable(w io.Writer, text string) error {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return outputError(err)
	}
	return nil
}

// printReads prints what a token reads from the tiers that it reads from, at which rates, and the bounds that follow.
func printReads(b *strings.Builder, tab *tabwriter.Writer, p *engine.Plan, r *rates) {
	full := p.Full
	var tiers []limits.Tier
	for t, bytes := range full.Read() {
		if bytes > 0 {
			tiers = append(tiers, limits.Tier(t))
		}
	}
	line := func(name string, cell func(limits.Tier) string, note string) {
		fmt.Fprintf(tab, "  %s", name)
		for _, t := range tiers {
			fmt.Fprintf(tab, "\t%s", cell(t))
		}
		fmt.Fprintf(tab, "\t%s\n", note)
	}
	bytes := func(p limits.PerTier) func(limits.Tier) string {
		return func(t limits.Tier) string { return ledger.FormatSize(int64(p[t])) }
	}
	b.WriteString("\n")
	line("a token reads", limits.Tier.String, "")
	line("dense weights", bytes(full.Dense), "")
	line("experts", bytes(full.Experts), "")
	line("layer state", bytes(full.KV), fmt.Sprintf("after %d tokens", p.Context))
	line("rate", func(t limits.Tier) string { return gigabytes(r.PerTier[t]) }, sources(tiers, r))
	tab.Flush() //nolint:errcheck // into memory
	fmt.Fprintf(tab, "\n  tokens a second, at most\tserial\toverlapped\n")
	for _, x := range []struct {
		when string
		work limits.Work
	}{{"at the beginning", p.Empty}, {fmt.Sprintf("after %d tokens", p.Context), p.Full}} {
		bound := limits.Decode(x.work, r.PerTier)
		limit := ""
		if bound.Overlapped > 0 {
			limit = "limited by " + bound.Limit.String()
		}
		fmt.Fprintf(tab, "  %s\t%s\t%s\t%s\n", x.when, perSecond(bound.Serial), perSecond(bound.Overlapped), limit)
	}
}

func gigabytes(rate float64) string {
	if rate <= 0 {
		return "unknown"
	}
	return fmt.Sprintf("%.3g GB/s", rate/1e9)
}

func perSecond(rate float64) string {
	if rate <= 0 {
		return "unknown"
	}
	return fmt.Sprintf("%.*f", max(0, 2-int(math.Log10(max(rate, 1)))), rate)
}

// sources says where the rates come from, and how an unknown one can be given.
func sources(tiers []limits.Tier, r *rates) string {
	var all []string
	for _, t := range tiers {
		from := r.from[t]
		if r.PerTier[t] <= 0 {
			from = "give --" + [...]string{"vram", "ram", "drive"}[t] + "-rate"
		}
		all = append(all, fmt.Sprintf("%s: %s", t, from))
	}
	return strings.Join(all, "; ")
}

// hitLine says how many pairs are expected to find their expert in memory, and why.
func hitLine(p *engine.Plan) string {
	switch {
	case p.Experts == 0:
		return "no routed experts"
	case p.CPUPairs == 0:
		return "all experts are on the device"
	case !p.Streams:
		return "all experts are in memory"
	case p.Earlier > 0:
		return fmt.Sprintf("hit rate: %.0f%%, the share of the experts used most that fit in the %d pairs of earlier runs", 100*p.Hit, p.Earlier)
	}
	return fmt.Sprintf("hit rate: %.0f%%, as if all experts were as likely: there is no usage history yet. Real routing hits more often", 100*p.Hit)
}

// reportPlan is what --json prints. Bytes by tier are absent where nothing is read.
type reportPlan struct {
	Architecture string  `json:"architecture"`
	Runs         bool    `json:"runs"`
	Why          string  `json:"why,omitempty"` // it does not run
	Layers       int     `json:"layers"`
	Experts      int     `json:"experts"`
	TopK         int     `json:"top_k"`
	DenseBytes   int64   `json:"dense_bytes"`
	ExpertBytes  int64   `json:"expert_bytes"`
	Context      int     `json:"context,omitempty"` // tokens whose layer state is set aside
	Threads      int     `json:"threads,omitempty"`
	Device       *onPlan `json:"device,omitempty"`
	LayersWhy    string  `json:"layers_why,omitempty"`
	PlaceWhy     string  `json:"experts_why,omitempty"`

	Memory []reportAccount       `json:"memory,omitempty"`
	Place  *reportPlace          `json:"placement,omitempty"`
	Rates  map[string]reportRate `json:"rates,omitempty"`
	Empty  *reportBound          `json:"empty_context,omitempty"`
	Full   *reportBound          `json:"full_context,omitempty"`
}

type onPlan struct {
	Name   string `json:"name"`
	Layers int    `json:"layers"`
	Head   bool   `json:"head"`
}

type reportAccount struct {
	Of      string        `json:"of"`
	Budget  *int64        `json:"budget_bytes"` // null where the system does not tell
	Entries []reportEntry `json:"entries"`
}

type reportEntry struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// reportPlace is where the experts of the CPU's layers are.
type reportPlace struct {
	Experts      int     `json:"experts"`
	InRAM        int     `json:"in_ram"`
	OnDisk       int     `json:"on_disk"`
	SlotBytes    int64   `json:"slot_bytes,omitempty"`
	Readers      int     `json:"readers,omitempty"`
	RequestBytes int64   `json:"request_bytes,omitempty"`
	HitRate      float64 `json:"hit_rate"`
	HitSource    string  `json:"hit_source"` // "all", "history", "uniform": without a history, a lower bound
	HistoryPairs uint64  `json:"history_pairs"`
}

type reportRate struct {
	Rate   float64 `json:"bytes_per_second"`
	Source string  `json:"source"`
}

// reportBound is what a token reads, and the most tokens a second; null where a rate is not known.
type reportBound struct {
	Tokens     int                `json:"tokens"` // of the context
	Dense      map[string]int64   `json:"dense_bytes"`
	Experts    map[string]int64   `json:"expert_bytes"`
	State      map[string]int64   `json:"layer_state_bytes"`
	Seconds    map[string]float64 `json:"seconds"`
	Serial     *float64           `json:"serial_tokens_per_second"`
	Overlapped *float64           `json:"overlapped_tokens_per_second"`
	Limit      string             `json:"limit,omitempty"`
}

func newReportPlan(p *engine.Plan, r *rates) *reportPlan {
	out := &reportPlan{
		Architecture: p.Architecture, Runs: p.Unsupported == nil, Layers: p.Layers, Experts: p.Experts, TopK: p.TopK,
		DenseBytes: p.DenseBytes, ExpertBytes: p.ExpertBytes, Context: p.Context, Threads: p.Threads, LayersWhy: p.LayersWhy, PlaceWhy: p.PlaceWhy,
	}
	if p.Unsupported != nil {
		out.Why = p.Unsupported.Error()
		return out
	}
	if p.Device != "" {
		out.Device = &onPlan{p.Device, p.DeviceLayers, p.Head}
	}
	for _, a := range p.Accounts {
		account := reportAccount{Of: a.Of, Entries: []reportEntry{}}
		if a.Known {
			account.Budget = &a.Budget
		}
		for _, e := range a.Entries {
			account.Entries = append(account.Entries, reportEntry{e.Name, e.Bytes})
		}
		out.Memory = append(out.Memory, account)
	}
	source := "all"
	switch {
	case p.Streams && p.Earlier > 0:
		source = "history"
	case p.Streams:
		source = "uniform"
	}
	out.Place = &reportPlace{
		Experts: p.CPUPairs, InRAM: p.Slots, OnDisk: p.CPUPairs - p.Slots, SlotBytes: p.SlotBytes, Readers: p.Readers, RequestBytes: p.Request,
		HitRate: p.Hit, HitSource: source, HistoryPairs: p.Earlier,
	}
	out.Rates = map[string]reportRate{}
	for t, x := range r.PerTier {
		if x > 0 {
			out.Rates[tierName(t)] = reportRate{x, r.from[t]}
		}
	}
	out.Empty, out.Full = newReportBound(0, p.Empty, r), newReportBound(p.Context, p.Full, r)
	return out
}

func tierName(t int) string { return strings.ToLower(limits.Tier(t).String()) }

func newReportBound(tokens int, w limits.Work, r *rates) *reportBound {
	b := limits.Decode(w, r.PerTier)
	bytes := func(p limits.PerTier) map[string]int64 {
		out := map[string]int64{}
		for t, n := range p {
			if n > 0 {
				out[tierName(t)] = int64(n)
			}
		}
		return out
	}
	out := &reportBound{Tokens: tokens, Dense: bytes(w.Dense), Experts: bytes(w.Experts), State: bytes(w.KV), Seconds: map[string]float64{}}
	for t, s := range b.Seconds {
		if s > 0 {
			out.Seconds[tierName(t)] = s
		}
	}
	if b.Overlapped > 0 {
		out.Serial, out.Overlapped, out.Limit = &b.Serial, &b.Overlapped, strings.ToLower(b.Limit.String())
	}
	return out
}
