package main

import (
	"fmt"
	"strings"

	"github.com/coli-moe/coli/engine/sampler"
	"github.com/coli-moe/coli/weights"
)

// sampling completes the settings p, in which flags and their environment twins are set and the rest are llama.cpp's defaults, with those
// that the checkpoint recommends. set reports whether a flag was given. why describes what was taken from the checkpoint, "" for nothing.
func sampling(p sampler.Params, set func(flag string) bool, g weights.Generation) (_ sampler.Params, why string) {
	if set("temp") && p.Temperature == 0 {
		return p, "" // greedy as asked: nothing else matters
	}
	if g.DoSample != nil && !*g.DoSample && !set("temp") {
		p.Temperature = 0
		return p, "greedy (do_sample is false)"
	}
	var taken []string
	take := func(flag string, from *float64, to *float32) {
		if from != nil && !set(flag) {
			*to = float32(*from)
			taken = append(taken, fmt.Sprintf("--%s %v", flag, *to))
		}
	}
	take("temp", g.Temperature, &p.Temperature)
	if g.TopK != nil && !set("top-k") {
		p.TopK = *g.TopK
		taken = append(taken, fmt.Sprintf("--top-k %d", p.TopK))
	}
	take("top-p", g.TopP, &p.TopP)
	take("min-p", g.MinP, &p.MinP)
	take("repeat-penalty", g.RepetitionPenalty, &p.RepeatPenalty)
	return p, strings.Join(taken, ", ")
}
