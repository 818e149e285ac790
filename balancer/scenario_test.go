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
	runTokens  = 1024 // of a run, the search included
	warmTokens = 512  // after which the search counts no more
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

// play decodes a run's tokens and returns the time of all and of those after the warm-up.
func play(s sim, policy func() messages.Policy, tell func(messages.Took)) (all, warm float64) {
	for token := range runTokens {
		t := s.step(policy())
		all += float64(t.Nanos) / 1e6
		if token >= warmTokens {
			warm += float64(t.Nanos) / 1e6
		}
		tell(t)
	}
	return all, warm
}

// TestScenarios runs the balancer on simulated machines beside every fixed policy.
func TestScenarios(t *testing.T) {
	if sharedtest.Race {
		t.Skip("one goroutine computes for a minute: nothing for the race detector")
	}
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s := parseMachine(t, d)
			cfg := Config{
				Start: messages.Policy{Readers: 1, Depth: s.topK, Horizon: 1}, Why: "derived", TopK: s.topK,
				Readers: Range{1, 64}, Depth: Range{0, 2 * s.topK}, Horizon: Range{1, 3},
			}
			var out strings.Builder
			best, bestWarm := math.Inf(1), math.Inf(1)
			var bestArm, bestWarmArm messages.Policy
			for _, arm := range fixedArms(cfg) {
				all, warm := play(s, func() messages.Policy { return arm }, func(messages.Took) {})
				if all < best {
					best, bestArm = all, arm
				}
				if warm < bestWarm {
					bestWarm, bestWarmArm = warm, arm
				}
			}
			m := New(cfg)
			fmt.Fprintf(&out, "token 0: %s\n", m.Last().Reason)
			all, warm := play(s, m.Policy, func(took messages.Took) {
				if m.Took(&took) {
					fmt.Fprintf(&out, "token %d: %s\n", m.Last().Token, m.Last().Reason)
				}
			})
			fmt.Fprintf(&out, "best fixed: %s: %.1f tok/s; after %d tokens %s: %.1f tok/s\n",
				Describe(bestArm), 1000*runTokens/best, warmTokens, Describe(bestWarmArm), 1000*(runTokens-warmTokens)/bestWarm)
			fmt.Fprintf(&out, "balancer: %.3f of the best one's time; after %d tokens %.3f\n", all/best, warmTokens, warm/bestWarm)
			if all > 1.10*best {
				t.Errorf("%s: %.3f of the best fixed policy's time, search included", d.Pos, all/best)
			}
			if warm > 1.05*bestWarm {
				t.Errorf("%s: %.3f of the best fixed policy's time after the search", d.Pos, warm/bestWarm)
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
