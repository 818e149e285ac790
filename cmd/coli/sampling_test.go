package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coli-moe/coli/engine/sampler"
	"github.com/coli-moe/coli/weights"
)

func TestSamplingPrecedence(t *testing.T) {
	recommended := weights.Generation{
		Temperature: new(0.7), TopP: new(0.9), TopK: new(20), RepetitionPenalty: new(1.1), DoSample: new(true),
	}
	greedy := recommended
	greedy.DoSample = new(false)
	for _, c := range []struct {
		name   string
		given  map[string]bool
		params func(*sampler.Params) // what the flags set
		from   weights.Generation
		want   func(*sampler.Params)
		why    string
	}{
		{name: "defaults"},
		{
			name: "checkpoint", from: recommended,
			want: func(p *sampler.Params) { p.Temperature, p.TopP, p.TopK, p.RepeatPenalty = 0.7, 0.9, 20, 1.1 },
			why:  "--temp 0.7, --top-k 20, --top-p 0.9, --repeat-penalty 1.1",
		},
		{
			name: "a flag beats the checkpoint", given: map[string]bool{"temp": true, "top-k": true}, from: recommended,
			params: func(p *sampler.Params) { p.Temperature, p.TopK = 1.5, 0 },
			want:   func(p *sampler.Params) { p.Temperature, p.TopP, p.TopK, p.RepeatPenalty = 1.5, 0.9, 0, 1.1 },
			why:    "--top-p 0.9, --repeat-penalty 1.1",
		},
		{
			name: "greedy by the checkpoint", from: greedy,
			want: func(p *sampler.Params) { p.Temperature = 0 }, why: "greedy (do_sample is false)",
		},
		{
			name: "a temperature beats do_sample", given: map[string]bool{"temp": true}, from: greedy,
			params: func(p *sampler.Params) { p.Temperature = 0.5 },
			want:   func(p *sampler.Params) { p.Temperature, p.TopP, p.TopK, p.RepeatPenalty = 0.5, 0.9, 20, 1.1 },
			why:    "--top-k 20, --top-p 0.9, --repeat-penalty 1.1",
		},
		{
			name: "greedy as asked is not penalised by the checkpoint", given: map[string]bool{"temp": true}, from: recommended,
			params: func(p *sampler.Params) { p.Temperature = 0 },
			want:   func(p *sampler.Params) { p.Temperature = 0 },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, want := sampler.Defaults(), sampler.Defaults()
			if c.params != nil {
				c.params(&p)
			}
			if c.want != nil {
				c.want(&want)
			}
			got, why := sampling(p, func(flag string) bool { return c.given[flag] }, c.from)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
			if why != c.why {
				t.Errorf("why %q, want %q", why, c.why)
			}
		})
	}
}
