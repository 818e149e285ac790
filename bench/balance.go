package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/coli-moe/coli/balancer"
	"github.com/coli-moe/coli/engine"
)

// BalanceConfig says what NewBalance compares.
type BalanceConfig struct {
	DecodeConfig
	RAM []string // memory for experts, as StreamConfig has it
	// The fixed settings, every combination of them: reads at a time, experts predicted for a layer (0: none, and no horizon then; an empty
	// list is none and as many as a token uses), layers ahead that are predicted.
	Readers, Depths, Horizons []int
	// AutoWarmup is Warmup of the arm that leaves it all to the balancer: it has to try before it can choose.
	AutoWarmup int
}

// NewBalance is the experiment "balance": fixed ways to read experts from disk, and the balancer's choice, side by side.
func NewBalance(cfg BalanceConfig) (Experiment, error) {
	if cfg.AutoWarmup < 0 {
		return nil, badSetting("--n-warmup-auto %d: want 0 or more", cfg.AutoWarmup)
	}
	var err error
	if cfg.Settings, err = WithRAM(cfg.Settings, cfg.RAM); err != nil {
		return nil, err
	}
	var all []Setting
	var chosen []bool
	for _, s := range cfg.Settings {
		info, err := inspect(s.Path)
		if err != nil {
			return nil, err
		}
		s.Options.Device = cmp.Or(s.Options.Device, engine.DeviceNone)
		fixed := cfg.fixed(s, info.topK)
		all = append(append(all, fixed...), balanced(s))
		chosen = append(append(chosen, make([]bool, len(fixed))...), true)
	}
	cfg.Settings = all
	d, err := newDecode("balance", cfg.DecodeConfig)
	if err != nil {
		return nil, err
	}
	d.answers, d.drive, d.decisions = newAnswers(), true, true
	d.warmup = func(setting int) int {
		if chosen[setting] {
			return cfg.AutoWarmup
		}
		return cfg.Warmup
	}
	d.metrics = append(d.metrics, vsBest)
	columns(d.metrics, tokensPerSecond, versusBest, "hit %", "disk MB/token", "drive GB/s", ofLimit, "stall %", "precision %")
	return &balance{d}, nil
}

type balance struct{ *decode }

// vsBest is the metric that Conclude adds.
var vsBest = Metric{
	Name: versusBest, Help: "tokens a second by those, in the same repetition, of the fixed setting that is best in the others", Better: 1, Digits: 3,
}

// The settings that the arms differ in.
var balanceParams = []string{"readers", "prefetch", "prefetch-depth", "prefetch-horizon"}

// policyParams are their values.
func policyParams(s Setting, values ...string) []Param {
	params := slices.Clone(s.Params)
	for i, name := range balanceParams {
		params = append(params, Param{name, values[i]})
	}
	return params
}

// fixed returns a setting with every fixed way to read.
func (cfg *BalanceConfig) fixed(s Setting, topK int) (all []Setting) {
	depths := cfg.Depths
	if len(depths) == 0 {
		depths = []int{0, topK}
	}
	for _, readers := range cfg.Readers {
		for _, depth := range depths {
			horizons := cfg.Horizons
			if depth == 0 {
				horizons = []int{0}
			}
			for _, horizon := range horizons {
				with := s
				o := &with.Options
				o.Readers, o.Depth, o.Horizon = readers, depth, horizon
				if depth == 0 {
					o.Prefetch = engine.PrefetchOff
					with.Params = policyParams(s, strconv.Itoa(readers), string(o.Prefetch), "", "")
				} else {
					o.Prefetch = engine.PrefetchOn
					with.Params = policyParams(s, strconv.Itoa(readers), string(o.Prefetch), strconv.Itoa(depth), strconv.Itoa(horizon))
				}
				all = append(all, with)
			}
		}
	}
	return all
}

// balanced returns a setting whose way to read is the balancer's choice.
func balanced(s Setting) Setting {
	o := &s.Options
	o.Readers, o.Depth, o.Horizon, o.Prefetch = 0, 0, 0, engine.PrefetchAuto
	s.Params = policyParams(s, "auto", "auto", "auto", "auto")
	return s
}

// decisionsNoted is how many of the newest decisions a repetition's notes have.
const decisionsNoted = 16

// decisions are lines about what the balancer has decided, of a model that leaves something to it.
func (s *session) decisions() (lines []string) {
	all := s.m.Decisions()
	if len(all) < 2 { // the first policy alone: all is fixed, or nothing has been found out yet
		return nil
	}
	for _, d := range all[max(0, len(all)-decisionsNoted):] {
		lines = append(lines, fmt.Sprintf("after %d tokens: %s: %s", d.Token, balancer.Describe(d.Policy), d.Reason))
	}
	return lines
}

// withinBest is how close to the best fixed setting the balancer is to come.
const withinBest = 0.95

// Conclude compares each arm with the best fixed one of its kind, and says for each kind where the balancer's choice stands.
func (*balance) Conclude(records []Record) (lines []string) {
	kinds := map[string][]*Record{}
	var order []string
	for i := range records {
		r := &records[i]
		if _, ok := r.Metrics[tokensPerSecond]; !ok {
			continue
		}
		kind := r.kind()
		if kinds[kind] == nil {
			order = append(order, kind)
		}
		kinds[kind] = append(kinds[kind], r)
	}
	for _, kind := range order {
		if line := versus(kind, kinds[kind], len(order) > 1); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// kind is what a record shares with those that it is compared with.
func (r *Record) kind() string {
	a := Arm{Test: r.Test}
	for _, p := range r.Params {
		if !slices.Contains(balanceParams, p.Name) {
			a.Params = append(a.Params, p)
		}
	}
	return a.String()
}

// policy says how a record's arm reads.
func (r *Record) policy() string {
	var words []string
	for _, name := range balanceParams {
		if v := r.Param(name); v != "" {
			words = append(words, name+" "+v)
		}
	}
	return strings.Join(words, ", ")
}

// chosen says whether the record is of the balancer's choice.
func (r *Record) chosen() bool { return r.Param(balanceParams[0]) == "auto" }

// versus adds the metric "vs best" to records, and says how the balancer's choice did. What a repetition is compared with is the fixed
// setting that is best in the others: the best of many noisy figures is better than what it stands for, and to compare with that would
// count chance against everybody else.
func versus(kind string, records []*Record, named bool) string {
	var fixed []*Record
	var auto *Record
	for _, r := range records {
		if r.chosen() {
			auto = r
		} else {
			fixed = append(fixed, r)
		}
	}
	if len(fixed) == 0 {
		return ""
	}
	best := bestBut(fixed, -1)
	for _, r := range records {
		mine := r.Metrics[tokensPerSecond].Samples
		var ratios []float64
		for i := range mine { // the n-th of each arm are of the same round, and of the same tokens
			if its := bestBut(fixed, i).Metrics[tokensPerSecond].Samples; i < len(its) {
				ratios = append(ratios, mine[i]/its[i])
			}
		}
		r.Metrics[versusBest] = summarize(vsBest, ratios)
	}
	if auto == nil {
		return ""
	}
	ratio, spread := geometric(auto.Metrics[versusBest].Samples)
	said := fmt.Sprintf("%.3f", ratio)
	if spread > 0 {
		said += fmt.Sprintf(" ± %.3f", ratio*spread)
	}
	verdict := "which is within 5 % of it"
	if ratio < withinBest {
		verdict = "which is not within 5 % of it"
	}
	where := ""
	if named {
		where = kind + ": "
	}
	return fmt.Sprintf("%sthe balancer's choice makes %.2f tok/s, the best fixed setting %.2f (%s); by repetition %s of the one that is best in the others, %s",
		where, middle(auto), middle(best), best.policy(), said, verdict)
}

// bestBut returns the record with the most tokens a second, the given repetition left out where there are others.
func bestBut(records []*Record, rep int) *Record {
	return slices.MaxFunc(records, func(a, b *Record) int { return cmp.Compare(middleBut(a, rep), middleBut(b, rep)) })
}

func middleBut(r *Record, rep int) float64 {
	samples := r.Metrics[tokensPerSecond].Samples
	if rep >= 0 && rep < len(samples) && len(samples) > 1 {
		samples = slices.Delete(slices.Clone(samples), rep, rep+1)
	}
	mean, _ := geometric(samples)
	return mean
}

// middle is the geometric mean of a record's tokens a second: other people's work makes some repetitions many times slower.
func middle(r *Record) float64 { return middleBut(r, -1) }

// geometric returns the geometric mean of samples, and its standard error as a share of it; 0 for one sample.
func geometric(samples []float64) (mean, spread float64) {
	n := float64(len(samples))
	var sum, squares float64
	for _, x := range samples {
		sum += math.Log(x) / n
	}
	for _, x := range samples {
		d := math.Log(x) - sum
		squares += d * d
	}
	if n > 1 {
		spread = math.Sqrt(squares / (n - 1) / n)
	}
	return math.Exp(sum), spread
}
