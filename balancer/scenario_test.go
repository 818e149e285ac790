package balancer

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/coli-moe/coli/internal/sharedtest"
	"github.com/coli-moe/coli/messages"
)

const (
	runTokens   = 1024 // of a run, the search included
	warmTokens  = 512  // after which the search counts no more
	shortTokens = 64   // of an answer that is over before the search is
)

func fixedArms(c Config) (arms []messages.Policy) {
	for _, r := range []int{1, 2, 4, 8, 16} {
		for _, d := range []int{0, c.TopK / 2, c.TopK, 2 * c.TopK} {
			for h := 1; h <= 3 && (d > 0 && d <= c.TopK || h == 1); h++ {
				arms = append(arms, messages.Policy{Readers: r, Depth: d, Horizon: h})
			}
		}
	}
	return arms
}

// times of a run, in milliseconds: of all tokens, of those after the warm-up, and of the first that a short run has.
type times struct{ all, warm, short float64 }

// stretch is what play divides a run into.
const stretch = 128

// play decodes the first so many tokens of each stretch of a run.
func play(s sim, part int, policy func() messages.Policy, tell func(messages.Took)) (t times) {
	for token := range runTokens {
		if token%stretch >= part {
			s.skip()
			continue
		}
		took := s.step(policy())
		ms := float64(took.Nanos) / 1e6
		t.all += ms
		if token >= warmTokens {
			t.warm += ms
		}
		if token < shortTokens {
			t.short += ms
		}
		tell(took)
	}
	return t
}

func playFixed(s sim, part int, p messages.Policy) times {
	return play(s, part, func() messages.Policy { return p }, func(messages.Took) {})
}

// contenders are the arms one of which is the fastest: those that an eighth of the tokens does not show to be a tenth slower than another.
// All arms have the same noise, so that it shows.
func contenders(s sim, arms []messages.Policy) (near []messages.Policy) {
	best := times{all: math.Inf(1), warm: math.Inf(1)}
	seen := make([]times, len(arms))
	for i, arm := range arms {
		seen[i] = playFixed(s, stretch/8, arm)
		best.all, best.warm = min(best.all, seen[i].all), min(best.warm, seen[i].warm)
	}
	for i, arm := range arms {
		if seen[i].all < 1.1*best.all || seen[i].warm < 1.1*best.warm {
			near = append(near, arm)
		}
	}
	return near
}

// TestScenarios runs the balancer on simulated machines beside every fixed policy.
func TestScenarios(t *testing.T) {
	if sharedtest.Race {
		t.Skip("one goroutine computes for a minute: nothing for the race detector")
	}
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		t.Parallel()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s := parseMachine(t, d)
			cfg := auto(s.topK)
			best := times{all: math.Inf(1), warm: math.Inf(1)}
			var bestArm, bestWarmArm messages.Policy
			for _, arm := range contenders(s, fixedArms(cfg)) {
				took := playFixed(s, stretch, arm)
				if took.all < best.all {
					best.all, bestArm = took.all, arm
				}
				if took.warm < best.warm {
					best.warm, bestWarmArm = took.warm, arm
				}
			}
			var out strings.Builder
			m := New(cfg)
			fmt.Fprintf(&out, "token 0: %s\n", m.Last().Reason)
			took := play(s, stretch, m.Policy, func(took messages.Took) {
				if m.Took(&took) {
					fmt.Fprintf(&out, "token %d: %s\n", m.Last().Token, m.Last().Reason)
				}
			})
			short := took.short / playFixed(s, stretch, cfg.Start).short
			fmt.Fprintf(&out, "best fixed: %s: %.1f tok/s; after %d tokens %s: %.1f tok/s\n",
				Describe(bestArm), 1000*runTokens/best.all, warmTokens, Describe(bestWarmArm), 1000*(runTokens-warmTokens)/best.warm)
			fmt.Fprintf(&out, "balancer: %.3f of the best one's time; after %d tokens %.3f\n", took.all/best.all, warmTokens, took.warm/best.warm)
			fmt.Fprintf(&out, "the first %d tokens: %.3f of the time with what it began with\n", shortTokens, short)
			if took.all > 1.10*best.all {
				t.Errorf("%s: %.3f of the best fixed policy's time, search included", d.Pos, took.all/best.all)
			}
			if took.warm > 1.05*best.warm {
				t.Errorf("%s: %.3f of the best fixed policy's time after the search", d.Pos, took.warm/best.warm)
			}
			if short > 1.05 {
				t.Errorf("%s: the first %d tokens took %.3f of the time with what it began with", d.Pos, shortTokens, short)
			}
			return out.String()
		})
	})
}

// parseMachine reads a scenario: values by name, and from=TOKEN lines with those that change at a token.
func parseMachine(t *testing.T, d *datadriven.TestData) sim {
	s := sim{layers: 16, topK: 8, size: 3.4, dense: 0.4, expert: 0.12, router: 0.02, recall: [4]float64{1, 0.85, 0.7, 0.55}, waste: 0.6, hit: 0.5}
	fields := func(s *sim) map[string]*float64 {
		return map[string]*float64{
			"size": &s.size, "dense": &s.dense, "expert": &s.expert, "router": &s.router, "latency": &s.latency, "stream": &s.stream,
			"rate": &s.rate, "seek": &s.seek, "steal": &s.steal, "hit": &s.hit, "waste": &s.waste, "noise": &s.noise, "hiccup": &s.hiccup,
			"stall": &s.stall, "recall1": &s.recall[1], "recall2": &s.recall[2], "recall3": &s.recall[3],
		}
	}
	set := func(s *sim, name string, value float64) {
		f := fields(s)[name]
		if f == nil {
			d.Fatalf(t, "what is %s?", name)
		}
		*f = value
	}
	type change struct {
		from  int
		name  string
		value float64
	}
	var changes []change
	from := 0
	for _, word := range strings.Fields(d.Input) {
		name, text, _ := strings.Cut(word, "=")
		var value float64
		if _, err := fmt.Sscan(text, &value); err != nil {
			d.Fatalf(t, "%s: %v", word, err)
		}
		switch {
		case name == "from":
			from = int(value)
		case from > 0:
			changes = append(changes, change{from, name, value})
		case name == "layers":
			s.layers = int(value)
		case name == "topk":
			s.topK = int(value)
		default:
			set(&s, name, value)
		}
	}
	if len(changes) > 0 {
		s.change = func(token int, s *sim) {
			for _, c := range changes {
				if token == c.from {
					set(s, c.name, c.value)
				}
			}
		}
	}
	return s
}
