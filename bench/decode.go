package bench

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"
	"unsafe"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/internal/loghist"
	"github.com/coli-moe/coli/limits"
	"github.com/coli-moe/coli/probe"
)

// DecodeConfig says what NewDecode measures.
type DecodeConfig struct {
	ModelConfig
	Gen []int // tokens of a repetition
	// Warmup is how many tokens are computed before the first that counts, in whole repetitions: they fill the memory for experts, and give
	// the balancer time to decide. 0 is one repetition.
	Warmup int
}

// NewDecode is the experiment "decode": tokens computed one at a time behind so many others, each given by the trace.
func NewDecode(cfg DecodeConfig) (Experiment, error) {
	x, err := newDecode("decode", cfg)
	if err != nil {
		return nil, err
	}
	return x, nil
}

// decode is an experiment that computes one token at a time; stream and balance are of the kind.
type decode struct {
	*models
	DecodeConfig
	name    string
	metrics []Metric
	warmup  func(setting int) int // tokens
	drive   bool                  // measure the drive before each repetition
	answers *answers              // nil: they are not compared

	decisions bool // note what the balancer decides
}

func newDecode(name string, cfg DecodeConfig) (*decode, error) {
	x := &decode{DecodeConfig: cfg, name: name, metrics: decodeMetrics()}
	x.warmup = func(int) int { return x.Warmup }
	if cfg.Warmup < 0 {
		return nil, badSetting("--n-warmup %d: want 0 or more", cfg.Warmup)
	}
	var err error
	if x.models, err = newModels(cfg.ModelConfig); err != nil {
		return nil, err
	}
	for _, n := range cfg.Gen {
		if n < 1 {
			return nil, badSetting("--n-gen %d: want 1 or more", n)
		}
		for _, depth := range x.models.Depths {
			if err := x.fits(test("tg", n, depth), depth+n); err != nil {
				return nil, err
			}
		}
	}
	return x, nil
}

// Name is the experiment's.
func (x *decode) Name() string { return x.name }

// Metrics are those of all experiments that decode, with columns for what each is about.
func (x *decode) Metrics() []Metric { return x.metrics }

// The names of metrics that more than one place uses.
const (
	tokensPerSecond = "tok/s"
	ofLimit         = "% of limit"
	versusBest      = "vs best"
	memoryGBs       = "memory GB/s"
)

func decodeMetrics() []Metric {
	return []Metric{
		{Name: tokensPerSecond, Unit: "tok/s", Help: "tokens a second, without tokenizing and sampling", Better: 1, Table: true, Digits: 2},
		{Name: "ms/token", Unit: "ms", Help: "mean time of a token", Better: -1, Digits: 3},
		{Name: "p50", Unit: "ms", Help: "time of a token that half of them do not exceed", Better: -1, Table: true, Digits: 2},
		{Name: "p95", Unit: "ms", Help: "… that 95 % do not exceed", Better: -1, Table: true, Digits: 2},
		{Name: "p99", Unit: "ms", Help: "… that 99 % do not exceed", Better: -1, Table: true, Digits: 2},
		{Name: "MB/token", Unit: "MB", Help: "weights, keys and values that a token reads, from wherever they are, in 10⁶ bytes", Table: true, Digits: 1},
		{Name: ofLimit, Unit: "%", Help: "of what memory and drive allow, all of them at work at the same time", Better: 1, Table: true, Digits: 1},
		{Name: "% of serial", Unit: "%", Help: "of what they allow one after another", Better: 1, Digits: 1},
		{Name: "limit tok/s", Unit: "tok/s", Help: "what they allow", Digits: 2},
		{Name: memoryGBs, Unit: "GB/s", Help: "rate of a plain read of memory, which the limit is of", Digits: 2},
		{Name: "cache %", Unit: "%", Help: "experts that have room in memory", Digits: 1},
		{Name: "hit %", Unit: "%", Help: "(token, expert) pairs found in memory, also because they were read ahead", Better: 1, Digits: 1},
		{Name: "in flight %", Unit: "%", Help: "pairs whose expert was on its way from disk", Digits: 1},
		{Name: "disk MB/token", Unit: "MB", Help: "read from disk, in 10⁶ bytes", Better: -1, Digits: 1},
		{Name: "read GB/s", Unit: "GB/s", Help: "rate of these reads, while there are any", Better: 1, Digits: 2},
		{Name: "drive GB/s", Unit: "GB/s", Help: "the drive's own rate for requests of that size, measured just before", Digits: 2},
		{Name: "stall %", Unit: "%", Help: "of the time: waiting for the disk with nothing to compute", Better: -1, Digits: 1},
		{Name: "precision %", Unit: "%", Help: "predicted reads that were used", Better: 1, Digits: 1},
		{Name: "recall %", Unit: "%", Help: "experts that were missing and had been predicted", Better: 1, Digits: 1},
		{Name: "evictions/token", Unit: "1", Help: "experts that lost their place in memory", Digits: 1},
		{Name: "queue p95", Unit: "ms", Help: "time that 95 % of requests did not wait longer before the drive had them (eBPF)", Better: -1, Digits: 3},
		{Name: "device p50", Unit: "ms", Help: "time in the drive that half of the requests do not exceed (eBPF)", Better: -1, Digits: 3},
		{Name: "device p95", Unit: "ms", Help: "… that 95 % do not exceed", Better: -1, Digits: 3},
		{Name: "readers", Unit: "1", Help: "reads at a time in the end", Digits: 0},
		{Name: "predicted", Unit: "1", Help: "experts predicted for a layer in the end", Digits: 0},
		{Name: "horizon", Unit: "1", Help: "layers ahead that are predicted in the end", Digits: 0},
		{Name: "peak RSS MiB", Unit: "MiB", Help: "most memory of the process, mapped files and other open arms included", Better: -1, Digits: 0},
	}
}

// columns gives a table exactly the named metrics as its columns.
func columns(metrics []Metric, names ...string) []Metric {
	for i := range metrics {
		metrics[i].Table = false
		for _, name := range names {
			metrics[i].Table = metrics[i].Table || metrics[i].Name == name
		}
	}
	return metrics
}

// Arms are settings × depths × tokens.
func (x *decode) Arms() (arms []Arm) {
	for i, s := range x.models.Settings {
		for _, depth := range x.models.Depths {
			for _, n := range x.Gen {
				arms = append(arms, Arm{
					Test: test("tg", n, depth), Params: s.Params, Bytes: x.bytes(i, depth+n),
					Open:    func(ctx context.Context) (Run, error) { return x.start(ctx, i, depth, n) },
					Resumed: func(rep int, s *Sample) error { return x.agree(i, test("tg", n, depth), x.piece(rep), s) },
				})
			}
		}
	}
	return arms
}

// start opens an arm.
func (x *decode) start(ctx context.Context, setting, depth, n int) (Run, error) {
	s, err := x.session(ctx, setting, depth+n)
	if err != nil {
		return nil, err
	}
	if p := s.m.Probe(); p != nil && p.Mode() != probe.EBPF {
		x.note(p.Why())
	}
	return &decodeRun{session: s, x: x, depth: depth, n: n, hist: hdrhistogram.New(1, int64(10*time.Minute), 3)}, nil
}

// decodeRun is an open arm.
type decodeRun struct {
	*session
	x        *decode
	depth, n int

	hist   *hdrhistogram.Histogram // nanoseconds of a token
	answer []uint32                // of the repetition: for each token a checksum of the logits or, where a device found it, the next token
	before probe.Snapshot
	after  probe.Snapshot
}

// Warm computes tokens of another piece of the trace, or, in state Warm, those that are measured.
func (r *decodeRun) Warm(ctx context.Context) error {
	number := 0
	if r.x.models.State == Warm {
		number = r.x.piece(0)
	}
	tokens := r.x.warmup(r.setting)
	for done := 0; done == 0 || done < tokens; done += r.n {
		ids := r.ids(number, r.depth+r.n)
		if err := r.prompt(ctx, ids[:r.depth]); err != nil {
			return err
		}
		if _, err := r.generate(ctx, ids[r.depth:]); err != nil {
			return err
		}
		if number != r.x.piece(0) {
			number-- // a piece before those that are measured
		}
	}
	return nil
}

// prompt empties the session and gives it tokens. What experts are in memory stays as it is.
func (s *session) prompt(ctx context.Context, ids []int32) error {
	s.Truncate(0)
	if len(ids) == 0 {
		return nil
	}
	_, err := s.Forward(ctx, ids)
	return err
}

// generate computes tokens one by one and returns what they took. Answers are kept where they are to be compared.
func (r *decodeRun) generate(ctx context.Context, ids []int32) (total time.Duration, err error) {
	r.hist.Reset()
	r.answer = r.answer[:0]
	for i := range ids {
		start := time.Now()
		token, logits, err := r.Greedy(ctx, ids[i:i+1])
		took := time.Since(start)
		if err != nil {
			return 0, err
		}
		total += took
		if err := r.hist.RecordValue(int64(took)); err != nil {
			return 0, err
		}
		switch {
		case r.x.answers == nil:
		case logits == nil:
			r.answer = append(r.answer, uint32(token))
		default:
			r.answer = append(r.answer, checksum(logits))
		}
	}
	return total, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is one of every bit of logits. It is done within microseconds: while it lasts, reads go on that nobody's time counts.
func checksum(logits []float32) uint32 {
	return crc32.Checksum(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(logits))), 4*len(logits)), castagnoli)
}

// Measure computes repetition rep.
func (r *decodeRun) Measure(ctx context.Context, rep int) (out Sample, err error) {
	before, streams, err := r.m.Experts()
	if err != nil {
		return out, err
	}
	drive := before.DriveRate
	if streams && r.x.drive {
		const long = 300 * time.Millisecond
		if rate, err := r.m.Drive(ctx, long); err == nil {
			drive = rate
		} else if ctx.Err() != nil {
			return out, err
		}
	}
	ids := r.ids(r.x.piece(rep), r.depth+r.n)
	if err := r.prompt(ctx, ids[:r.depth]); err != nil {
		return out, err
	}
	if before, _, err = r.m.Experts(); err != nil {
		return out, err
	}
	if p := r.m.Probe(); p != nil {
		if err := p.Read(&r.before); err != nil {
			return out, err
		}
	}
	spent := r.m.Parts()
	resetPeak()

	took, err := r.generate(ctx, ids[r.depth:])
	if err != nil {
		return out, err
	}

	n := float64(r.n)
	ms := func(ns float64) float64 { return ns / 1e6 }
	out.Values = map[string]float64{
		tokensPerSecond: n / took.Seconds(),
		"ms/token":      ms(float64(took) / n),
		"p50":           ms(float64(r.hist.ValueAtQuantile(50))),
		"p95":           ms(float64(r.hist.ValueAtQuantile(95))),
		"p99":           ms(float64(r.hist.ValueAtQuantile(99))),
	}
	if peak := peakResident(); peak > 0 {
		out.Values["peak RSS MiB"] = float64(peak) / (1 << 20)
	}
	out.Parts = parts(spent, r.m.Parts(), r.n)
	work := r.m.Work(r.depth + r.n/2)
	out.Values["MB/token"] = work.Found().Sum() / 1e6
	if streams {
		if err := r.streamed(&out, &work, before, took, drive); err != nil {
			return out, err
		}
	} else if r.m.Config.NumExperts > 0 {
		out.Values["cache %"], out.Values["hit %"] = 100, 100
	}
	if err := r.measureMemory(ctx, &out); err != nil {
		return out, err
	}
	if b, ok := r.bound(ctx, work, drive); ok {
		serial, overlapped := b.Efficiency(out.Values[tokensPerSecond])
		out.Values[ofLimit], out.Values["% of serial"], out.Values["limit tok/s"] = 100*overlapped, 100*serial, b.Overlapped
	}
	if out.Notes, err = r.notes(), r.check(); err != nil {
		return out, err
	}
	if r.x.decisions {
		out.Notes = append(out.Notes, r.decisions()...)
	}
	if r.x.answers != nil {
		piece := r.x.piece(rep)
		out.Answer = r.digest()
		out.Notes = append(out.Notes, fmt.Sprintf("answer to piece %d: %s", piece, out.Answer))
		return out, r.x.agree(r.setting, test("tg", r.n, r.depth), piece, &out)
	}
	return out, nil
}

// agree is an error if a sample has another answer than that of an arm that did the same before, in an earlier run too.
func (x *decode) agree(setting int, test string, piece int, s *Sample) error {
	if x.answers == nil || s.Answer == "" {
		return nil
	}
	return x.answers.compare(&x.models.Settings[setting], test, piece, s.Answer)
}

// streamed adds what the experts' pipeline did since before, and moves to the disk the part of work that was found there.
func (r *decodeRun) streamed(out *Sample, work *limits.Work, before engine.ExpertStats, took time.Duration, drive float64) error {
	now, _, err := r.m.Experts()
	if err != nil {
		return err
	}
	d := now.Since(before.Figures)
	n := float64(r.n)
	v := out.Values
	v["cache %"] = 100 * float64(d.Slots) / float64(r.m.CPUExperts())
	v["disk MB/token"] = float64(d.Read) / n / 1e6
	v["stall %"] = 100 * d.Waited.Seconds() / took.Seconds()
	v["evictions/token"] = float64(d.Evictions) / n
	policy := r.m.Policy()
	v["readers"], v["predicted"], v["horizon"] = float64(policy.Readers), float64(policy.Depth), float64(policy.Horizon)
	if d.Reading > 0 {
		v["read GB/s"] = float64(d.Read) / d.Reading.Seconds() / 1e9
	}
	if drive > 0 {
		v["drive GB/s"] = drive / 1e9
	}
	if p, ok := d.Precision(); ok {
		v["precision %"] = 100 * p
	}
	if p, ok := d.Recall(); ok && d.PredictedReads > 0 {
		v["recall %"] = 100 * p
	}
	if pairs := float64(d.PairsInMemory + d.PairsInFlight + d.PairsOnDisk); pairs > 0 {
		v["hit %"], v["in flight %"] = 100*float64(d.PairsInMemory)/pairs, 100*float64(d.PairsInFlight)/pairs
		// What had to be read: on demand, or ahead of it and rightly so. What else was read is the engine's loss, and no part of the limit.
		fromDisk := min(float64(d.DemandReads+d.PredictedUsed)/pairs, 1) * work.Experts[limits.RAM]
		work.Experts[limits.RAM] -= fromDisk
		work.Experts[limits.Disk] = fromDisk
	}
	p := r.m.Probe()
	if p == nil {
		return nil
	}
	if err := p.Read(&r.after); err != nil {
		return err
	}
	since := r.after.Since(&r.before)
	out.Histograms = map[string]loghist.Hist{"read": since.Own.Took}
	reads := since.Reads()
	if p.Mode() != probe.EBPF || reads.Device.Count == 0 {
		return nil
	}
	out.Histograms["queue"], out.Histograms["device"] = reads.Queue, reads.Device
	v["queue p95"] = reads.Queue.Quantile(0.95).Seconds() * 1e3
	v["device p50"], v["device p95"] = reads.Device.Quantile(0.5).Seconds()*1e3, reads.Device.Quantile(0.95).Seconds()*1e3
	return nil
}

// digest is a hash of the repetition's answers.
func (r *decodeRun) digest() string {
	var b []byte
	for _, v := range r.answer {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	sum := sha256.Sum256(b)
	return fmt.Sprintf("%x", sum[:8])
}

// answers compares what arms compute: the same trace has the same logits wherever weights are found, and whoever reads them when.
type answers struct {
	first map[string]answer // by model, device, work and piece of the trace
}

type answer struct{ digest, arm string }

func newAnswers() *answers { return &answers{map[string]answer{}} }

// compare is an error if an arm's digest is not that of the first arm that did the same. A device adds in another order than the CPU, so arms
// are compared where the same layers are on it.
func (a *answers) compare(s *Setting, test string, piece int, digest string) error {
	arm := Arm{Test: test, Params: s.Params}
	key := fmt.Sprintln(s.Path, s.Options.Device, s.Options.GPULayers, test, piece)
	first, ok := a.first[key]
	if !ok {
		a.first[key] = answer{digest, arm.String()}
		return nil
	}
	if first.digest != digest {
		return fmt.Errorf("%s computes another answer (%s) than %s (%s) to piece %d of the trace: placement must decide speed only; please report it",
			&arm, digest, first.arm, first.digest, piece)
	}
	return nil
}
