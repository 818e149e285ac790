package bench

import (
	"context"
	"errors"
	"time"

	"github.com/coli-moe/coli/limits"
)

// PrefillConfig says what NewPrefill measures.
type PrefillConfig struct {
	ModelConfig
	Prompt []int // tokens of a repetition
}

// NewPrefill is the experiment "prefill": prompts of so many tokens behind so many others, computed in chunks.
func NewPrefill(cfg PrefillConfig) (Experiment, error) {
	x := &prefill{PrefillConfig: cfg}
	var err error
	if x.models, err = newModels(cfg.ModelConfig); err != nil {
		return nil, err
	}
	for _, n := range cfg.Prompt {
		if n < 1 {
			return nil, badSetting("--n-prompt %d: want 1 or more", n)
		}
		for _, depth := range x.models.Depths {
			if err := x.fits(test("pp", n, depth), depth+n); err != nil {
				return nil, err
			}
		}
	}
	return x, nil
}

type prefill struct {
	*models
	PrefillConfig
}

// Name is "prefill".
func (*prefill) Name() string { return "prefill" }

// Metrics are those of a prompt.
func (*prefill) Metrics() []Metric {
	return []Metric{
		{Name: tokensPerSecond, Unit: "tok/s", Help: "tokens of the prompt a second, without tokenizing", Better: 1, Table: true, Digits: 1},
		{Name: "ms", Unit: "ms", Help: "from the prompt's first token to the logits behind its last", Better: -1, Table: true, Digits: 1},
		{Name: "ms/token", Unit: "ms", Help: "the same, divided by the tokens", Better: -1, Digits: 3},
		{Name: "MB/token", Unit: "MB", Help: "weights that a token reads, in 10⁶ bytes: a chunk reads each once, of the experts as many as even routing would use", Table: true, Digits: 1},
		{Name: memoryGBs, Unit: "GB/s", Help: "rate of a plain read of memory, which that share is of", Digits: 2},
		{Name: "% of memory", Unit: "%", Help: "of what memory allows; a prompt is usually limited by arithmetic", Better: 1, Digits: 1},
		{Name: "disk MB/token", Unit: "MB", Help: "read from disk, in 10⁶ bytes", Better: -1, Table: true, Digits: 2},
		{Name: "stall %", Unit: "%", Help: "of the time: waiting for the disk with nothing to compute", Better: -1, Table: true, Digits: 1},
		{Name: "peak RSS MiB", Unit: "MiB", Help: "most memory of the process, mapped files and other open arms included", Better: -1, Digits: 0},
	}
}

// Arms are settings × depths × tokens.
func (x *prefill) Arms() (arms []Arm) {
	for i, s := range x.models.Settings {
		for _, depth := range x.models.Depths {
			for _, n := range x.Prompt {
				arms = append(arms, Arm{
					Test: test("pp", n, depth), Params: s.Params, Bytes: x.bytes(i, depth+n),
					Open: func(ctx context.Context) (Run, error) {
						s, err := x.session(ctx, i, depth+n)
						if err != nil {
							return nil, err
						}
						return &prefillRun{s, depth, n}, nil
					},
				})
			}
		}
	}
	return arms
}

// prefillRun is an open arm.
type prefillRun struct {
	*session
	depth, n int
}

// Warm computes a prompt of another piece of the trace, or, in state Warm, the one that is measured.
func (r *prefillRun) Warm(ctx context.Context) error {
	number := 0
	if r.x.State == Warm {
		number = r.x.piece(0)
	}
	_, err := r.compute(ctx, number, func() {})
	return err
}

// compute gives an emptied session a piece of the trace and returns what the part after depth took. ready is called before it.
func (r *prefillRun) compute(ctx context.Context, number int, ready func()) (time.Duration, error) {
	ids := r.ids(number, r.depth+r.n)
	if err := r.prompt(ctx, ids[:r.depth]); err != nil {
		return 0, err
	}
	ready()
	start := time.Now()
	_, _, err := r.Greedy(ctx, ids[r.depth:])
	return time.Since(start), err
}

// Measure computes repetition rep.
func (r *prefillRun) Measure(ctx context.Context, rep int) (out Sample, err error) {
	before, streams, err := r.m.Experts()
	if err != nil {
		return out, err
	}
	spent := r.m.Parts()
	var failed error
	took, err := r.compute(ctx, r.x.piece(rep), func() {
		before, _, failed = r.m.Experts()
		spent = r.m.Parts()
		resetPeak()
	})
	if err = errors.Join(failed, err); err != nil {
		return out, err
	}
	n := float64(r.n)
	out.Values = map[string]float64{tokensPerSecond: n / took.Seconds(), "ms": 1e3 * took.Seconds(), "ms/token": 1e3 * took.Seconds() / n}
	if peak := peakResident(); peak > 0 {
		out.Values["peak RSS MiB"] = float64(peak) / (1 << 20)
	}
	out.Parts = parts(spent, r.m.Parts(), r.n)
	work := r.work()
	out.Values["MB/token"] = work.Found().Sum() / 1e6
	if err := r.measureMemory(ctx, &out); err != nil {
		return out, err
	}
	if b, ok := r.bound(ctx, work, 0); ok {
		_, overlapped := b.Efficiency(out.Values[tokensPerSecond])
		out.Values["% of memory"] = 100 * overlapped
	}
	if streams {
		now, _, err := r.m.Experts()
		if err != nil {
			return out, err
		}
		d := now.Since(before.Figures)
		out.Values["disk MB/token"] = float64(d.Read) / n / 1e6
		out.Values["stall %"] = 100 * d.Waited.Seconds() / took.Seconds()
	}
	out.Notes = r.notes()
	return out, r.check()
}

// work is what a token of the prompt reads: each chunk reads every weight once, of a layer's experts those that even routing of its rows
// would use, and the keys and values before it once.
func (r *prefillRun) work() (w limits.Work) {
	k, experts := r.m.Config.NumExpertsPerTok, r.m.Config.NumExperts
	for done := 0; done < r.n; {
		rows := min(r.m.Chunk(), r.n-done)
		one := r.m.Work(r.depth + done)
		if k > 0 {
			one.Experts = one.Experts.Times(limits.Union(experts, k, rows) / float64(k))
		}
		for t := range one.Dense {
			w.Dense[t] += one.Dense[t] / float64(r.n)
			w.Experts[t] += one.Experts[t] / float64(r.n)
			w.KV[t] += one.KV[t] / float64(r.n)
		}
		done += rows
	}
	return w
}
