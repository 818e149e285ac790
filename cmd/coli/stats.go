package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/coli-moe/coli/engine"
)

// prefillRate is in tokens per second; those the session already held are not counted. 0 if nothing was computed, or, since nobody knows
// how much was, if the prompt was not computed to its end.
func prefillRate(r engine.Result) float64 {
	if r.Reason == engine.ReasonInterrupted && r.Generated == 0 {
		return 0
	}
	return rate(r.PromptTokens-r.CachedTokens, r.Prefill)
}

// decodeRate is in tokens per second. The first token costs no step, its logits are the prompt's; an end-of-text token costs one.
func decodeRate(r engine.Result) float64 {
	steps := r.Generated - 1
	if r.Reason == engine.ReasonEOS {
		steps++
	}
	return rate(steps, r.Decode)
}

func rate(n int, d time.Duration) float64 {
	if n <= 0 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// statsLine is the closing line: tokens, speeds, experts, memory, and why the answer ended if neither the model nor a stop string ended it.
func statsLine(r engine.Result, context int, resident int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d prompt tokens", r.PromptTokens)
	if r.CachedTokens > 0 {
		fmt.Fprintf(&b, " (%d cached)", r.CachedTokens)
	}
	if v := prefillRate(r); v > 0 {
		fmt.Fprintf(&b, " at %.1f tok/s", v)
	}
	fmt.Fprintf(&b, ", %d generated", r.Generated)
	if v := decodeRate(r); v > 0 {
		fmt.Fprintf(&b, " at %.1f tok/s", v)
	}
	if r.PairsPerToken > 0 {
		fmt.Fprintf(&b, ", %.4g experts per token", r.PairsPerToken)
	}
	if resident > 0 {
		fmt.Fprintf(&b, ", %d MB resident", resident>>20)
	}
	if why := ending(r, context); why != "" {
		b.WriteString("; " + why)
	}
	return b.String()
}

// ending says why an answer is not complete, "" if it is.
func ending(r engine.Result, context int) string {
	switch r.Reason {
	case engine.ReasonLength:
		return fmt.Sprintf("stopped at --predict %d", r.Generated)
	case engine.ReasonContext:
		return fmt.Sprintf("stopped because the context of %d tokens is full", context)
	case engine.ReasonInterrupted:
		return "interrupted"
	}
	return ""
}

// report is the object that --json prints. Times are in seconds, rates in tokens per second.
type report struct {
	Text            string         `json:"text"`
	Reason          engine.Reason  `json:"reason"`
	PromptTokens    int            `json:"prompt_tokens"`
	CachedTokens    int            `json:"cached_tokens"`
	GeneratedTokens int            `json:"generated_tokens"`
	LoadTime        float64        `json:"load_time"`
	PrefillTime     float64        `json:"prefill_time"`
	PrefillRate     float64        `json:"prefill_rate"`
	DecodeTime      float64        `json:"decode_time"`
	DecodeRate      float64        `json:"decode_rate"`
	ExpertsPerToken float64        `json:"experts_per_token"`
	ResidentBytes   int64          `json:"resident_bytes"`
	Seed            *int64         `json:"seed"` // null for greedy: nothing was drawn
	Model           reportModel    `json:"model"`
	Sampling        reportSampler  `json:"sampling"`
	ContextSize     int            `json:"ctx_size"`
	Threads         int            `json:"threads"`
	Raw             bool           `json:"raw"`
	Experts         *reportExperts `json:"experts,omitempty"` // absent where all are in memory
	Device          *deviceWork    `json:"device,omitempty"`  // absent where the CPU had all layers
}

type reportModel struct {
	Path string `json:"path"`
	Type string `json:"model_type"`
}

type reportSampler struct {
	Temperature   float32  `json:"temp"`
	TopK          int      `json:"top_k"`
	TopP          float32  `json:"top_p"`
	MinP          float32  `json:"min_p"`
	RepeatPenalty float32  `json:"repeat_penalty"`
	RepeatLastN   int      `json:"repeat_last_n"`
	Stop          []string `json:"stop"`
}

func newReport(text string, r engine.Result, s settings) report {
	p, stop := s.Params, s.stop
	if stop == nil {
		stop = []string{}
	}
	out := report{
		Text: text, Reason: r.Reason,
		PromptTokens: r.PromptTokens, CachedTokens: r.CachedTokens, GeneratedTokens: r.Generated,
		PrefillTime: r.Prefill.Seconds(), PrefillRate: prefillRate(r), DecodeTime: r.Decode.Seconds(), DecodeRate: decodeRate(r),
		ExpertsPerToken: r.PairsPerToken, ResidentBytes: engine.ResidentBytes(),
		Sampling: reportSampler{p.Temperature, p.TopK, p.TopP, p.MinP, p.RepeatPenalty, p.RepeatLastN, stop},
	}
	if r.Experts != nil {
		out.Experts = newReportExperts(*r.Experts)
	}
	if p.Temperature > 0 {
		out.Seed = &p.Seed
	}
	return out
}
